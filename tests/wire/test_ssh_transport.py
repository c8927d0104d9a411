"""SSH against a real sshd: what works, and each way in which it does not, in one sentence."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opsctl.agent.client import connect
from opsctl.errors import TransportError
from opsctl.transport.ssh import SshTransport
from opsctl.transport.ssh_connect import Target, parse_target
from tests.wire.sshd import Sshd, find_sshd, free_port, make_key, running_sshd

pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(find_sshd() is None, reason="no sshd is installed"),
    pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen is installed"),
]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path) as sshd:
        sshd.trust()
        yield sshd


def failure(transport: SshTransport) -> TransportError:
    """Return the error of a command that must not run."""
    with pytest.raises(TransportError) as caught:
        transport.run(["true"], timeout_s=20)
    transport.close()
    return caught.value


def test_argv_arrives_word_by_word(box: Sshd) -> None:
    """Blanks, quotes, dollars and newlines reach the program as they are (case 103)."""
    words = ["a b", "c'd", 'e"f', "$HOME", "g\nh", "", "*"]

    result = box.transport().run(["printf", "%s|", *words], timeout_s=10)

    assert result.stdout.decode() == "".join(f"{word}|" for word in words)


def test_exit_code_and_streams_stay_apart(box: Sshd) -> None:
    """A failing command is data, not an error of the way."""
    result = box.transport().run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10)

    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


def test_three_mebibytes_on_both_streams_do_not_block(box: Sshd) -> None:
    """Both streams share one window; draining only one blocks beyond 2 MiB (case 105)."""
    copy = "dd if=/dev/zero bs=1024 count=3072 status=none"

    result = box.transport().run(["sh", "-c", f"{copy} & {copy} >&2; wait"], timeout_s=30)

    assert (len(result.stdout), len(result.stderr)) == (3 << 20, 3 << 20)


def test_a_command_past_its_deadline_is_said_to_run_on(box: Sshd) -> None:
    """A local time-out never stops the remote command, so the error must not claim that."""
    with pytest.raises(TransportError, match="may still be running") as caught:
        box.transport().run(["sleep", "5"], timeout_s=0.3)

    assert caught.value.code == "command-timeout"


def test_a_command_killed_by_a_signal_has_no_exit_code(box: Sshd) -> None:
    """sshd then reports a signal, and no code is made up for it."""
    script = "case $(cat /proc/$PPID/comm) in sshd*) ;; *) kill -9 $PPID ;; esac; kill -9 $$"
    result = box.transport().run(
        ["sh", "-c", script], timeout_s=10
    )  # a login shell may stay between

    assert result.exit_code is None


def test_unknown_host_key_is_refused_with_the_line_that_adds_it(box: Sshd) -> None:
    """Nobody vouched for the key: the fingerprint is shown, and the command in the next step works."""
    box.known_hosts.unlink()

    error = failure(box.transport())

    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(box.folder / "host_key.pub")], capture_output=True, text=True
    ).stdout.split()[1]
    assert (error.code, error.exit_code) == ("host-key-unknown", 30)
    assert shown in error.message
    assert error.next_step is not None
    subprocess.run(["sh", "-c", error.next_step.rpartition("then: ")[2]], check=True, timeout=5)
    assert box.transport().run(["true"], timeout_s=10).exit_code == 0


def test_changed_host_key_is_refused(box: Sshd) -> None:
    """A key that differs from the known one may be somebody in between."""
    make_key(box.folder / "other_key")
    kind, key = (box.folder / "other_key.pub").read_text().split()[:2]
    box.known_hosts.write_text(f"[127.0.0.1]:{box.port} {kind} {key}\n")

    error = failure(box.transport())

    assert error.code == "host-key-changed"
    assert error.message.count("SHA256:") == 2
    assert f"ssh-keygen -R '[127.0.0.1]:{box.port}'" in (error.next_step or "")


@pytest.mark.parametrize("order", [("known", "revoked"), ("revoked", "known")])
def test_a_revoked_host_key_is_refused(box: Sshd, order: tuple[str, str]) -> None:
    """known_hosts says @revoked for it, and also knows it: OpenSSH refuses that, and so do we."""
    kind, key = (box.folder / "host_key.pub").read_text().split()[:2]
    lines = {
        "known": f"[127.0.0.1]:{box.port} {kind} {key}\n",
        "revoked": f"@revoked * {kind} {key} stolen in May\n",
    }
    box.known_hosts.write_text("".join(lines[one] for one in order))

    error = failure(box.transport())

    assert (error.code, error.exit_code) == ("host-key-revoked", 30)
    assert "SHA256:" in error.message


# name: [127.0.0.1]:port; old, new: keys of one kind, the host shows new; ecdsa: a key of another kind
ROTATED = {
    "the old and the new key": (["{name} {old}", "{name} {new}"], "ok"),
    "the new and the old key": (["{name} {new}", "{name} {old}"], "ok"),
    "another kind first": (["{name} {ecdsa}", "{name} {new}"], "ok"),
    "the name without its port": (["127.0.0.1 {old}", "127.0.0.1 {new}"], "ok"),
    "a pattern": (["[127.0.*.1]:* {old}", "[127.0.?.1]:*,other {new}"], "ok"),
    "blanks and a comment": (["  {name}   {old}", "\tother,{name}  {new}  since May"], "ok"),
    "only the old key": (["{name} {old}"], "host-key-changed"),
    "only another kind": (["{name} {ecdsa}"], "host-key-changed"),
    "the old key, and the new one without the port": (
        ["{name} {old}", "127.0.0.1 {new}"],
        "host-key-changed",
    ),
    "the new key of another host": (["{name} {old}", "[127.0.0.2]:1 {new}"], "host-key-changed"),
    "excluded by a pattern": (["*,!{name},!127.0.0.1 {new}"], "host-key-unknown"),
    "another host alone": (["127.0.0.2 {new}"], "host-key-unknown"),
    "the new key, but revoked": (
        ["{name} {old}", "{name} {new}", "@revoked {name} {new}"],
        "host-key-revoked",
    ),
}


HASHED = ["the old and the new key", "the name without its port", "only the old key"]


@pytest.mark.parametrize(
    ("case", "how"),
    [(case, "plain") for case in ROTATED] + [(case, "hashed") for case in HASHED],
)
def test_a_host_key_is_accepted_where_openssh_accepts_it(box: Sshd, case: str, how: str) -> None:
    """Of several listed keys of one kind any one will do, as while a host's key is changed; no other."""
    lines, verdict = ROTATED[case]
    make_key(box.folder / "old")
    make_key(box.folder / "ecdsa", "ecdsa")
    public = {"new": "host_key.pub", "old": "old.pub", "ecdsa": "ecdsa.pub"}
    keys = {
        name: " ".join((box.folder / file).read_text().split()[:2]) for name, file in public.items()
    }
    text = "".join(f"{line}\n" for line in lines)
    box.known_hosts.write_text(text.format(name=f"[127.0.0.1]:{box.port}", **keys))
    if how == "hashed":
        argv = ["ssh-keygen", "-q", "-H", "-f", str(box.known_hosts)]
        subprocess.run(argv, check=True, timeout=10, capture_output=True)
        assert "127.0.0.1" not in box.known_hosts.read_text()

    strict = ["-o", "StrictHostKeyChecking=yes", "-o", "GlobalKnownHostsFile=none"]
    theirs = subprocess.run(
        ["ssh", "-F", str(box.config), *strict, "box", "true"], capture_output=True, timeout=10
    )
    assert (theirs.returncode == 0) is (verdict == "ok"), theirs.stderr
    if verdict == "ok":
        assert box.transport().run(["true"], timeout_s=10).exit_code == 0
    else:
        assert failure(box.transport()).code == verdict


def test_lines_of_known_hosts_that_say_nothing_to_us_do_no_harm(box: Sshd) -> None:
    """A certificate authority, a kind of key of tomorrow, a damaged line, a comment: ssh goes on, too."""
    plain = box.known_hosts.read_text()
    kind, key = (box.folder / "host_key.pub").read_text().split()[:2]
    odd = [
        f"@cert-authority *.example.com {kind} {key} the CA",
        f"@revoked * {kind} not-base64",
        "example.com ssh-tomorrow AAAA",
        "example.com ssh-ed25519 not-base64 x",
        "example.com",
        "# a comment",
        "",
    ]
    box.known_hosts.write_text("\n".join([*odd, plain]))

    assert box.transport().run(["true"], timeout_s=10).exit_code == 0


def test_a_host_key_alias_is_looked_up_instead_of_the_address(box: Sshd) -> None:
    """ssh_config's HostKeyAlias names the key; another key under that name is a changed one."""
    kind, key = (box.folder / "host_key.pub").read_text().split()[:2]
    box.known_hosts.write_text(f"node-7 {kind} {key}\n")
    box.write_config("HostKeyAlias node-7")
    assert box.transport().run(["true"], timeout_s=10).exit_code == 0

    kind, key = (box.folder / "user_key.pub").read_text().split()[:2]
    box.known_hosts.write_text(f"node-7 {kind} {key}\n")
    assert failure(box.transport()).code == "host-key-changed"

    box.known_hosts.write_text("")
    unknown = failure(box.transport())
    assert unknown.code == "host-key-unknown"
    assert "echo 'node-7 ssh-ed25519" in (unknown.next_step or "")


def test_a_connection_that_breaks_off_is_tried_again(box: Sshd) -> None:
    """A starting or overloaded sshd drops the first connections; nothing has run yet, so try again."""
    with dropping_relay(box.port, drop=2) as (port, accepted):
        kind, key = (box.folder / "host_key.pub").read_text().split()[:2]
        box.known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
        box.write_config(port=port)

        assert box.transport().run(["true"], timeout_s=10).exit_code == 0
        assert len(accepted) == 3


def test_a_host_that_always_breaks_off_is_told_after_three_tries(box: Sshd) -> None:
    """Tried three times, then the last reason."""
    with dropping_relay(box.port, drop=99) as (port, accepted):
        box.write_config(port=port)

        assert failure(box.transport()).exit_code == 30
        assert len(accepted) == 3


def test_a_refused_key_is_not_tried_again(box: Sshd) -> None:
    """Only what broke off is repeated: three refused logins lock accounts."""
    with dropping_relay(box.port, drop=0) as (port, accepted):
        kind, key = (box.folder / "host_key.pub").read_text().split()[:2]
        box.known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
        box.write_config(port=port, identity="stranger_key")

        assert failure(box.transport()).code == "auth-refused"
        assert len(accepted) == 1


@contextmanager
def dropping_relay(target: int, drop: int) -> Iterator[tuple[int, list[int]]]:
    """Accept connections, close the first ``drop`` at once, relay the rest; lists what it accepted."""
    accepted: list[int] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def accept(server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            accepted.append(near.fileno())
            if len(accepted) <= drop:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", target))
            opened.extend((near, far))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    opened: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield server.getsockname()[1], accepted
        for end in opened:
            end.close()


def test_refused_key_names_the_user_and_the_key(box: Sshd) -> None:
    """The key was offered and not accepted."""
    box.write_config(identity="stranger_key")

    error = failure(box.transport())

    assert error.code == "auth-refused"
    assert "stranger_key" in error.message
    assert "ssh-copy-id" in (error.next_step or "")


def test_encrypted_key_asks_for_the_agent(box: Sshd) -> None:
    """There is nobody to type a passphrase; ssh-add is the way."""
    key = box.folder / "user_key"
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True, timeout=20
    )

    error = failure(box.transport())

    assert error.code == "key-encrypted"


def test_closed_port_is_refused_at_once(box: Sshd) -> None:
    """Nothing listens: said within a second, not after retries."""
    box.write_config(port=free_port())
    began = time.monotonic()

    error = failure(box.transport())

    assert error.code == "refused"
    assert time.monotonic() - began < 2


def test_wrong_host_and_wrong_name_are_told_apart(box: Sshd) -> None:
    """127.0.0.2 has nothing on this port; a name that does not exist is another mistake."""
    config = str(box.config)
    wrong_address = Target("127.0.0.2", port=box.port, ssh_config_path=config)
    wrong_name = Target("no-such-host.invalid", ssh_config_path=config)

    assert failure(SshTransport(wrong_address)).code == "refused"
    assert failure(SshTransport(wrong_name)).code == "unknown-name"


def test_host_that_accepts_and_says_nothing_ends_in_time(box: Sshd) -> None:
    """A hung sshd accepts connections in the kernel and never greets."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        box.write_config(port=silent.getsockname()[1])
        began = time.monotonic()

        error = failure(box.transport(timeout_s=0.3))

    assert error.exit_code == 30
    assert time.monotonic() - began < 8


def test_jump_host_is_used_and_named(box: Sshd) -> None:
    """ProxyJump goes through the hop, and an unreachable target is reported as the hop's trouble."""
    box.write_config("ProxyJump hop")
    assert box.transport().run(["true"], timeout_s=10).exit_code == 0

    box.write_config("ProxyJump hop", port=free_port())
    error = failure(box.transport())

    assert error.code == "jump-refused"
    assert "127.0.0.1" in error.message


def session_of(transport: SshTransport) -> int:
    """Return the pid of the sshd that serves this connection; a login shell may stand below it."""
    climb = "p=$PPID; until grep -q ^sshd /proc/$p/comm; do"
    climb += " set -- $(sed 's/.*) //' /proc/$p/stat); p=$2; done; echo $p"
    return int(transport.run(["sh", "-c", climb], timeout_s=10).stdout)


def test_connection_cut_while_a_command_runs_is_no_result(box: Sshd) -> None:
    """The session's sshd dies: how the command ended is not known, and is said so."""
    transport = box.transport()
    session = session_of(transport)

    with pytest.raises(TransportError) as caught:
        transport.run(["sh", "-c", f"kill -9 {session}; sleep 5"], timeout_s=10)

    assert caught.value.code == "cut"
    assert "is not known" in caught.value.message


def test_a_full_sshd_names_max_sessions(tmp_path: Path) -> None:
    """sshd's MaxSessions refuses the next channel on the same connection."""
    with running_sshd(tmp_path, "MaxSessions 1") as box:
        box.trust()
        transport = box.transport()
        first = transport.open(["sleep", "5"])

        with pytest.raises(TransportError) as caught:
            transport.open(["true"])

        first.close()
        transport.close()
    assert "MaxSessions" in (caught.value.next_step or "")


def test_agent_works_over_ssh(box: Sshd) -> None:
    """One channel, many operations, and the agent is gone afterwards."""
    transport = box.transport()
    with connect(transport) as agent:
        facts = agent.call("process.scan")
        pid = agent.hello["pid"]
        assert pid in [row[0] for row in facts["rows"]]
    transport.close()

    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_login_script_that_prints_does_no_harm(tmp_path: Path) -> None:
    """Banner and rc output come before the marker and are ignored."""
    rc = tmp_path / "rc"
    rc.write_text("#!/bin/sh\necho welcome to this host\nprintf 'no newline'\n")
    force = f'ForceCommand sh {rc}; eval "$SSH_ORIGINAL_COMMAND"'
    with running_sshd(tmp_path, force) as box:
        box.trust()
        transport = box.transport()
        with connect(transport) as agent:
            assert agent.call("agent.noop", {"x": 1}) == {"x": 1}
        transport.close()


def test_connection_cut_under_an_agent_is_a_broken_way(box: Sshd) -> None:
    """The agent did not end by itself, so it is the transport's error."""
    transport = box.transport()
    session = session_of(transport)
    with connect(transport) as agent:
        os.kill(session, signal.SIGKILL)

        with pytest.raises(TransportError):
            agent.call("agent.noop", timeout_s=10)
    transport.close()


def test_targets_are_read_in_all_their_forms() -> None:
    """User and port are optional; an IPv6 address takes brackets for a port."""
    parsed = [parse_target(text) for text in ("h", "u@h:2200", "root@[::1]:22", "::1", "ssh://u@h")]

    assert [(one.user, one.host, one.port) for one in parsed] == [
        (None, "h", None),
        ("u", "h", 2200),
        ("root", "::1", 22),
        (None, "::1", None),
        ("u", "h", None),
    ]
    with pytest.raises(TransportError):
        parse_target("root@h:ssh")
