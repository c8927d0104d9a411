"""A running server as an entry: what proves it, what is taken over, what never is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.domain.adopt import (
    KEPT_PREFIXES,
    Running,
    Started,
    find_running,
    port_of,
    refuse_unproven,
    server_of,
)
from opsctl.domain.adopt_entry import Entry, make_entry, name_for, read_flags
from opsctl.domain.launch import flags_of
from opsctl.domain.launch_line import read_launch_line
from opsctl.errors import CouldNotTell, SafetyRefusal
from opsctl.facts import Process, ProcessId

LINE = (
    "/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/GLM-5-NVFP4",
    "--port", "30000", "--tp", "8", "--mem-fraction-static", "0.90", "--trust-remote-code",
)  # fmt: skip


def process(
    pid: int, *argv: str, ppid: int = 1, exe: str | None = "/usr/bin/python3.11"
) -> Process:
    return Process(
        ProcessId("b", pid, 100 + pid), ppid, "S", 0, "root", "python3", argv, "/x", (pid,), "pid:[1]",
        exe, pid, 60.0,
    )  # fmt: skip


def tree() -> list[Process]:
    return [
        process(1, "/sbin/init", ppid=0, exe="/sbin/init"),
        process(50, *LINE),
        process(51, *LINE, ppid=50),  # forked, and not titled yet
        process(52, "sglang::scheduler_TP0", ppid=50),
        process(53, "sglang::detokenizer", ppid=50),
        process(60, "vim", "sglang.launch_server", exe="/usr/bin/vim"),
        process(61, *LINE, exe="/usr/bin/bash"),  # argv can be written by anyone
    ]


def test_the_topmost_process_of_a_tree_is_the_server() -> None:
    """Forked workers still show their parent's command line; a shell that calls itself python is none."""
    (found,) = find_running(tree())

    assert (found.pid, found.pids) == (50, (50, 51, 52, 53))
    assert found.workers == ("sglang::scheduler_TP0", "sglang::detokenizer")


@pytest.mark.parametrize("pid", [50, 51, 53])
def test_a_worker_means_its_server(pid: int) -> None:
    """nvidia-smi names schedulers, so any pid of the tree will do."""
    assert server_of(pid, tree()).pid == 50


@pytest.mark.parametrize(
    ("pid", "code"),
    [(1, "not-a-server"), (60, "not-a-server"), (61, "not-a-server"), (9, "no-process")],
)
def test_anything_else_is_refused_with_the_servers_that_there_are(pid: int, code: str) -> None:
    """The refusal helps: it names what the pid is, and the servers."""
    with pytest.raises(SafetyRefusal) as caught:
        server_of(pid, tree())

    assert caught.value.code == code
    assert "pid 50 of root: port 30000" in (caught.value.next_step or "")


def test_a_command_line_alone_proves_nothing() -> None:
    """Without a worker and without a port it may be ending, or be a wrapper."""
    (found,) = find_running([process(50, *LINE)])

    with pytest.raises(CouldNotTell):
        refuse_unproven(found, ())
    refuse_unproven(found, (30000,))


def test_port_of_a_config_file_is_the_only_one_that_it_listens_on() -> None:
    """Two ports are not guessed between."""
    argv = ("python3", "-m", "sglang.launch_server", "--config", "/c.yaml")
    (found,) = find_running([process(50, *argv)])

    assert port_of(found, (31000,), None) == 31000
    assert port_of(found, (1, 2), 2) == 2
    with pytest.raises(CouldNotTell):
        port_of(found, (31000, 41000), None)
    with pytest.raises(CouldNotTell):
        port_of(found, None, None)
    with pytest.raises(CouldNotTell):
        port_of(found, (), 99999)


def started(**changes: object) -> Started:
    plain = Started("/opt/sglang/bin/python", "/srv", "/data/log/x.log", {}, (), ())
    return replace(plain, **changes)  # type: ignore[arg-type]


def entry(argv: tuple[str, ...] = LINE, start: Started | None = None, **changes: object) -> Entry:
    (found,) = find_running([process(50, *argv)])
    given: dict[str, object] = {
        "port": 30000, "model": "/m", "uuids": ("GPU-1",), "gpu_state": "ok",
        "user": None, "version": None, "when": "now",
    }  # fmt: skip
    return make_entry("glm5", "here", found, start or started(), **{**given, **changes})  # type: ignore[arg-type]


def test_an_entry_has_what_the_process_was_started_with() -> None:
    """Numbers are numbers where they read back the same; a bare flag is true."""
    made = entry()

    assert made.values["args"] == {
        "tp": 8,
        "mem-fraction-static": "0.90",
        "trust-remote-code": True,
    }
    assert made.values["gpus"] == {"select": ["GPU-1"], "expect": 1}
    assert (made.values["cwd"], made.values["log_dir"]) == ("/srv", "/data/log")
    assert not made.findings


@pytest.mark.parametrize(
    "flag",
    [
        "--api-key",
        "--api-k",
        "--admin-api-key",
        "--ssl-keyfile-password",
        "--ssl-keyfile-pas",
        "--hf-token",
    ],
)
@pytest.mark.parametrize("joined", [True, False])
def test_a_secret_of_the_command_line_is_left_out_and_told(flag: str, joined: bool) -> None:
    """Neither the entry, its comments nor the findings hold it."""
    words = (f"{flag}=s3cret",) if joined else (flag, "s3cret")

    made = entry((*LINE, *words))

    assert "s3cret" not in repr(made)
    assert [f.code for f in made.findings] == ["secret-flag"]
    assert ("api_key" in made.values) == flag.startswith("--api-k")


def test_a_flag_whose_value_looks_like_a_secret_is_left_out() -> None:
    """A URL with a password in it is one, whatever its flag is called."""
    made = entry((*LINE, "--trace-endpoint", "https://me:hunter2@example.org"))

    assert "hunter2" not in repr(made)
    assert [f.code for f in made.findings] == ["flag-left-out"]


def test_secrets_of_the_environment_are_references() -> None:
    """The agent tells only their names; the finding says how to fill them."""
    made = entry(
        start=started(env={"NCCL_DEBUG": "INFO"}, secrets=("HF_TOKEN",), other_secrets=("X_KEY",))
    )

    assert made.values["env"] == {"NCCL_DEBUG": "INFO", "HF_TOKEN": {"env": "HF_TOKEN"}}
    assert [f.code for f in made.findings] == ["secret-reference", "secrets-left"]


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/opt/sglang/bin:/usr/local/bin:/usr/bin:/bin", False),
        ("/opt/cuda-13/bin:/usr/bin", True),
        ("", False),
    ],
)
def test_path_is_kept_only_where_the_launch_would_lack_a_folder(path: str, kept: bool) -> None:
    """The launch puts the interpreter's folder and the system's in front by itself."""
    assert ("PATH" in entry(start=started(env={"PATH": path})).values.get("env", {})) == kept


def test_what_cannot_be_known_is_said() -> None:
    """GPUs that NVML does not name and an environment that is not ours are findings, not guesses."""
    made = entry(uuids=(), start=started(env=None))

    assert {f.code for f in made.findings} == {"gpus-not-known", "environment-unknown"}
    assert "gpus" not in made.values
    assert not entry(uuids=(), gpu_state="no-library").findings


def test_a_unit_that_would_start_it_again_is_told() -> None:
    """Stopping a server of a unit with Restart= only starts the next one."""
    root = replace(process(50, *LINE), cgroup="/system.slice/sglang.service")
    line = read_launch_line(LINE)
    assert line is not None
    found = Running(root, line, (), (50,), None)

    made = make_entry(
        "a", "here", found, started(),
        port=1, model="m", uuids=["GPU-1"], gpu_state="ok", user=None, version=None, when="now",
    )  # fmt: skip

    assert [f.code for f in made.findings] == ["managed-by-unit"]


@pytest.mark.parametrize(
    ("unit", "other", "code"),
    [
        ("ssh.service", "/usr/sbin/sshd", "login-unit"),
        ("ssh@3-10.0.0.1:22.service", None, "login-unit"),  # its sshd has ended
        ("door.service", "/usr/sbin/sshd", "login-unit"),
        ("container-getty@1.service", None, "login-unit"),
        ("jobs.service", "/usr/bin/worker", "shared-unit"),
        ("sglang.service", None, "managed-by-unit"),
    ],
)
def test_only_a_unit_of_its_own_is_said_to_be_disabled(
    unit: str, other: str | None, code: str
) -> None:
    """Who disables the ssh.service that a login started the server in has no way in any more."""
    cgroup = f"/system.slice/{unit}"
    around = replace(process(9, other or ""), exe=other, cgroup=cgroup if other else "/")
    (found,) = find_running([around, replace(process(50, *LINE), cgroup=cgroup)])

    made = make_entry(
        "a", "here", found, started(),
        port=1, model="m", uuids=["GPU-1"], gpu_state="ok", user=None, version=None, when="now",
    )  # fmt: skip

    (told,) = made.findings
    assert told.code == code
    assert ("disable" in f"{told.text} {told.next}") == (code == "managed-by-unit")
    assert ("start it again" in told.text) == (code != "login-unit")


def test_a_word_without_a_flag_is_not_guessed() -> None:
    """An entry that would launch something else is not made."""
    with pytest.raises(CouldNotTell):
        read_flags(("python", "-m", "sglang.launch_server", "/models/x"))
    with pytest.raises(CouldNotTell):
        read_flags((*LINE, "--a=b", "c"))


_values = st.lists(
    st.one_of(
        st.integers(-5, 99999).map(str),
        st.floats(0, 2, allow_nan=False).map(str),
        st.from_regex(r"[A-Za-z/{\"][A-Za-z0-9/._:{}\", =\[\]]{0,20}", fullmatch=True),
        st.sampled_from(["0.90", "1e3", "true", "null", "", "08", "+5"]),
    ),
    max_size=3,
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,15}", fullmatch=True), _values, max_size=6))
def test_flags_read_from_a_command_line_make_the_same_command_line(
    flags: dict[str, list[str]],
) -> None:
    """What is adopted launches what ran: reading and writing flags are each other's reverse."""
    words = [word for name, values in flags.items() for word in (f"--{name}", *values)]

    read, twice = read_flags(("python", "-m", "sglang.launch_server", *words))

    assert flags_of(read) == words
    assert not twice


def test_names_are_free_and_readable() -> None:
    """The served name goes first, then the model's last part; a taken name gets the port."""
    line = read_launch_line(LINE)
    assert line is not None

    assert name_for(line, "/models/GLM-5-NVFP4", 30000, ()) == "glm-5-nvfp4"
    assert name_for(line, "/models/GLM-5-NVFP4", 30000, ["glm-5-nvfp4"]) == "glm-5-nvfp4-30000"
    assert name_for(replace(line, served_name="GLM 5!"), "/m", 1, ()) == "glm-5"
    assert name_for(line, "/models/8", 30000, ()) == "server-8"


def test_no_kept_prefix_is_empty() -> None:
    """An empty prefix would take the whole environment over."""
    assert all(len(prefix) > 2 for prefix in KEPT_PREFIXES)
