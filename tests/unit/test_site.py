"""The site file: what is read, and how each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import ConfigError, UsageError
from opsctl.site import load_site

CANONICAL = """\
hosts:
  pve1:  {ssh: root@192.0.2.6, become: sudo}
  ct129: {pct: 129, via: pve1}
  gpu1:  {ssh: root@192.0.2.7}
  here:  {local: true}
servers:
  glm5:
    host: ct129
    gpus: {host: gpu1, select: all, expect: 8}
    port: 30000
    python: /opt/sglang/bin/python
    model: /models/GLM-5-NVFP4
    args: {tp: 8, speculative-algorithm: EAGLE3}
    env: {SGLANG_ENABLE_SPEC_V2: "1"}
    patches: []
    speculation: {disable_above: 5}
    smoke: {levels: [1, 2, 5, 10]}
  other:
    host: here
    port: 8000
    command: [/usr/bin/my-server, --port, "8000"]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "opsctl.yaml"
    path.write_text(text)
    return path


def test_canonical_example_is_read_whole(tmp_path: Path) -> None:
    """The design's example is the format."""
    site = load_site(write(tmp_path, CANONICAL))

    glm5 = site.server("glm5")
    assert glm5.args == {"tp": 8, "speculative-algorithm": "EAGLE3"}
    assert glm5.speculation is not None
    assert glm5.speculation.disable_above == 5
    assert site.gpu_host_of("glm5") == "gpu1"
    assert site.gpu_host_of("other") == "here"
    assert site.server("other").command == ["/usr/bin/my-server", "--port", "8000"]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("port: 30000", "prot: 30000", 10, "did you mean 'port'?"),
        ("disable_above", "disable_abov", 16, "did you mean 'disable_above'?"),
        ("via: pve1", "via: pve2", 3, "there is no host 'pve2'"),
        ("[1, 2, 5, 10]", "[1, 5, 2]", 17, "levels must ascend"),
        ("    port: 8000", "\tport: 8000", 20, "a tab is used for indentation"),
        ("    port: 8000", "    port 8000", 20, "a colon is missing behind the key"),
        ("    port: 8000", "    host: x\n    port: 8000", 20, "'host' stands twice"),
        ("env: {", "env: {HF_TOKEN: abc, ", 14, "looks like a secret"),
        ("{local: true}", "{local: true, ssh: a}", 5, "exactly one of local, ssh, pct"),
        ("{pct: 129, via: pve1}", "{pct: 129}", 3, "pct and via go together"),
        ("port: 30000", "port: 70000", 10, "less than or equal to 65535"),
        ("{tp: 8,", "{--tp: 8,", 13, "is no flag name"),
        ("    port: 8000", "    port: 8000\n    stop: {grace_s: .inf}", 21, "finite number"),
        ("    port: 8000", "    port: 8000\n    stop: {grace_s: .nan}", 21, "finite number"),
        (
            "    port: 8000",
            "    port: 8000\n    stop: {drain_s: 1.0e+300}",
            21,
            "less than or equal",
        ),
        ("{tp: 8,", "{api-key: abc,", 13, "would show the secret"),
        ("    model: /models/GLM-5-NVFP4\n", "", 7, "'model' is missing"),
        ("host: gpu1", "host: gpu2", 9, "there is no host 'gpu2'"),
        ("hosts:\n", "hsots: {}\nhosts:\n", 1, "did you mean 'hosts'?"),
    ],
)
def test_mistake_is_told_with_file_line_and_mend(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    """Each mistake is one sentence that names file and line; exit code 10."""
    path = write(tmp_path, CANONICAL.replace(old, new, 1))

    with pytest.raises(ConfigError) as caught:
        load_site(path)

    assert caught.value.exit_code == 10
    assert f"{path}:{line}:" in caught.value.message
    assert words in caught.value.message
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("text", "line", "next_step"),
    [
        ("servers:\n  glm5\n    host: here\n", 2, "write `glm5:`"),
        ("servers:\n  glm5:\n    host here\n    port: 1\n", 3, "write `host: ...`"),
        ("servers:\n  glm5:\n    host: here\n    port 1\n", 4, "write `port: ...`"),
        ("hosts:\n  a: {local: true}\n  # a word\nb: c: d\n", 4, "quotes"),
        ("hosts: {a: {local: true}\n", 2, "missing '}'"),
        ("servers:\n  a:\n    port: 1\n      host: b\n", 4, "same column"),
        ("servers:\n  a:\n    port: 1\n   host: b\n", 4, "same column"),
        ("hosts:\n  a: {local: true}\n servers:\n", 3, "same column"),
        ("  hosts:\n    a: b\nservers:\n", 3, "same column"),
        ("levels:\n  - 1\n - 2\n", 3, "same column"),
        ('hosts: "a\nb: c\n', 1, "close it"),
        ("hosts: @x\n", 1, "quotes"),
        ("hosts: *x\n", 1, "opsctl config example"),
    ],
)
def test_a_slip_of_yaml_is_told_in_its_own_line_with_its_mend(
    tmp_path: Path, text: str, line: int, next_step: str
) -> None:
    """The parser complains of the line behind the one that lacks its colon."""
    path = write(tmp_path, text)

    with pytest.raises(ConfigError) as caught:
        load_site(path)

    assert f"{path}:{line}:" in caught.value.message
    assert next_step in (caught.value.next_step or "")


def test_plain_secret_never_shows_in_the_error(tmp_path: Path) -> None:
    """Refusing a secret must not print it."""
    path = write(tmp_path, CANONICAL.replace("env: {", "env: {HF_TOKEN: hunter2, ", 1))

    with pytest.raises(ConfigError) as caught:
        load_site(path)

    assert "hunter2" not in f"{caught.value.message} {caught.value.next_step}"


def test_without_a_file_the_host_is_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero configuration works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    site = load_site()

    assert list(site.hosts) == ["here"]
    assert site.hosts["here"].local


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts: " + "[" * 5000, "nested too deeply"),
        ("hosts: &a [*a]", "nested too deeply"),
        (
            "a0: &a0 [x, x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
            "more than 100,000 values",
        ),
    ],
)
def test_a_file_that_would_take_all_memory_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Nesting and aliases of aliases have an end; it is told, not a traceback."""
    path = tmp_path / "opsctl.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=said):
        load_site(path)


@pytest.mark.parametrize(
    "words", [["--api-key", "sk-1"], ["--hf-token=sk-1"], ["HF_TOKEN=sk-1"], ["--api-k", "sk-1"]]
)
def test_a_secret_in_a_command_is_refused(tmp_path: Path, words: list[str]) -> None:
    """It would stand in ps, in the launch record, the ledger and the host's line of the attempt."""
    path = tmp_path / "opsctl.yaml"
    path.write_text(
        "hosts: {h: {local: true}}\n"
        f"servers: {{one: {{host: h, port: 8000, command: [/bin/x, {', '.join(words)}]}}}}\n"
    )
    with pytest.raises(ConfigError, match="would show the secret") as caught:
        load_site(path)
    assert "sk-1" not in str(caught.value)

    path.write_text(path.read_text().replace("sk-1", "/etc/key.pem"))
    assert load_site(path).servers["one"].command == [
        "/bin/x",
        *(word.replace("sk-1", "/etc/key.pem") for word in words),
    ]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("2001-99-99", "timestamp"),
        ("!!int hunter2", "int"),
        ("!!binary hunter2", "binary"),
        ("!!python/object:os.system hunter2", "python/object"),
    ],
)
def test_a_value_that_yaml_itself_cannot_read_is_told_with_its_line(
    tmp_path: Path, value: str, kind: str
) -> None:
    """A date that is none, a tag of another program: exit 10 with the line, and without the value."""
    path = tmp_path / "opsctl.yaml"
    path.write_text(f"hosts: {{}}\nservers: {value}\n")

    with pytest.raises(
        ConfigError, match=rf"yaml:2: this value cannot be read as {kind}"
    ) as caught:
        load_site(path)

    assert "hunter2" not in str(caught.value)


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """A file that was asked for is never replaced by a default."""
    with pytest.raises(ConfigError, match="no such file"):
        load_site(tmp_path / "absent.yaml")


def test_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    """A typo in a name gets the name that was meant."""
    site = load_site(write(tmp_path, CANONICAL))

    with pytest.raises(UsageError) as caught:
        site.server("glm4")

    assert caught.value.next_step is not None
    assert "glm5" in caught.value.next_step


def test_an_unknown_name_is_answered_with_servers_and_hosts(tmp_path: Path) -> None:
    """Where both are taken, both are named, the near ones first."""
    site = load_site(write(tmp_path, CANONICAL))

    with pytest.raises(UsageError, match="'pve1' is a host, not a server") as host:
        site.server("pve1")
    with pytest.raises(UsageError, match="'other' is a server, not a host") as server:
        site.host("other")
    assert (host.value.next_step, server.value.next_step) == ("its servers: glm5", "its host: here")
    with pytest.raises(UsageError, match="no server or host 'glm'") as caught:
        site.server_or_host("glm")

    step = caught.value.next_step or ""
    assert step.startswith("did you mean 'glm5'? servers: glm5, other; hosts: pve1,")


def test_defaults_fill_what_a_server_leaves_out(tmp_path: Path) -> None:
    """defaults.stop reaches a server without stop, and not one with it."""
    text = CANONICAL + "defaults: {stop: {grace_s: 5}, on_failure: stop}\n"
    site = load_site(
        write(tmp_path, text.replace("port: 8000", "stop: {grace_s: 9}\n    port: 8000"))
    )

    assert site.server("glm5").stop.grace_s == 5
    assert site.server("other").stop.grace_s == 9
    assert site.server("glm5").on_failure == "stop"


def test_secret_is_resolved_only_on_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing variable is an error where it is needed, and names the variable."""
    monkeypatch.delenv("OPS_TEST_KEY", raising=False)
    text = CANONICAL.replace("port: 30000", "port: 30000\n    api_key: {env: OPS_TEST_KEY}")
    reference = load_site(write(tmp_path, text)).server("glm5").api_key
    assert reference is not None

    with pytest.raises(ConfigError, match="OPS_TEST_KEY is not set"):
        reference.resolve()

    monkeypatch.setenv("OPS_TEST_KEY", "s3")
    assert reference.resolve() == "s3"


def test_a_wait_of_no_finite_length_is_refused(tmp_path: Path) -> None:
    """`grace_s: .inf` would wait for ever before KILL."""
    path = tmp_path / "opsctl.yaml"
    path.write_text(
        "hosts: {here: {local: true}}\n"
        "servers: {s: {host: here, port: 1, command: [x], stop: {grace_s: .inf}}}\n"
    )

    with pytest.raises(ConfigError, match="grace_s: input should be a finite number"):
        load_site(path)


@pytest.mark.parametrize("place", ["server", "defaults"])
def test_a_smoke_that_cannot_reach_the_port_is_told_before_anything_runs(
    tmp_path: Path, place: str
) -> None:
    """After the stop it would be too late to find out that only the host reaches its 127.0.0.1."""
    text = CANONICAL.replace("levels: [1, 2, 5, 10]}", "levels: [1, 2, 5, 10], from: here}")
    if place == "defaults":
        text = CANONICAL.replace("    smoke: {levels: [1, 2, 5, 10]}\n", "")
        text += "defaults: {smoke: {from: here}}\n"

    with pytest.raises(ConfigError, match=r"servers\.glm5\.smoke\.from: 127.0.0.1 of ct129 is not"):
        load_site(write(tmp_path, text))

    reached = text.replace("    port: 30000", "    port: 30000\n    address: 192.0.2.9")
    assert load_site(write(tmp_path, reached)).server("glm5").smoke.from_ == "here"
    there = text.replace("from: here", "from: host")
    assert load_site(write(tmp_path, there)).server("glm5").smoke.from_ == "host"
