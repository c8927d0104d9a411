"""Command lines: which argv is a server, which only mentions one."""

from __future__ import annotations

import pytest

from opsctl.domain.launch_line import matches_command, read_launch_line, read_title


@pytest.mark.parametrize(
    ("argv", "port", "model"),
    [
        ("python3 -m sglang.launch_server --model-path /m --port 30001", 30001, "/m"),
        ("python3 -m sglang.launch_server --model-path=/m --port=30001", 30001, "/m"),
        ("/opt/v/bin/python -u -m sglang.launch_server --model /m", 30000, "/m"),
        ("python3.12 -X faulthandler -W ignore -m sglang.launch_server --model m/x", 30000, "m/x"),
        ("/usr/local/bin/python3 /usr/local/bin/sglang serve --model-path /m --port 1", 1, "/m"),
        ("sglang serve --model-path /m", 30000, "/m"),
        ("python3 -m sglang.cli.main serve --model-path /m", 30000, "/m"),
        ("python3 /opt/src/sglang/launch_server.py --model-path /m --port 5", 5, "/m"),
        ("python3 -m sglang.launch_server --port 1 --port 2 --model-path /m", 2, "/m"),
        ("python3 -um sglang.launch_server --model-path /m --port 3", 3, "/m"),
        ("python3 -uBmsglang.launch_server --model-path /m --port 3", 3, "/m"),
        ("python3 -uX dev -Wignore -m sglang.launch_server --model-path /m --port 3", 3, "/m"),
        ("python3.13t -m sglang.launch_server --model-path /m --port 3", 3, "/m"),
        ("python3 -m sglang.launch_server --model-pat /m --por 30001", 30001, "/m"),
        ("python3 -m sglang.launch_server --conf c.yaml", None, None),
        ("python3 -m sglang.launch_server --config c.yaml", None, None),
        ("python3 -m sglang.launch_server --config c.yaml --port 7", 7, None),
    ],
)
def test_a_server_is_read_from_its_arguments(
    argv: str, port: int | None, model: str | None
) -> None:
    """Every documented way to launch names its port and model; the default port is 30000."""
    line = read_launch_line(tuple(argv.split()))

    assert line is not None
    assert (line.port, line.model) == (port, model)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("",),
        ("bash", "-c", "python3 -m sglang.launch_server --port 30000"),
        ("ssh", "host", "python3", "-m", "sglang.launch_server"),
        ("grep", "sglang"),
        ("vim", "/opt/sglang/launch_server.py"),
        ("sudo", "python3", "-m", "sglang.launch_server"),
        ("python3", "-c", "import sglang.launch_server"),
        ("python3", "/ci/_work/sglang/sglang/test/run_suite.py", "--suite", "nightly"),
        ("python3", "watch.py", "-m", "sglang.launch_server", "--port", "30000"),
        ("python3", "-m", "sglang.bench_serving", "--port", "30000"),
        ("python3", "-m", "sglang.cli.main", "version"),
        ("python3", "-m"),
        ("python3",),
        ("sglang",),
        ("/opt/sglang/bin/python", "train.py"),
        ("mypython3x", "-m", "sglang.launch_server"),
        ("python3", "--", "-m", "sglang.launch_server"),
        ("python3", "-uc", "import x", "-m", "sglang.launch_server"),
        ("python3", "-uX", "-m", "sglang.launch_server"),
        ("python3", "-um"),
    ],
)
def test_what_only_mentions_a_server_is_none(argv: tuple[str, ...]) -> None:
    """Shells, editors, greps, wrappers and scripts that carry the words are no servers."""
    assert read_launch_line(argv) is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("sglang::scheduler_TP0",), "sglang::scheduler_TP0"),
        (("sglang::scheduler_TP0", "", "", ""), "sglang::scheduler_TP0"),
        (("sglang::scheduler_DP0_TP0_EP0\0\0\0",), "sglang::scheduler_DP0_TP0_EP0"),
        (("sglang::scheduler   ",), "sglang::scheduler"),
        (("sglang::schedul",), "sglang::schedul"),
        (("sglang::scheduler_TP0", "--port", "1"), None),
        (("grep", "sglang::scheduler_TP0"), None),
        (("vim sglang::notes",), None),
        (("sglang",), None),
        ((), None),
    ],
)
def test_a_title_stands_alone_in_argv(argv: tuple[str, ...], expected: str | None) -> None:
    """A retitled worker has one element; a command that names a title is not one."""
    assert read_title(argv) == expected


def test_a_command_is_the_same_elements_in_the_same_order() -> None:
    """The site's command matches as it was started, also through a script's interpreter."""
    command = ("/usr/bin/my-server", "--port", "8000")

    assert matches_command(("/usr/bin/my-server", "--port", "8000"), command)
    assert matches_command(("my-server", "--port", "8000"), command)
    assert matches_command(("/usr/bin/python3", "/usr/bin/my-server", "--port", "8000"), command)
    assert matches_command(("/bin/bash", "-e", "/usr/bin/my-server", "--port", "8000"), command)


@pytest.mark.parametrize(
    "argv",
    [
        ("/usr/bin/my-server", "--port", "8001"),
        ("/usr/bin/my-server", "--port", "8000", "--debug"),
        ("/opt/other/my-server", "--port", "8000"),
        ("bash", "-c", "/usr/bin/my-server", "--port", "8000"),
        ("strace", "/usr/bin/my-server", "--port", "8000"),
        ("grep", "/usr/bin/my-server", "--port", "8000"),
        ("/usr/bin/my-server --port 8000",),
        (),
    ],
)
def test_another_command_line_is_not_the_sites_command(argv: tuple[str, ...]) -> None:
    """A different value, one argument more, another folder or a wrapper is another process."""
    assert not matches_command(argv, ("/usr/bin/my-server", "--port", "8000"))
