"""Which keys known_hosts lists for a host."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from opsctl.transport.ssh_known_hosts import read


def key(kind: str, number: int) -> str:
    """Return a key's ``kind base64``; its bytes begin with the kind, as all of SSH's do."""
    blob = len(kind).to_bytes(4, "big") + kind.encode() + bytes([number]) * 8
    return f"{kind} {base64.b64encode(blob).decode()}"


ONE, TWO = key("ssh-ed25519", 1), key("ssh-ed25519", 2)


@pytest.mark.parametrize(
    ("line", "name", "is_listed"),
    [
        (f"gpu1,192.0.2.7 {ONE} comment", "192.0.2.7", True),
        (f"GPU1 {ONE}", "gpu1", True),
        (f"gpu1 {ONE}", "GPU1", True),
        (f"gpu1 {ONE}", "gpu", False),
        (f"gpu1 {ONE}", "[gpu1]:2222", False),
        (f"[gpu1]:2222 {ONE}", "[gpu1]:2222", True),
        (f"gpu? {ONE}", "gpu1", True),
        (f"gpu? {ONE}", "gpu12", False),
        (f"*.example {ONE}", "gpu1.example", True),
        (f"*.example {ONE}", "gpu1xexample", False),
        (f"*,!gpu1 {ONE}", "gpu1", False),
        (f"!gpu1,* {ONE}", "gpu1", False),
        (f"!gpu2 {ONE}", "gpu1", False),
        (f"[gpu?]:* {ONE}", "[gpu1]:22", True),
        (f"@cert-authority gpu1 {ONE}", "gpu1", False),
        (f"@tomorrow gpu1 {ONE}", "gpu1", False),
        (f"# gpu1 {ONE}", "gpu1", False),
        ("gpu1", "gpu1", False),
        ("gpu1 ssh-ed25519", "gpu1", False),
        ("gpu1 ssh-ed25519 not-base64", "gpu1", False),
        (f"gpu1 {ONE.replace('ssh-ed25519', 'ssh-rsa')}", "gpu1", False),
        (f"gpu1 {key('ssh-tomorrow', 1)}", "gpu1", False),
        (f"|1|not|base64|at-all {ONE}", "gpu1", False),
        (f"|2|c2FsdA==|c2FsdA== {ONE}", "gpu1", False),
    ],
)
def test_a_line_names_its_hosts_as_in_openssh(
    tmp_path: Path, line: str, name: str, is_listed: bool
) -> None:
    """Names, patterns and exclusions; a line that is damaged or not understood lists nothing."""
    file = tmp_path / "known_hosts"
    file.write_text(line + "\n")

    assert bool(read([file]).listed(name)) is is_listed


def test_every_line_counts_and_says_where_it_is(tmp_path: Path) -> None:
    """Two keys of one kind, in two files; a file that is not there is none."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(f"gpu1 {ONE}\ngpu1 {ONE}\n@revoked elsewhere {TWO}\n")
    second.write_text(f"gpu1 {TWO}\n")

    known = read([first, tmp_path / "none", second])

    assert [one.file for one in known.listed("gpu1")] == [first, first, second]
    assert known.revoked == {known.listed("gpu1")[2].blob}
