"""The script for a runbook and the CI example are run as they stand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.schemas import read_document
from tests.wire.ground import ROOT, Ground, make_ground

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with make_ground(tmp_path) as made:
        yield made


def environment(ground: Ground) -> dict[str, str]:
    """Return an environment in which ``opsctl`` is this checkout, with the ground's site and state."""
    programs = ground.folder / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "opsctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m opsctl "$@"\n')
    program.chmod(0o755)
    return {
        **ground.environment(),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "OPSCTL_SITE": str(ground.site),
        "XDG_STATE_HOME": str(ground.folder / "xdg"),
    }


def oncall(ground: Ground, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "playbooks" / "oncall" / "restart.sh"), *words],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(ground),
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_the_oncall_script_restarts_and_says_what_to_do_next(ground: Ground) -> None:
    """Good, refused without a yes, crashed: opsctl's exit code, and a last line for a tired reader."""
    good = oncall(ground, "one", "3 a.m. page", "--yes", "--no-smoke")
    unasked = oncall(ground, "one", "3 a.m. page", "--no-smoke")
    ground.write_site(faults="exit-at-start=3")
    bad = oncall(ground, "one", "3 a.m. page", "--yes", "--no-smoke")

    assert good.returncode == 0, good.stderr
    assert "proven: one runs" in good.stderr
    assert unasked.returncode == 50
    assert bad.returncode == 60
    assert "opsctl logs one" in bad.stderr
    called = oncall(ground)
    assert (called.returncode, called.stderr.split(" SERVER")[0]) == (2, "usage: restart.sh")


def ci_job(ground: Ground) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the job of the CI example and its environment; its folder has what a repository would have."""
    job = yaml.safe_load((ROOT / "docs" / "ci-example.yml").read_text())["jobs"]["restart"]
    shutil.copy(ROOT / "docs" / "examples" / "annotate.py", ground.folder)
    given = {"SERVER": "one", "REASON": "nightly", "GITHUB_STEP_SUMMARY": "summary.md"}
    loose = {"MIN_RATIO": "0.05", "WORST_TTFT_MS": "60000"}  # a loaded machine is no finding here
    assert set(loose) < set(job["env"])
    return job, {**environment(ground), **given, **loose}


def ci_step(ground: Ground, step: dict[str, Any], env: dict[str, str]) -> int:
    done = subprocess.run(
        ["sh", "-e", "-c", step["run"]],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
        cwd=ground.folder,
        check=False,
    )
    print(step["name"], done.returncode, done.stdout, done.stderr)
    return done.returncode


@pytest.mark.slow
def test_each_step_of_the_ci_example_runs(
    ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check, diff, plan, restart, gated smoke, artefacts, annotations; then a gate that does not hold."""
    assert ground.json("restart", "one", "--yes", "--no-smoke")["exit_code"] == 0
    reference = ground.opsctl("smoke", "one", "--json")
    (ground.folder / "reference.json").write_text(reference.stdout)
    job, env = ci_job(ground)
    steps = {step["name"]: step for step in job["steps"] if "run" in step}

    codes = {name: ci_step(ground, step, env) for name, step in steps.items()}
    first = capsys.readouterr().out
    strict = env | {"MIN_RATIO": "1000"}
    gate = ci_step(ground, steps["smoke, gated on the reference"], strict)
    ci_step(ground, steps["annotate"], strict)

    assert set(codes.values()) == {0}, (codes, first)
    assert gate == 70
    assert "::error title=smoke failed::" in capsys.readouterr().out
    kept = {path.name for path in (ground.folder / "artefacts").iterdir()}
    names = "patches.json plan.json restart.json smoke.json smoke.xml smoke.html history.json"
    assert kept >= {*names.split(), "history.html", "server.log"}
    restart = read_document((ground.folder / "artefacts" / "restart.json").read_text())
    assert (restart["schema"], restart["outcome"]) == ("opsctl.restart/1", "done")
    summary = (ground.folder / "summary.md").read_text()
    assert "### restart done (exit 0)" in summary
    assert "### smoke failed (exit 70)" in summary
    assert "| 1 | passed |" in summary


def test_the_triage_script_keeps_what_a_colleague_asks_for_and_changes_nothing(
    ground: Ground,
) -> None:
    """The server is the same one afterwards; status, log, evidence and history are in the folder."""
    assert ground.json("restart", "one", "--yes", "--no-smoke")["exit_code"] == 0
    before = ground.mains()

    done = subprocess.run(
        [str(ROOT / "playbooks" / "oncall" / "triage.sh"), "one", "kept"],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(ground),
        cwd=ground.folder,
        stdin=subprocess.DEVNULL,
        check=False,
    )

    kept = {path.name for path in (ground.folder / "kept").iterdir()}
    evidence = json.loads((ground.folder / "kept" / "evidence.json").read_text())
    assert done.returncode == 0, done.stderr
    assert kept >= {"status.txt", "status.json", "gpu.json", "evidence.json", "history.json"}
    assert [step["name"] for step in evidence["data"]["steps"]] == ["look", "collect"]
    assert evidence["exit_code"] == 0, evidence
    assert ground.mains() == before
