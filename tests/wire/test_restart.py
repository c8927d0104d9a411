"""`opsctl restart` from the command line on the stand-in server: real processes, a real ledger."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from opsctl.cli import run
from tests.lab import standin
from tests.wire.ground import Ground, make_ground, wait_for

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with make_ground(tmp_path) as made:
        yield made


def restart(ground: Ground, *words: str, state: str = "state") -> dict[str, object]:
    return ground.json("restart", "one", "--yes", "--no-smoke", *words, state=state)


def test_restart_starts_replaces_and_records(ground: Ground) -> None:
    """None runs: it is launched. One runs: it is replaced, once. Both attempts are known, here and there."""
    first = restart(ground, "--reason", "first")
    before = ground.mains()
    second = restart(ground, "--reason", "second")
    after = ground.mains()

    assert (first["outcome"], second["outcome"]) == ("done", "done")
    assert len(before) == len(after) == 1
    assert before != after
    steps = [step["name"] for step in second["data"]["steps"]]  # type: ignore[index]
    assert steps.index("collect") < steps.index("stop") < steps.index("launch")
    assert second["data"]["downtime"]["overhead_s"] < 5  # type: ignore[index]
    lines = (ground.host_state / "attempts.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["passed", "passed"]
    runs = ground.json("history")["data"]["runs"]
    assert [run["reason"] for run in runs] == ["second", "first"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"args": {"tp": 2, "no-such-flag": 3}}, "arguments"),
        ({"model": "/no/such/model"}, "model-unreadable"),
        ({"log_dir": "/proc/nowhere"}, "log-disk"),
        ({"patches": ["no-such-patch"]}, None),
    ],
)
def test_what_can_fail_before_the_stop_leaves_the_server_alone(
    ground: Ground, change: dict[str, object], code: str | None
) -> None:
    """Unknown flag, unreadable model, unwritable log, unknown patch: the old server keeps its pid."""
    restart(ground)
    before = ground.mains()
    ground.write_site(**change)

    document = ground.json("restart", "one", "--yes", "--no-smoke")

    assert document["exit_code"] != 0
    assert ground.mains() == before
    if code is not None:
        assert code in [finding["code"] for finding in document["findings"]]


def test_a_dry_run_changes_nothing(ground: Ground) -> None:
    """The exact plan, from real reads: no signal, no launch, no ledger entry."""
    restart(ground)
    before = ground.mains()

    document = ground.json("restart", "one", "--dry-run")

    plan = {item["step"]: item["lines"] for item in document["data"]["plan"]}
    assert document["outcome"] == "planned"
    assert any(str(before[0]) in line for line in plan["stop"])
    assert any("sglang.launch_server" in line for line in plan["launch"])
    assert ground.mains() == before
    assert len(ground.json("history")["data"]["runs"]) == 1


def test_without_a_terminal_and_without_yes_nothing_happens(ground: Ground) -> None:
    """Exit 50 at the question; the running server is not touched."""
    restart(ground)
    before = ground.mains()

    document = ground.json("restart", "one", "--no-smoke")

    assert document["exit_code"] == 50
    assert "not-confirmed" in [finding["code"] for finding in document["findings"]]
    assert ground.mains() == before


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ("exit-at-start=3", "exited"),
        ("signal-at-start=SEGV", "ended by signal"),
        ("fail-at=args,exit-at-start=0", "exited with 0"),
    ],
)
def test_a_server_that_dies_at_start_is_a_crash(ground: Ground, faults: str, words: str) -> None:
    """Exit 60, the verdict, and a record that the same attempt fails; exit 0 is no success."""
    ground.write_site(faults=faults)

    document = restart(ground)

    assert document["exit_code"] == 60
    crash = [f for f in document["findings"] if f["code"] == "start-crashed"]  # type: ignore[attr-defined]
    assert crash, document["findings"]
    assert "crashed" in crash[0]["text"]


def test_a_start_that_makes_no_progress_is_a_hang(ground: Ground) -> None:
    """It is told apart from a crash and from a slow start; the server is left for inspection."""
    ground.write_site(
        faults="never-ready=weights", ready={"timeout_s": 60, "stall_s": 3, "generation_s": 5}
    )

    document = restart(ground)

    assert document["exit_code"] == 60
    codes = [finding["code"] for finding in document["findings"]]  # type: ignore[attr-defined]
    assert "start-hung" in codes
    assert "left-running" in codes
    assert len(ground.mains()) == 1


def test_a_failed_attempt_is_not_repeated_blindly(ground: Ground) -> None:
    """Known from an empty state folder too, through the host's copy; --again goes on; a change goes on."""
    ground.write_site(faults="exit-at-start=3")
    failed = restart(ground)

    refused = restart(ground, state="other-machine")
    again = restart(ground, "--again", "the disk was replaced", state="other-machine")
    ground.write_site()
    changed = restart(ground, state="third-machine")

    assert failed["exit_code"] == 60
    assert refused["exit_code"] == 50
    text = [f["text"] for f in refused["findings"] if f["code"] == "known-failure"]  # type: ignore[attr-defined]
    assert text
    assert str(failed["run"]) in text[0]
    assert again["exit_code"] == 60
    assert changed["exit_code"] == 0


def test_restart_of_a_hung_server(ground: Ground) -> None:
    """SIGTERM is ignored: it is killed member by member after the grace, and replaced."""
    ground.write_site(faults="ignore-term=1", stop={"grace_s": 1})
    restart(ground)
    ground.write_site(stop={"grace_s": 1})

    document = restart(ground)

    assert document["outcome"] == "done"
    assert len(ground.mains()) == 1


@pytest.mark.orphans
def test_restart_of_a_crashed_server_with_orphans(ground: Ground) -> None:
    """The main process is dead, schedulers live on: they are found by record and title, and stopped."""
    ground.write_site(faults="orphans=1")
    restart(ground)
    main = ground.mains()[0]
    import os

    os.kill(main, signal.SIGKILL)
    wait_for(lambda: not ground.mains())
    ground.write_site()

    document = restart(ground)

    assert document["outcome"] == "done", document["findings"]
    assert len(ground.mains()) == 1
    assert len(ground.members()) <= 7


def test_a_launch_is_refused_while_it_runs(ground: Ground) -> None:
    """`launch` starts no second server."""
    restart(ground)

    document = ground.json("launch", "one", "--yes", "--no-smoke")

    assert document["exit_code"] == 50
    assert "already-running" in [finding["code"] for finding in document["findings"]]
    assert len(ground.mains()) == 1


def test_a_server_that_died_is_not_told_as_a_stopped_one(ground: Ground) -> None:
    """Without systemd too: status says how it ended, until a stop has looked at what is left of it."""
    launched = ground.json("restart", "one", "--yes", "--no-smoke")
    for pid in ground.members():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not ground.mains())

    died = ground.json("status", "one")["data"]["servers"][0]
    ground.json("stop", "one", "--yes")
    after = ground.json("status", "one")["data"]["servers"][0]

    ending = f"launch {launched['run']}: it was ended by signal 9, by no stop of opsctl"
    assert (died["state"], after["state"]) == ("stopped", "stopped")
    assert ending in died["why"]
    assert after["why"] == "no process of it"


def test_logs_mark_the_first_abnormal_record(ground: Ground) -> None:
    """The line that explains the crash is marked, not the last one."""
    ground.write_site(faults="exit-at-start=3")
    restart(ground)

    done = ground.opsctl("logs", "one")

    assert done.returncode == 0
    assert "starts one" in done.stdout


def test_a_failed_server_is_stopped_when_the_site_says_so(ground: Ground) -> None:
    """on_failure: stop. A half-started server is ended by proof, and that is said."""
    ground.write_site(
        faults="never-ready=weights",
        on_failure="stop",
        ready={"timeout_s": 60, "stall_s": 3, "generation_s": 5},
    )

    document = restart(ground)

    assert document["exit_code"] == 60
    assert document["data"]["state"] == "the failed server was stopped; nothing runs now"  # type: ignore[index]
    assert ground.mains() == []


def test_a_failed_change_is_rolled_back_when_the_site_says_so(ground: Ground) -> None:
    """on_failure: rollback. The last attempt that passed runs again; the run is still a failure."""
    passed = restart(ground)
    ground.write_site(faults="exit-at-start=3", on_failure="rollback")

    failed = restart(ground)

    assert failed["exit_code"] == 60
    state = failed["data"]["state"]  # type: ignore[index]
    assert state.startswith(f"rolled back: the server runs as in run {passed['run']}")
    assert len(ground.mains()) == 1
    lines = (ground.host_state / "attempts.jsonl").read_text().splitlines()
    outcomes = {one["run"]: one["outcome"] for one in map(json.loads, lines)}
    assert outcomes[str(failed["run"])] == "crashed"
    assert outcomes[f"{failed['run']}-back"] == "passed"


def test_without_a_passed_attempt_there_is_no_way_back(ground: Ground) -> None:
    """Nothing is made up: it says that nothing runs."""
    ground.write_site(faults="exit-at-start=3", on_failure="rollback")

    document = restart(ground)

    assert document["exit_code"] == 60
    assert "no-way-back" in [finding["code"] for finding in document["findings"]]  # type: ignore[attr-defined]
    assert ground.mains() == []


def test_a_crash_under_load_fails_the_restart_with_bracket_and_diagnosis(ground: Ground) -> None:
    """The incident in small: good at 1 and 2, the shape error above; exit 60, level and arithmetic named."""
    ground.write_site(
        faults="crash-above=2", smoke={"levels": [1, 2, 4], "requests": 4, "tokens": 16}
    )

    document = ground.json("restart", "one", "--yes")

    assert document["exit_code"] == 60
    assert document["data"]["bracket"] == {"last_good": 2, "first_bad": 4}
    assert document["data"]["diagnosis"]["category"] == "shape-mismatch"
    history = ground.json("history", "--failed")["data"]["runs"]
    assert history[0]["signature"] == document["data"]["diagnosis"]["signature"]
    read_again = ground.json("diagnose", "last")
    assert (read_again["exit_code"], read_again["outcome"]) == (20, "shape-mismatch")
    refused = ground.json("restart", "one", "--yes")
    assert refused["exit_code"] == 50

    started = ground.json(
        "restart", "one", "--yes", "--no-smoke", "--again", "it must serve one user"
    )
    assert started["exit_code"] == 0
    refused = ground.json(
        "restart", "one", "--yes"
    )  # a start without smoke proves nothing about C=4
    assert refused["exit_code"] == 50


def own_patch(
    folder: Path, site: Path, name: str, text: str, where: str = "version.py", **proof: object
) -> None:
    """Make a patch in ``folder`` that adds ``text`` at the end of a file of the stand-in."""
    changed = folder.parent / f"changed-{name}"
    shutil.copytree(site / "sglang", changed)
    (changed / where).write_text((changed / where).read_text() + text)
    argv = ["patch", "new", name, "--version", "0.5.12.post1", "--package", "sglang"]
    assert (
        run([*argv, "--old", f"{site}/sglang", "--new", str(changed), "--into", str(folder)]) == 0
    )
    file = folder / name / "patch.yaml"
    data = yaml.safe_load(file.read_text())
    data["variants"][0]["proof"] = {"imports": ["sglang.version"], **proof}
    file.write_text(yaml.safe_dump(data, sort_keys=False))


def packages_of(ground: Ground) -> Path:
    """Return a copy of the stand-in's packages that may be patched, with its version written down."""
    site = ground.folder / "packages"
    shutil.copytree(standin.SITE, site)
    info = site / "sglang-0.5.12.post1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.12.post1\n")
    (ground.folder / "own").mkdir()
    return site


NEW_FLAG = """

add_known = ServerArgs.add_cli_args


def add_with_new(parser):
    add_known(parser)
    parser.add_argument("--new-flag", type=int)


ServerArgs.add_cli_args = staticmethod(add_with_new)
"""


def test_a_flag_that_a_listed_patch_brings_is_no_unknown_flag(ground: Ground) -> None:
    """The parser learns it with the patch: both arrive in one restart; a flag that nobody brings does not."""
    site = packages_of(ground)
    shows = {"run": ["-m", "sglang.launch_server", "--help"], "shows": ["--new-flag"]}
    own_patch(ground.folder / "own", site, "flagged", NEW_FLAG, "srt/server_args.py", help=shows)
    env = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    top = {"patches_dir": "own"}
    args = {"tp": 2, "disable-cuda-graph": True, "new-flag": 3}

    ground.write_site(env=env, top=top, args=args)
    without = restart(ground)
    ground.write_site(env=env, top=top, args={**args, "other-flag": 1}, patches=["flagged"])
    other = restart(ground)
    ground.write_site(env=env, top=top, args=args, patches=["flagged"])
    done = restart(ground)
    again = restart(ground)

    for refused in (without, other):
        assert "arguments" in [finding["code"] for finding in refused["findings"]]  # type: ignore[attr-defined]
    assert (done["outcome"], again["outcome"]) == ("done", "done"), done["findings"]
    argv = Path(f"/proc/{ground.mains()[0]}/cmdline").read_bytes().split(b"\0")
    assert b"--new-flag" in argv


def test_the_site_s_own_patches_are_staged_proven_and_swapped_in(ground: Ground) -> None:
    """One that cannot be imported stops the restart before the stop; a good one is in the new server.

    After a reinstallation the next restart sees that it is gone, and puts it in again. Its line never comes
    in the log: what passes without it is no pass of the patch.
    """
    site = packages_of(ground)
    library = ground.folder / "own"
    own_patch(library, site, "broken", "def\n")
    own_patch(library, site, "good", "MARK = 1\n", log="this line never comes")
    env = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    ground.write_site(env=env)
    restart(ground)
    before = ground.mains()
    pristine = (site / "sglang" / "version.py").read_text()

    ground.write_site(env=env, patches=["broken"], top={"patches_dir": "own"})
    refused = restart(ground)
    untouched = ground.mains(), (site / "sglang" / "version.py").read_text()
    ground.write_site(env=env, patches=["good"], top={"patches_dir": "own"})
    done = restart(ground)

    assert refused["exit_code"] == 20
    assert "proof-failed" in [finding["code"] for finding in refused["findings"]]  # type: ignore[attr-defined]
    assert untouched == (before, pristine)
    assert done["outcome"] == "done", done["findings"]
    silent = [one["subject"] for one in done["findings"] if one["code"] == "patch-silent"]  # type: ignore[attr-defined]
    assert silent == ["good"]
    assert ground.mains() != before
    assert (site / "sglang" / "version.py").read_text() == pristine + "MARK = 1\n"

    (site / "sglang" / "version.py").write_text(pristine)  # as a forced reinstallation leaves it
    planned = ground.json("restart", "one", "--dry-run")
    again = restart(ground)

    lines = [line for item in planned["data"]["plan"] for line in item["lines"]]
    assert any("apply good" in line for line in lines)
    assert again["outcome"] == "done", again["findings"]
    assert (site / "sglang" / "version.py").read_text() == pristine + "MARK = 1\n"
    attempts = (ground.host_state / "attempts.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in attempts][-2:] == ["inconclusive"] * 2
