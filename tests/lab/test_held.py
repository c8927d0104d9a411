"""A restart whose memory proof cannot succeed: refused before the first signal, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import gpus
from tests.lab.fixture import Lab
from tests.lab.stopping import alive, cleared, opsctl, serve, start, wait_for
from tests.lab.test_restart import mains, restart, with_server

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture
def host(clean_lab: Lab) -> Iterator[Lab]:
    with cleared(clean_lab, "ct129"):
        yield clean_lab
        clean_lab.on("ct129", ["sh", "-c", "systemctl stop 'opsctl-*'; rm -rf /var/lib/opsctl"])


def stranger_in(lab: Lab, state: Path) -> int:
    """Let a stranger in the container hold 4 GiB of GPU 3; returns its pid on the node."""
    start(lab, "ct129", "python3 /opt/lab-src/hold.py --gpu 3 --mib 4096")

    def seen() -> Any:
        cards = opsctl(lab, state, "gpu", "status", "glm5")[1]["data"]["gpus"]
        held = [one for one in cards[3]["holders"] if one["used_bytes"] == 4096 << 20]
        return held and held[0]["pid"]

    return int(wait_for(seen, "the stranger holds memory"))


def told(document: Any, code: str) -> dict[str, str]:
    """Return the only finding ``code`` of a document."""
    (finding,) = [one for one in document["findings"] if one["code"] == code]
    return dict(finding)


def test_a_restart_whose_cards_a_stranger_holds_leaves_the_server_alone(
    host: Lab, tmp_path: Path
) -> None:
    """Dry run, restart and doctor say the same; the server keeps its pid."""
    pid = serve(host, "ct129", 30000, tp=8)
    stranger = stranger_in(host, tmp_path)

    dry_code, dry = opsctl(host, tmp_path, "restart", "glm5", "--dry-run")
    code, refused = opsctl(host, tmp_path, "restart", "glm5", "--yes", "--no-smoke")
    doctor_code, doctor = opsctl(host, tmp_path, "doctor", "glm5")

    assert (dry_code, code, doctor_code) == (50, 50, 20)
    for finding in (told(dry, "held-by-others"), told(refused, "held-by-others")):
        assert f"foreign pid {stranger} (" in finding["text"]
        assert "holds 4096 MiB on GPU 3 (GPU-" in finding["text"]
        assert f"opsctl stop glm5 --evict {stranger} " in finding["next"]
        assert "then opsctl launch glm5" in finding["next"]
    assert f"foreign pid {stranger} (" in str(doctor["findings"])
    assert alive(host, "ct129", pid)


@pytest.mark.slow
def test_a_stop_still_stops_and_a_launch_into_held_memory_is_refused(
    host: Lab, tmp_path: Path
) -> None:
    """A stop says what is still held, and how it is ended; what opsctl never signals is said so."""
    pid = serve(host, "ct129", 30000, tp=8)
    stranger = stranger_in(host, tmp_path)

    code, stopped = opsctl(host, tmp_path, "stop", "glm5", "--yes", "--timeout", "1")
    launch_code, launched = opsctl(host, tmp_path, "launch", "glm5", "--yes", "--no-smoke")
    evict = told(stopped, "held")["next"].rpartition("opsctl ")[2].split()
    evict_code, _ = opsctl(host, tmp_path, *evict, "--yes")
    with host.holding("pve1", 3, 4096):
        node_code, of_node = opsctl(host, tmp_path, "launch", "glm5", "--yes", "--no-smoke")

    assert (code, stopped["outcome"]) == (20, "memory-busy")
    assert not alive(host, "ct129", pid)
    assert evict[:4] == ["stop", "glm5", "--evict", str(stranger)]
    assert (launch_code, evict_code, node_code) == (50, 0, 50)
    told(launched, "held-by-others")
    assert re.search(
        r"opsctl never signals pid \d+: stop it where", told(of_node, "held-by-others")["next"]
    )
    assert mains(host, "ct129", 30000) == []


@pytest.mark.slow
def test_a_server_that_a_failed_restart_stopped_did_not_end_by_itself(
    host: Lab, tmp_path: Path
) -> None:
    """Memory that no process owns is seen by the proof only: status names what failed, from any machine."""
    site = with_server(host, tmp_path, "glm5", stop={"memory_timeout_s": 1})
    words = ("--site", str(site))
    assert restart(host, tmp_path, "glm5", *words)[0] == 0
    gpus.set_fault(host.gpu_dir("pve1"), "leak", 3)

    code, document = restart(host, tmp_path, "glm5", *words)
    here = opsctl(host, tmp_path, "status", "glm5", *words)[1]["data"]["servers"][0]
    elsewhere = opsctl(host, tmp_path / "other", "status", "glm5", *words)[1]["data"]["servers"][0]

    assert code == 20
    assert document["data"]["state"] == "the old server is stopped, and no new one was launched"
    assert here["last_failed_run"]["why"].startswith("gpu-memory: 1024 MiB are used")
    for one in (here, elsewhere):
        assert (one["state"], "by no stop" in str(one)) == ("stopped", False)
