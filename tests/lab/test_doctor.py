"""`opsctl doctor` on the lab: what is right is ok, what was broken on purpose is found and told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import gpus
from tests.lab.fixture import Lab
from tests.lab.stopping import alive, cleared, opsctl, serve
from tests.schemas import read_document

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


def doctor(lab: Lab, *words: str) -> tuple[int, dict[tuple[str, str], list[str]], dict[str, Any]]:
    """Return exit code, states by (subject, name), and the document."""
    done = lab.opsctl(["doctor", *words, "--json"])
    assert "Traceback" not in done.stderr
    document = read_document(done.stdout)
    assert document["schema"] == "opsctl.doctor/1"
    assert document["exit_code"] == done.exit_code
    found: dict[tuple[str, str], list[str]] = {}
    for row in document["data"]["checks"]:
        found.setdefault((row["subject"], row["name"]), []).append(row["state"])
    return done.exit_code, found, document


def test_a_server_in_a_container_is_looked_at_from_every_side(clean_lab: Lab) -> None:
    """Its node, the container, the GPUs of the node under its other name, and the launch itself."""
    _, found, _ = doctor(clean_lab, "glm5")

    for subject, names in {
        "ct129": ("container", "passthrough", "pct", "rights", "clock", "shm", "leftovers"),
        "pve1": ("pct", "api", "ssh", "python", "disk"),
        "node1": ("nvml", "gpu-health", "persistence", "p2p"),
        "glm5": ("machine", "port", "model", "arguments", "packages", "patches", "sm120"),
    }.items():
        for name in names:
            assert set(found[subject, name]) == {"ok"}, (subject, name, found[subject, name])


def test_what_is_not_reached_is_exit_30_and_the_rest_is_unknown(clean_lab: Lab) -> None:
    """Nothing on a host behind a refusing sudo is called fine."""
    code, found, document = doctor(clean_lab, "pve1-asks")

    assert code == 30
    assert found["pve1-asks", "ssh"] == ["bad"]
    assert document["data"]["counts"]["ok"] == 0
    assert "NOPASSWD" in document["findings"][0]["next"]


@pytest.mark.parametrize(
    ("fault", "state", "code"), [("mismatch", "bad", 20), ("driver-not-loaded", "bad", 20)]
)
def test_a_broken_driver_is_bad(clean_lab: Lab, fault: str, state: str, code: int) -> None:
    """With the mend beside it."""
    gpus.set_fault(clean_lab.gpu_dir("gpu1"), fault)

    seen, found, _ = doctor(clean_lab, "gpu1")

    assert (seen, found["gpu1", "nvml"]) == (code, [state])


@pytest.fixture
def updated_node(clean_lab: Lab) -> Iterator[Lab]:
    """The node's module is of another version than the container's library: an update was half done."""
    with cleared(clean_lab, "ct129"):
        change = "sed 's/580\\.[0-9.]*/590.44.01/' /proc/driver/nvidia/version >/tmp/version; "
        change += "mount --bind /tmp/version /proc/driver/nvidia/version"
        assert clean_lab.on("pve1", ["/bin/sh", "-c", change]).exit_code == 0
        yield clean_lab
        clean_lab.on("pve1", ["/bin/umount", "/proc/driver/nvidia/version"])


def test_a_restart_that_would_lose_the_gpus_leaves_the_server_alone(
    updated_node: Lab, tmp_path: Path
) -> None:
    """The running server still computes, the next one could not: found by doctor, refused by restart."""
    lab = updated_node
    pid = serve(lab, "ct129", 30000, tp=8)

    _, found, document = doctor(lab, "ct129")
    code, refused = opsctl(lab, tmp_path, "restart", "glm5", "--yes", "--no-smoke")

    assert found["ct129", "passthrough"] == ["bad"]
    assert any("590.44.01" in finding["text"] for finding in document["findings"])
    assert (code, refused["outcome"]) != (0, "done")
    assert "driver-mismatch" in [finding["code"] for finding in refused["findings"]]
    assert alive(lab, "ct129", pid)


def test_after_a_launch_and_a_stop_the_doctor_has_nothing_to_warn_of(
    clean_lab: Lab, tmp_path: Path
) -> None:
    """The stop says that nothing is left behind: no failed unit, no lock file, and how it ended is kept."""
    lab, site = clean_lab, str(clean_lab.instance.site_file)
    words = ["standin", "--site", site, "--state", str(tmp_path / "state"), "--yes"]
    with cleared(lab, "ct129"):
        launched = lab.opsctl(["launch", *words, "--no-smoke", "--json"])
        other = lab.opsctl(["status", "glm5", "--site", site, "--json"])
        stopped = lab.opsctl(["stop", *words, "--json"])
    code, found, document = doctor(lab, "ct129", "--site", site)
    locks = lab.on("ct129", ["/bin/sh", "-c", "ls /run/opsctl/*.lock"])
    run = read_document(launched.stdout)["run"]
    kept = lab.on("ct129", ["/bin/cat", f"/var/lib/opsctl/runs/{run}/exit.json"])

    assert (launched.exit_code, stopped.exit_code, code) == (0, 0, 0), stopped.stderr
    foreign = read_document(other.stdout)["data"]["servers"][0]["processes"]
    assert {row["server"] for row in foreign} == {"standin"}
    assert found["ct129", "units"] == ["ok"], document["findings"]
    assert locks.stdout == ""
    assert '"signal": 9' in kept.stdout


def test_the_tidy_lab_has_nothing_bad_and_nothing_unknown(clean_lab: Lab) -> None:
    """As the README shows it: what a newcomer asks first ends with 0."""
    code, _, document = doctor(clean_lab, "--site", str(clean_lab.instance.site_file))

    assert (code, document["data"]["counts"]["unknown"]) == (0, 0), document["findings"]
