"""``opsctl diagnose`` as a program: exit codes, JSON, standard input, wrong arguments."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import run
from opsctl.ledger import Ledger
from tests.schemas import read_document

CASES = Path(__file__).parents[2] / "data" / "cases"
SAMPLES = Path(__file__).parents[2] / "data" / "diagnose"


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = run(["diagnose", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = call(capsys, *argv, "--json")
    return code, read_document(out)


def test_crash_is_told_as_the_contract_says(capsys: pytest.CaptureFixture[str]) -> None:
    """The data has the seven names, and the exit code is 20: looked, and it is bad."""
    code, body = document(capsys, str(CASES / "001-graph-bs-plus-one.log"), "--level", "9")

    assert (code, body["exit_code"], body["schema"]) == (20, 20, "opsctl.diagnose/1")
    assert {
        "category",
        "confidence",
        "signature",
        "first_record",
        "sizes",
        "explanation",
        "next",
    } <= set(body["data"])
    assert body["outcome"] == body["data"]["category"] == "shape-mismatch"
    assert body["data"]["sizes"]["b"] == 9
    assert body["findings"][0]["next"]


@pytest.mark.parametrize(
    ("name", "code", "outcome"),
    [("healthy-start", 0, "healthy"), ("retract-two", 0, "degraded"), ("ok-stream", 0, "stream-ok"),
     ("unknown-other", 21, "unknown"), ("unknown-empty", 21, "unknown"), ("xid79", 20, "gpu-fault")],
)  # fmt: skip
def test_exit_code_says_healthy_bad_or_unknown(
    capsys: pytest.CaptureFixture[str], name: str, code: int, outcome: str
) -> None:
    """0 for healthy and notices, 20 for a fault, 21 when nothing can be told."""
    found, body = document(capsys, str(SAMPLES / f"{name}.log"))

    assert (found, body["outcome"]) == (code, outcome)
    assert (body["data"]["category"] is None) == (outcome == "healthy")


def test_standard_input_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`journalctl ... | opsctl diagnose -`."""
    data = (SAMPLES / "journal-json.log").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))  # type: ignore[arg-type]

    code, body = document(capsys, "-")

    assert (code, body["outcome"]) == (20, "shape-mismatch")


def test_text_names_file_line_sizes_and_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    """A person sees where, why and what to do, and stderr stays quiet."""
    path = SAMPLES / "shape-v2-192-by-12.log"

    code, out, err = call(capsys, str(path))

    assert code == 20
    assert f"{path}:9" in out
    assert "192 = 12 requests x 16 draft tokens" in out
    assert "next" in out
    assert err == ""


@pytest.mark.parametrize("source", ["no-such-file.log", "20261129-none"])
def test_missing_log_is_a_usage_error(capsys: pytest.CaptureFixture[str], source: str) -> None:
    """Neither a file nor a run."""
    code, out, err = call(capsys, source)

    assert (code, out) == (2, "")
    assert "no file and no run" in err


def test_folder_is_a_usage_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A folder holds no single log."""
    assert call(capsys, str(tmp_path))[0] == 2


def test_log_of_a_run_is_found_in_the_state_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A run's id stands for the log that was kept for it."""
    kept = tmp_path / "runs" / "r1" / "server.log"
    kept.parent.mkdir(parents=True)
    kept.write_text("Fatal Python error: Segmentation fault\n")

    code, body = document(capsys, "r1", "--state", str(tmp_path))

    assert (code, body["outcome"]) == (20, "child-died")


def test_signature_that_the_ledger_knows_is_told_with_its_run_and_patches(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The next operator learns that this was seen, what was patched then, and what passed without it."""
    log = str(CASES / "001-graph-bs-plus-one.log")
    _, first = document(capsys, log, "--state", str(tmp_path))
    ledger = Ledger.open(tmp_path)
    rows = (
        ("r5", "restart", {"spec-disable": "cd34" * 16}, None),
        ("r6", "stop", {}, None),
        ("r7", "restart", {"spec-disable": "ab12" * 16}, first["data"]["signature"]),
        ("r8", "smoke", None, first["data"]["signature"]),
    )
    for at_s, (name, playbook, patches, signature) in enumerate(rows):
        ledger.begin(
            name, server="glm5", playbook=playbook, at_s=at_s, who="ops", reason=None, inputs={}
        )
        if patches is not None:
            ledger.set_facts(name, {"content": {"patches": patches}}, "f1")
        ledger.finish(
            name,
            at_s=2.0,
            outcome="crashed" if signature else "done",
            exit_code=60 if signature else 0,
            signature=signature,
            document={},
        )
    ledger.close()

    _, body = document(capsys, log, "--state", str(tmp_path))
    _, out, _ = call(capsys, log, "--state", str(tmp_path))

    seen = body["data"]["seen"]
    assert first["data"]["seen"] == []
    assert [(one["run"], one["patches"]) for one in seen] == [
        ("r8", None),
        ("r7", {"spec-disable": "ab12ab12"}),
    ]
    assert [one["passed"]["run"] for one in seen] == ["r5", "r5"]
    assert "r7 (glm5, restart, 1970-01-01 00:00, patches spec-disable ab12ab12)" in out
    assert "r8 (glm5, smoke, 1970-01-01 00:00, patches not known)" in out
    assert (
        "glm5 last passed without it: r5 (glm5, restart, 1970-01-01 00:00, patches spec-disable "
        "cd34cd34)" in out
    )


def test_advice_of_a_run_knows_its_name_and_its_recorded_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No placeholder for a known server or file, and no step that the launch had taken already."""
    run = "20261130-cc33"
    ledger = Ledger.open(tmp_path)
    ledger.begin(
        run, server="glm5", playbook="restart", at_s=1.0, who="ops", reason=None, inputs={}
    )
    arguments = ["--disable-cuda-graph", "--speculative-num-draft-tokens", "4"]
    ledger.set_facts(run, {"content": {"arguments": arguments}}, "f1")
    ledger.close()
    kept = tmp_path / "runs" / run / "server.log"
    kept.parent.mkdir(parents=True)
    kept.write_text(
        "[2026-11-30 01:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "sglang/srt/speculative/eagle_worker.py", line 5, in verify\n'
        "RuntimeError: The size of tensor a (20) must match the size of tensor b (5) "
        "at non-singleton dimension 0\n"
    )

    code, out, _ = call(capsys, "last", "--state", str(tmp_path))

    assert code == 20
    assert f"first record  {run}:" in out
    assert f"`opsctl smoke glm5 --bisect --state {tmp_path}`" in out
    assert f"`opsctl restart glm5 --no-smoke --again bisect --state {tmp_path}` first" in out
    assert "--disable-cuda-graph" not in out
    assert "5 requests x 4 draft tokens" in out
    assert "if it is 4" not in out


def test_run_is_found_by_a_part_of_its_id_and_by_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As `opsctl show` finds it; a run without a kept log says so."""
    ledger = Ledger.open(tmp_path)
    for at_s, name in enumerate(("20261129-aa11", "20261130-bb22")):
        ledger.begin(
            name, server="glm5", playbook="restart", at_s=at_s, who="ops", reason=None, inputs={}
        )
    ledger.close()
    kept = tmp_path / "runs" / "20261130-bb22" / "server.log"
    kept.parent.mkdir(parents=True)
    kept.write_text("Fatal Python error: Segmentation fault\n")

    found = [
        document(capsys, name, "--state", str(tmp_path))[1]["outcome"] for name in ("bb22", "last")
    ]
    code, _, err = call(capsys, "aa11", "--state", str(tmp_path))

    assert found == ["child-died", "child-died"]
    assert code == 2
    assert "no log was kept" in err


def test_last_is_the_newest_run_that_kept_a_log(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """After the crash come looks and refusals, which keep none; a run without a log names one that has."""
    ledger = Ledger.open(tmp_path)
    rows = (("r1", "glm5"), ("r2-crash", "glm5"), ("r3-other", "qwen"), ("r4-evidence", "glm5"))
    for at_s, (name, server) in enumerate(rows):
        ledger.begin(
            name, server=server, playbook="x", at_s=at_s, who="ops", reason=None, inputs={}
        )
    ledger.close()
    for name in ("r1", "r2-crash"):
        kept = tmp_path / "runs" / name / "server.log"
        kept.parent.mkdir(parents=True)
        kept.write_text("Fatal Python error: Segmentation fault\n")
    state = ("--state", str(tmp_path))

    _, body = document(capsys, "last", *state)
    code, _, told = call(capsys, "last", *state)
    refused, _, named = call(capsys, "r4", *state)
    _, _, alone = call(capsys, "r3", *state)
    _, by_path = document(capsys, str(CASES / "001-graph-bs-plus-one.log"), *state)

    assert (body["data"]["run"], by_path["data"]["run"]) == ("r2-crash", None)
    assert (code, refused) == (20, 2)
    assert "run r2-crash" in told
    assert "opsctl diagnose r2-crash" in named
    assert "opsctl show r3-other" in alone
    assert "opsctl diagnose r" not in alone


def test_reading_a_log_makes_no_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A look leaves nothing behind."""
    document(capsys, str(CASES / "001-graph-bs-plus-one.log"), "--state", str(tmp_path))

    assert list(tmp_path.iterdir()) == []
