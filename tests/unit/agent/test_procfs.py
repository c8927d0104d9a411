"""Parsers of /proc, and the rows of a scan as dataclasses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.ops import log_read, procfs
from opsctl.agent.read import processes_of

STAT = b"22015 (a b) c) R 21775 22015 22015 0 -1 4194304 300 0 0 0 1 0 0 0 20 0 1 0 990001 10000000 2000"


def test_stat_is_cut_at_the_last_bracket() -> None:
    """A title with blanks and ")" must not shift the fields (case 095)."""
    stat = procfs.parse_stat(STAT)

    assert stat is not None
    assert (stat.comm, stat.state, stat.ppid, stat.session) == ("a b) c", "R", 21775, 22015)
    assert (stat.start_ticks, stat.threads, stat.kernel_thread) == (990001, 1, False)


def test_damaged_stat_is_no_process() -> None:
    """A short or empty line gives None, never a guess."""
    assert [procfs.parse_stat(bad) for bad in (b"", b"1 (x", b"1 (x) R 2 3")] == [None] * 3


@given(st.binary(min_size=0, max_size=15).filter(lambda name: b"\0" not in name))
def test_no_name_can_shift_the_fields_of_stat(name: bytes) -> None:
    """Whatever bytes a process is named, its start time is read right."""
    line = b"7 (" + name + b") S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n"

    parsed = procfs.parse_stat(line)

    assert parsed is not None
    assert parsed.comm.encode("utf-8", "surrogateescape") == name
    assert parsed.start_ticks == 4711


def test_status_gives_effective_uid_and_all_pids() -> None:
    """NSpid lists the pid of each namespace, outermost first."""
    status = b"Name:\tpython\nUid:\t0\t1000\t0\t0\nNSpid:\t377\t1\nThreads:\t1\n"

    assert procfs.parse_status(status) == (1000, (377, 1))
    assert procfs.parse_status(b"Name:\tx\n") == (None, ())


def test_cgroup_prefers_the_unified_path() -> None:
    """On a v1 or mixed host the longest path says most; the unified one wins when it says something."""
    unified = b"0::/lxc/129/ns/init.scope\n"
    mixed = b"12:freezer:/lxc/129\n1:name=systemd:/lxc/129/ns/init.scope\n0::/\n"

    assert procfs.parse_cgroup(unified) == "/lxc/129/ns/init.scope"
    assert procfs.parse_cgroup(mixed) == "/lxc/129/ns/init.scope"
    assert procfs.parse_cgroup(b"") == ""


def test_unit_is_the_innermost_of_the_path() -> None:
    """A server's unit is named by its cgroup; a slice is no unit of a server."""
    assert procfs.unit_of("/system.slice/opsctl-7.service") == "opsctl-7.service"
    assert procfs.unit_of("/user.slice/user-0.slice/session-3.scope") == "session-3.scope"
    assert procfs.unit_of("/system.slice") is None


def test_argv_keeps_foreign_bytes_and_titles() -> None:
    """Latin-1 arguments survive a round trip; a title written over argv is one element."""
    argv = procfs.parse_argv(b"caf\xe9\0--x\0")

    assert argv[0].encode("utf-8", "surrogateescape") == b"caf\xe9"
    assert procfs.parse_argv(b"sglang::scheduler_TP0\0\0\0") == ["sglang::scheduler_TP0"]
    assert procfs.parse_argv(b"") == []
    assert procfs.parse_argv(b"a\0\0b\0") == ["a", "", "b"]


def test_rows_become_processes() -> None:
    """Numbers into the table of strings are resolved, and age counts from the start ticks."""
    facts = {
        "boot_id": "b",
        "clock_ticks": 100,
        "uptime_s": 50.0,
        "strings": ["/lxc/129/ns", "pid:[1]", "/usr/bin/python3"],
        "users": {"0": "root"},
        "rows": [[377, 1, "S", 4000, 377, 0, "python3", ["python3"], 0, [377, 9], 1, 2]],
    }

    (process,) = processes_of(facts)

    assert (process.pid, process.ns_pids, process.cgroup) == (377, (377, 9), "/lxc/129/ns")
    assert (process.exe, process.user, process.age_s) == ("/usr/bin/python3", "root", 10.0)


def test_a_command_line_that_is_kept_hides_its_secrets() -> None:
    """Evidence, leftovers: what the host sends of a stranger's command line goes into ledgers."""
    argv = [
        "python3",
        "--api-key",
        "sk-1",
        "HF_TOKEN=hf-2",
        "--api=sk-3",
        "--port",
        "8000",
        "--hf-token",
    ]

    shown = procfs.command_line(argv, 400)

    assert shown == "python3 --api-key *** HF_TOKEN=*** --api=*** --port 8000 --hf-token"


@given(
    st.sampled_from(["api_key", "admin_api_key", "ssl_keyfile_password"]),
    st.text(max_size=20).filter(lambda text: "\n" not in text),
)
def test_a_key_that_sglang_prints_is_hidden_whatever_it_is(name: str, key: str) -> None:
    """`server_args=ServerArgs(..., api_key='sk-1', ...)` is a dataclass's repr: quotes may be escaped."""
    line = f"[TIME] server_args=ServerArgs(port=30000, {name}={key!r}, tp_size=8, host=None)"

    shown = log_read.without_secrets(line)

    hidden = f"{name}='***'"
    assert shown == f"[TIME] server_args=ServerArgs(port=30000, {hidden}, tp_size=8, host=None)"
    assert log_read.without_secrets("api_key=None, x=1") == "api_key=None, x=1"
