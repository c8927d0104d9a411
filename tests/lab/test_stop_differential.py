"""The incident's one-liners and opsctl on the same planted host: who killed what, who believed what.

`python -m pytest tests/lab/test_stop_differential.py -s` prints the table of docs/stop-differential.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.fixture import Lab
from tests.lab.stopping import alive, cleared, opsctl, serve, start, table, titled_of, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

HOLD = "python3 /opt/lab-src/hold.py"
STRANGERS = {
    "jupyter": "python3 -c 'import time; time.sleep(300)' jupyter-lab --no-browser lab-stranger",
    "unattended-upgrades": "python3 -c 'import time; time.sleep(300)' unattended-upgrade lab-stranger",
    "a colleague's grep": "tail -f /dev/null sglang lab-stranger",
    "a training job (GPU 5)": f"{HOLD} --gpu 5 --mib 6464 --title train.py",
    "nvidia-persistenced": f"{HOLD} --gpu 7 --mib 1 --kind graphics --argv0 /usr/bin/nvidia-persistenced",
}
ONE_LINERS = {
    "ps | grep python3 | xargs kill -9": (
        "ps aux | grep python3 | grep -v grep | awk '{print $2}' | xargs kill -9"
    ),
    "fuser -k /dev/nvidia*": "fuser -k /dev/nvidia*",
    "pkill -9 -f sglang": "pkill -9 -f sglang",
}
BELIEF = "sleep 3; nvidia-smi | grep 0MiB | wc -l"


@dataclass
class Planted:
    """One server with its workers, and the strangers around it."""

    lab: Lab
    root: int
    workers: list[int]
    strangers: dict[str, int]

    def report(self) -> tuple[bool, list[str]]:
        """Return whether the server is gone whole, and which strangers are dead."""
        gone = not any(alive(self.lab, "gpu1", pid) for pid in (self.root, *self.workers))
        dead = [name for name, pid in self.strangers.items() if not alive(self.lab, "gpu1", pid)]
        return gone, dead


@pytest.fixture
def planted(clean_lab: Lab) -> Iterator[Planted]:
    with cleared(clean_lab, "gpu1"):
        root = serve(clean_lab, "gpu1", 30001, "--lab-orphans", "--lab-mem-mib", "50000", tp=4)
        strangers = {name: start(clean_lab, "gpu1", line) for name, line in STRANGERS.items()}
        wait_for(lambda: alive(clean_lab, "gpu1", *strangers.values()), "the strangers run")
        wait_for(lambda: _holders(clean_lab) >= 2, "the job and the daemon hold memory")
        yield Planted(clean_lab, root, titled_of(clean_lab, "gpu1", root), strangers)


def _holders(lab: Lab) -> int:
    smi = lab.on("gpu1", ["nvidia-smi"]).stdout
    return (
        sum("hold.py" in row[4] or "nvidia-p" in row[4] for row in table(lab, "gpu1")) if smi else 0
    )


def _believed(lab: Lab) -> str:
    return lab.ssh("gpu1", BELIEF, timeout_s=30).stdout.strip()


def _in_use(lab: Lab, state: Path) -> int:
    """Return how many of the eight GPUs are not free, by NVML: the truth of the lab."""
    _, document = opsctl(lab, state, "gpu", "status", "gpu1")
    return sum(card["state"] != "free" for card in document["data"]["gpus"])


@pytest.mark.parametrize("name", list(ONE_LINERS))
def test_a_one_liner_of_the_incident(planted: Planted, tmp_path: Path, name: str) -> None:
    """Each kills strangers, or leaves workers with their memory, or both; and its count says nothing."""
    lab = planted.lab
    lab.ssh("gpu1", ONE_LINERS[name], timeout_s=30)
    believed, busy = _believed(lab), _in_use(lab, tmp_path)
    gone, dead = planted.report()

    verdict = (
        f"| `{name}` | {'yes' if gone else 'no'} | {', '.join(dead) or 'nobody'} | {busy} of 8 "
    )
    print(f"\n{verdict}| `grep 0MiB \\| wc -l` = {believed} |")
    assert dead or not gone


def test_opsctl_on_the_same_host(planted: Planted, tmp_path: Path) -> None:
    """The server ends whole, no stranger is signalled, and the memory that is left has a name."""
    lab = planted.lab
    code, done = opsctl(lab, tmp_path, "stop", "plain", "--yes")
    busy = _in_use(lab, tmp_path)
    gone, dead = planted.report()

    states = {card["index"]: card["state"] for card in done["data"]["gpus"]}
    print(
        f"\n| `opsctl stop` | {'yes' if gone else 'no'} | {', '.join(dead) or 'nobody'} | {busy} of 8 ",
        end="",
    )
    print(
        f"| exit {code}: {[index for index, state in states.items() if state != 'free']} in use |"
    )
    assert gone
    assert dead == []
    assert code == 20
    assert states == {**dict.fromkeys(range(8), "free"), 5: "busy"}
    job = planted.strangers["a training job (GPU 5)"]
    assert [row["pid"] for row in done["data"]["processes"] if row["class"] == "foreign"] == [job]
