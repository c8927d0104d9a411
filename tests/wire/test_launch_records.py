"""What a host remembers of its launches, where systemd runs them: told by one question to it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.ops import launch_find, launch_tidy, procfs

pytestmark = pytest.mark.wire

SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$CALLS"
shift 4
first=1
for unit in "$@"; do
  [ $first = 1 ] || echo
  first=0
  echo "Id=$unit"
  case $unit in
    *r3*) printf 'LoadState=loaded\\nActiveState=active\\nMainPID=77\\nControlGroup=/a\\n';;
    *r2*) printf 'LoadState=loaded\\nActiveState=failed\\nExecMainCode=2\\nExecMainStatus=9\\n';;
    *) printf 'LoadState=not-found\\nActiveState=inactive\\nMainPID=0\\n';;
  esac
done
"""


def launched(folder: Path, run: str, port: int = 30000, boot_id: str | None = None) -> None:
    """Write the records of one launch."""
    place = folder / "runs" / run
    place.mkdir(parents=True)
    record = {"run": run, "port": port, "via": "systemd", "unit": f"opsctl-{run}.service"}
    record["boot_id"] = boot_id or procfs.boot_id()
    (place / "launch.json").write_text(json.dumps(record))
    (place / "run.json").write_text(json.dumps({"pid": 77, "start_ticks": 5}))


def lives(folder: Path, run: str) -> None:
    """Let the launch have become this very process, which is alive."""
    identity = {"pid": os.getpid(), "start_ticks": procfs.start_ticks(os.getpid())}
    (folder / "runs" / run / "run.json").write_text(json.dumps(identity))


class Failed(RuntimeError):
    """A named failure of an operation, as the agent's own."""


class Context:
    Error = Failed


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that notes how it was called, and where it does."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "systemctl"
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    noted = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(noted))
    return noted


def asked_for(calls: Path) -> list[list[str]]:
    """Return the units of each `systemctl show` so far."""
    return [
        line.split("-- ")[1].split() for line in calls.read_text().splitlines() if "-- " in line
    ]


def test_all_units_are_asked_for_at_once(tmp_path: Path, calls: Path) -> None:
    """A host with fifty launches behind it would start fifty processes for each look at it."""
    for run in ("r1", "r2", "r3"):
        launched(tmp_path, run)
    launched(tmp_path, "r4", port=30001)
    launched(tmp_path, "r5", boot_id="another")

    request: dict[str, Any] = {"state_dir": str(tmp_path), "port": 30000}
    records = launch_find.records(request, Context())["records"]  # type: ignore[arg-type]

    assert [(one["run"], one["state"]) for one in records] == [
        ("r5", "exited"),
        ("r3", "running"),
        ("r2", "exited"),
        ("r1", "exited"),
    ]
    assert records[0]["rebooted"] is True
    assert records[1]["cgroup"] == "/a"
    assert records[2]["exit"]["signal"] == 9
    assert records[3]["exit"] == {"reason": "the unit is gone"}
    assert asked_for(calls) == [[f"opsctl-{run}.service" for run in ("r3", "r2", "r1")]]

    alone = launch_find.find({**request, "run": "r2"}, Context())  # type: ignore[arg-type]
    assert {**alone, "age_s": None} == {**records[2], "age_s": None}


def test_a_unit_that_systemd_has_forgotten_is_not_asked_for_again(
    tmp_path: Path, calls: Path
) -> None:
    """Each costs systemd 2 ms of every stop; what became of the launch is told as before."""
    for run in ("r1", "r3"):
        launched(tmp_path, run)
    request: dict[str, Any] = {"state_dir": str(tmp_path), "port": 30000, "run": "another"}
    before = launch_find.records(request, Context())["records"]  # type: ignore[arg-type]

    launch_tidy.tidy(request, Context())  # type: ignore[arg-type]
    after = launch_find.records(request, Context())["records"]  # type: ignore[arg-type]

    assert asked_for(calls)[0] == ["opsctl-r3.service", "opsctl-r1.service"]
    assert asked_for(calls)[-1] == ["opsctl-r3.service"]
    assert [(one["run"], one["state"], one["exit"]) for one in after] == [
        (one["run"], one["state"], one["exit"]) for one in before
    ]


def test_a_unit_that_systemd_still_knows_is_asked_for_again(tmp_path: Path, calls: Path) -> None:
    """Only systemd's own word that it knows nothing of it lets us stop asking."""
    launched(tmp_path, "r2")
    request: dict[str, Any] = {"state_dir": str(tmp_path), "port": 30000, "run": "another"}

    launch_tidy.tidy(request, Context())  # type: ignore[arg-type]

    assert not (tmp_path / "runs" / "r2" / launch_find.FORGOTTEN).exists()
    assert (tmp_path / "runs" / "r2" / "exit.json").exists()
    assert "reset-failed opsctl-r2.service" in calls.read_text()


def told_of(folder: Path) -> dict[str, Any]:
    """Return what the records say of the one launch, after a tidying that another run asked for."""
    request: dict[str, Any] = {"state_dir": str(folder), "port": 30000, "run": "another"}
    launch_tidy.tidy(request, Context())  # type: ignore[arg-type]
    (one,) = launch_find.records(request, Context())["records"]  # type: ignore[arg-type]
    return dict(one)


@pytest.mark.parametrize(
    "answer",
    [
        "exit 1",
        "exit 0",
        "echo",
        "kill -9 $$",
        "sleep 20",
        "printf 'Id=opsctl-r1.service\\nLoadState=not-found\\nActiveState=active\\n'",
        "printf 'Id=opsctl-r1.service\\nLoadState=error\\nActiveState=inactive\\n'",
        "printf 'Id=opsctl-r1.service\\n'",
    ],
)
def test_only_systemd_s_own_word_marks_a_launch_as_forgotten(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """One that fails, hangs, says nothing, or knows a unit whose file is gone, has not forgotten it."""
    program = shutil.which("systemctl") or ""
    Path(program).write_text(f"#!/bin/sh\n{answer}\n")
    ask = launch_find.command
    monkeypatch.setattr(launch_find, "command", lambda argv, _, context: ask(argv, 0.5, context))
    launched(tmp_path, "r1")

    told = told_of(tmp_path)

    assert not (tmp_path / "runs" / "r1" / launch_find.FORGOTTEN).exists()
    assert told["state"] == "exited"  # pid 77 is not the process that it was


@pytest.mark.parametrize("answer", ["exit 1", "sleep 20"])
def test_a_launch_that_lives_runs_though_systemd_does_not_answer(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """Its bus is down or it hangs at 3 a.m.: who the launch became is written, and is alive."""
    Path(shutil.which("systemctl") or "").write_text(f"#!/bin/sh\n{answer}\n")
    ask = launch_find.command
    monkeypatch.setattr(launch_find, "command", lambda argv, _, context: ask(argv, 0.5, context))
    launched(tmp_path, "r1")
    lives(tmp_path, "r1")

    told = told_of(tmp_path)

    assert (told["state"], told["pid"]) == ("running", os.getpid())


def test_a_launch_of_which_nothing_is_known_is_not_called_absent(
    tmp_path: Path, calls: Path
) -> None:
    """Asked for, identity lost, and systemd says nothing: whoever starts it again would have two."""
    Path(shutil.which("systemctl") or "").write_text("#!/bin/sh\nexit 1\n")
    launched(tmp_path, "r1")
    (tmp_path / "runs" / "r1" / "run.json").unlink()

    request: dict[str, Any] = {"state_dir": str(tmp_path), "run": "r1"}
    with pytest.raises(RuntimeError, match="record-damaged"):
        launch_find.find(request, Context())  # type: ignore[arg-type]


@pytest.mark.parametrize("mark", ["", "another-boot"])
def test_a_mark_of_another_boot_is_not_believed(tmp_path: Path, calls: Path, mark: str) -> None:
    """A run launched again after a reboot, by an opsctl that knows no marks or beside a folder put back."""
    launched(tmp_path, "r3")
    (tmp_path / "runs" / "r3" / launch_find.FORGOTTEN).write_text(mark)

    assert told_of(tmp_path)["unit_state"] == "active/None"


def test_a_launch_of_another_boot_is_not_marked(tmp_path: Path, calls: Path) -> None:
    """Two containers that share the state folder: this one's systemd knows nothing of that one's units."""
    launched(tmp_path, "r3", boot_id="another")

    assert told_of(tmp_path)["rebooted"] is True
    assert not (tmp_path / "runs" / "r3" / launch_find.FORGOTTEN).exists()


def test_a_marked_launch_that_lives_runs(tmp_path: Path, calls: Path) -> None:
    """Its own process alive says more than any note."""
    launched(tmp_path, "r1")
    told_of(tmp_path)
    assert (tmp_path / "runs" / "r1" / launch_find.FORGOTTEN).read_text() == procfs.boot_id()
    lives(tmp_path, "r1")

    assert told_of(tmp_path)["state"] == "running"
