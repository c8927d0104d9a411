"""Local children, sudo and pct: argv in, bytes out, and what the way itself refuses."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from opsctl.agent.client import connect
from opsctl.agent.read import read_host
from opsctl.errors import ConfigError, TransportError
from opsctl.transport import open_transport
from opsctl.transport.base import Channel
from opsctl.transport.local import LocalTransport
from opsctl.transport.pct import PctTransport, explain_pct
from opsctl.transport.sudo import explain_sudo

pytestmark = pytest.mark.wire


def test_three_mebibytes_on_both_streams_do_not_block() -> None:
    """Both pipes are drained at once."""
    copy = "dd if=/dev/zero bs=1024 count=3072 status=none"

    result = LocalTransport().run(["sh", "-c", f"{copy} & {copy} >&2; wait"], timeout_s=30)

    assert (len(result.stdout), len(result.stderr)) == (3 << 20, 3 << 20)


def test_a_command_past_its_deadline_is_killed() -> None:
    """Here, unlike over ssh, the child is ours and ends."""
    began = time.monotonic()
    with pytest.raises(TransportError, match="was killed"):
        LocalTransport().run(["sleep", "30"], timeout_s=0.2)

    assert time.monotonic() - began < 5


def test_a_missing_program_is_named() -> None:
    """The program's name and the system's reason are in the sentence."""
    with pytest.raises(TransportError, match="no-such-program") as caught:
        LocalTransport().run(["no-such-program"], timeout_s=5)

    assert caught.value.exit_code == 30


def script(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_sudo_that_asks_is_exit_30_with_the_line_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sudo -n never asks; the next step is the sudoers line. Also when an agent is started."""
    script(tmp_path, "sudo", 'echo "sudo: a password is required" >&2; exit 1')
    on_path(monkeypatch, tmp_path)
    transport = LocalTransport("sudo")

    with pytest.raises(TransportError) as caught:
        transport.run(["true"], timeout_s=5)
    with pytest.raises(TransportError) as at_start, connect(transport):
        pass

    assert caught.value.code == at_start.value.code == "sudo-refused"
    assert "NOPASSWD" in (caught.value.next_step or "")


def test_sudo_that_lets_through_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """argv after -- arrives as it is."""
    script(tmp_path, "sudo", '[ "$1 $2" = "-n --" ] || exit 9; shift 2; exec "$@"')
    on_path(monkeypatch, tmp_path)

    result = LocalTransport("sudo").run(["printf", "%s|", "a b", "--"], timeout_s=5)

    assert result.stdout == b"a b|--|"


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        (b"sudo: a password is required\n", "sudo-refused"),
        (b"sudo: sorry, you must have a tty to run sudo\n", "sudo-refused"),
        (b"bob is not in the sudoers file.  This incident will be reported.\n", "sudo-refused"),
        (b"Sorry, user bob may not run sudo on gpu1.\n", "sudo-refused"),
        (b"sudo: Ein Passwort ist notwendig\n", "sudo-refused"),
        (b"bash: line 1: sudo: command not found\n", "sudo-missing"),
    ],
)
def test_what_sudo_says_is_understood(stderr: bytes, code: str) -> None:
    """The words of real sudo 1.8 to 1.9, also translated."""
    error = explain_sudo("h", "bob", 127 if code == "sudo-missing" else 1, stderr)

    assert error is not None
    assert error.code == code


def test_a_failing_command_under_sudo_is_no_refusal() -> None:
    """A program may fail with 1 and speak of sudo; that is its own business."""
    assert explain_sudo("h", "bob", 1, b"cannot open /etc/sudoers\n") is None
    assert explain_sudo("h", "bob", 1, b"sudo: pveversion: command not found\n") is None
    assert explain_sudo("h", "bob", 2, b"sudo: a password is required\n") is None


FAKE_PCT = """
[ "$1" = exec ] || exit 9
shift; vmid=$1; shift
[ "$vmid" = 129 ] || { echo "Configuration file 'nodes/pve1/lxc/$vmid.conf' does not exist" >&2; exit 255; }
[ "$1" = -- ] || exit 9
shift; exec "$@"
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalTransport:
    script(tmp_path, "pct", FAKE_PCT)
    on_path(monkeypatch, tmp_path)
    monkeypatch.setenv("LEAK", "from the node")
    return LocalTransport()


def test_the_nodes_environment_stays_outside(node: LocalTransport) -> None:
    """`pct exec` keeps the caller's environment by default (case 100); ours is explicit."""
    result = PctTransport(129, node, "pve1", "pct").run(["/usr/bin/env"], timeout_s=5)

    names = {line.partition("=")[0] for line in result.stdout.decode().splitlines()}
    assert names == {"PATH", "HOME", "LANG"}


def test_an_agent_comes_up_through_pct(node: LocalTransport) -> None:
    """argv is wrapped once, and an exit code of the program inside stays data."""
    transport = PctTransport(129, node, "pve1", "pct")
    with connect(transport) as agent:
        assert read_host(agent).boot_id
    assert transport.run(["sh", "-c", "exit 3"], timeout_s=5).exit_code == 3


def test_an_unknown_container_is_named_with_its_node(node: LocalTransport) -> None:
    """At a command and at an agent's start alike."""
    transport = PctTransport(130, node, "pve1", "pct")

    with pytest.raises(TransportError) as caught:
        transport.run(["true"], timeout_s=5)
    with pytest.raises(TransportError) as at_start, connect(transport):
        pass

    assert caught.value.code == at_start.value.code == "no-such-container"
    assert "pct:130 via pve1" in caught.value.message
    assert "pct list" in (caught.value.next_step or "")


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("container '129' not running!\n", "container-stopped"),
        (
            "lxc-attach: 129: attach.c: lxc_attach: 1095 Failed to get init pid\n",
            "container-stopped",
        ),
        ("Configuration file 'nodes/pve1/lxc/129.conf' does not exist\n", "no-such-container"),
        (
            "400 Parameter verification failed.\nvmid: type check ('integer') failed - got 'x'\n",
            "no-such-container",
        ),
        ("bash: line 1: pct: command not found\n", "no-pct"),
        ("sh: 1: /usr/sbin/pct: not found\n", "no-pct"),
        ("bash: line 1: /usr/sbin/pct: No such file or directory\n", "no-pct"),
        ("sudo: /usr/sbin/pct: command not found\n", "no-pct"),
        ("please run as root\n", "pct-needs-root"),
        (
            'lxc-attach: 129: attach.c: lxc_attach_run_command: 1503 No such file - Failed to exec "x"',
            "no-env",
        ),
    ],
)
def test_what_pct_says_is_understood(stderr: str, code: str) -> None:
    """The messages of pct, lxc-attach and the node's shell (cases 099, 102)."""
    error = explain_pct("pct:129", 129, stderr)

    assert error is not None
    assert (error.code, error.exit_code) == (code, 30)
    assert error.next_step


def test_empty_output_with_exit_1_is_data(node: LocalTransport) -> None:
    """grep that finds nothing is no failure of pct (case 104)."""
    result = PctTransport(129, node, pct="pct").run(["grep", "x", "/dev/null"], timeout_s=5)

    assert (result.exit_code, result.stdout) == (1, b"")
    assert explain_pct("pct:129", 129, "") is None


def test_a_host_entry_becomes_its_transport() -> None:
    """The three forms of the site file, and a node that nobody described."""
    node = open_transport({"ssh": "root@192.0.2.6", "become": "sudo"})
    container = open_transport({"pct": 129, "via": "pve1"}, {"pve1": node}.__getitem__)

    assert isinstance(container, PctTransport)
    assert (container.name, container.via) == ("pct:129 via pve1", node)
    assert open_transport({"local": True}).name == "local"
    assert open_transport({"ssh": "root@[::1]:22"}).name == "ssh:root@::1:22"
    with pytest.raises(ConfigError):
        open_transport({"pct": 129, "via": "pve9"})


def test_close_under_a_read_of_another_thread_is_the_end() -> None:
    """A run that ends while a watch still reads leaves no thread with an error."""
    results: list[bytes | Exception | None] = []

    def read(channel: Channel) -> None:
        try:
            while (data := channel.read(0.05)) != b"":
                results.append(data)
            results.append(data)
        except (OSError, ValueError) as error:
            results.append(error)

    for _ in range(5):
        channel = LocalTransport().open(["cat"])
        thread = threading.Thread(target=read, args=(channel,))
        thread.start()
        channel.close()
        thread.join(10)
        assert results[-1] == b""
