"""`opsctl history`, `show`, `resume` and `playbook` as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl import cli
from opsctl.ledger import Ledger
from tests.schemas import read_document


def opsctl(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.run(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A ledger with three runs: one passed, one crashed, one cut inside the stop."""
    ledger = Ledger.open(tmp_path)
    rows: list[tuple[str, str | None, int | None, str | None]] = [
        ("20261129-010000-aaaa", "done", 0, None),
        ("20261129-020000-bbbb", "failed", 60, "3f2a77"),
        ("20261129-030000-cccc", None, None, None),
    ]
    for number, (run, outcome, code, signature) in enumerate(rows):
        ledger.begin(
            run,
            server="glm5",
            playbook="restart",
            at_s=1000.0 + number,
            who="ann@desk",
            reason="graph crash",
            inputs={"command": "restart", "given": {"smoke": False}},
        )
        turn = ledger.begin_step(run, 7, "stop", "destroy", 1001.0)
        if outcome is not None and code is not None:
            body = {"data": {"summary": "5 terminated"}}
            ledger.end_step(run, 7, turn, at_s=1002.0, outcome="done", changed=True, body=body)
            ledger.finish(
                run, at_s=1010.0, outcome=outcome, exit_code=code, signature=signature, document={}
            )
    ledger.close()
    return tmp_path


def test_history_says_what_stopped_a_refused_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who reads the list need not open each run: the step and its words stand behind the outcome."""
    ledger = Ledger.open(tmp_path)
    order = {"command": "restart", "given": {}}
    text = "run 20261130-1-aa crashed with the same patches"
    for run, outcome, document in (
        ("20261130-050000-eeee", "refused", {}),
        ("20261130-060000-ffff", "refused", {"findings": [{"text": "pid 7 cannot be attributed"}]}),
    ):
        ledger.begin(
            run, server="glm5", playbook="restart", at_s=1.0, who="ann", reason=None, inputs=order
        )
        if not document:
            turn = ledger.begin_step(run, 5, "known-failure", "read", 2.0)
            body = {"findings": [{"text": text}]}
            ledger.end_step(run, 5, turn, at_s=3.0, outcome="refused", changed=False, body=body)
        ledger.finish(
            run, at_s=4.0, outcome=outcome, exit_code=50, signature=None, document=document
        )
    ledger.close()

    _, out, _ = opsctl(capsys, "history", "--state", str(tmp_path))
    _, printed, _ = opsctl(capsys, "history", "--state", str(tmp_path), "--json")

    assert f"(known-failure: {text})" in out
    assert "(pid 7 cannot be attributed)" in out
    whys = [run["why"] for run in read_document(printed)["data"]["runs"]]
    assert sorted(whys) == [f"known-failure: {text}", "pid 7 cannot be attributed"]


def test_history_lists_newest_first(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who, why, how it ended; an open run says so."""
    code, out, _ = opsctl(capsys, "history", "--state", str(state))

    lines = out.splitlines()
    assert code == 0
    assert "open" in lines[1]
    assert "failed 60" in lines[2]
    assert "3f2a77" in lines[2]
    assert "ann@desk  graph crash" in lines[3]


def test_history_as_json_keeps_the_contract(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """runs[{id, server, outcome, fingerprint, signature, reason, who}]."""
    code, out, _ = opsctl(
        capsys,
        "history",
        "glm5",
        "--failed",
        "--signature",
        "3f2a",
        "--json",
        "--state",
        str(state),
    )

    document = read_document(out)
    assert (code, document["schema"]) == (0, "opsctl.history/1")
    wanted = {"id", "server", "outcome", "fingerprint", "signature", "reason", "who"}
    assert [set(run) >= wanted for run in document["data"]["runs"]] == [True]


def test_show_of_a_smoke_lists_its_levels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A smoke has no steps; what it measured stands where they would."""
    ledger = Ledger.open(tmp_path)
    run = "20261130-010000-aaaa"
    ledger.begin(run, server="glm5", playbook="smoke", at_s=1.0, who="ann", reason=None, inputs={})
    good = {"concurrency": 2, "outcome": "passed", "output_tok_s": 59.51, "ttft_ms": {"p50": 215.6}}
    bad = {"concurrency": 5, "outcome": "crashed", "reason": "the server is gone"}
    document = {"data": {"levels": [good, bad]}}
    ledger.finish(run, at_s=9.0, outcome="crashed", exit_code=60, signature=None, document=document)
    ledger.close()

    code, out, _ = opsctl(capsys, "show", "last", "--state", str(tmp_path))

    assert code == 0
    assert "steps:" not in out
    assert "    C=2: passed, 59.5 tok/s, TTFT p50 215.6 ms\n" in out
    assert "    C=5: crashed (the server is gone)" in out


def test_too_short_an_id_is_told_with_what_to_do(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many it fits, some of them, and where the rest is listed."""
    code, _, err = opsctl(capsys, "show", "20261129", "--state", str(state))

    assert code == 2
    assert "fits 3 runs" in err
    assert "next: give more of its id; `opsctl history --all" in err


def test_history_takes_n_where_others_take_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest letters would be --site."""
    code, _, err = opsctl(capsys, "history", "--limit", "5")

    assert code == 2
    assert "next: -n N is how many runs are listed" in err


def test_show_names_the_step_that_never_ended(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a kill -9 the reader sees where it was."""
    code, out, _ = opsctl(capsys, "show", "cccc", "--state", str(state))

    assert code == 0
    assert "outcome open" in out
    assert "stop" in out
    assert "never ended" in out


def test_show_says_why_a_step_did_not_do_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first finding stands beside it; a finding about nothing in particular has no empty name."""
    ledger = Ledger.open(tmp_path)
    run = "20261129-040000-dddd"
    about: dict[str, Any] = {"server": "glm5", "playbook": "restart", "who": "ann", "reason": None}
    ledger.begin(run, at_s=1.0, inputs={}, **about)
    turn = ledger.begin_step(run, 3, "preflight", "read", 1.0)
    body = {"findings": [{"code": "x", "text": "the parser could not be asked"}]}
    ledger.end_step(run, 3, turn, at_s=2.0, outcome="unknown", changed=False, body=body)
    said = {"findings": [{"code": "y", "subject": "", "text": "the kernel log is not readable"}]}
    ledger.finish(run, at_s=3.0, outcome="failed", exit_code=21, signature=None, document=said)
    ledger.close()

    _, out, _ = opsctl(capsys, "show", "last", "--state", str(tmp_path))

    step = next(line for line in out.splitlines() if line.strip().startswith("preflight"))
    assert step.endswith("the parser could not be asked")
    assert "  the kernel log is not readable" in out.splitlines()


def test_show_lists_all_that_differs_from_the_last_good_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refusal shows the first five and names this command for the others."""
    ledger = Ledger.open(tmp_path)
    run = "20261129-050000-eeee"
    about: dict[str, Any] = {"server": "glm5", "playbook": "restart", "who": "ann", "reason": None}
    ledger.begin(run, at_s=1.0, inputs={}, **about)
    turn = ledger.begin_step(run, 3, "known-failure", "read", 1.0)
    body = {"data": {"differences": [f"argument --a{n} is new" for n in range(7)]}}
    ledger.end_step(run, 3, turn, at_s=2.0, outcome="refused", changed=False, body=body)
    ledger.close()

    _, out, _ = opsctl(capsys, "show", run, "--state", str(tmp_path))

    assert [f"    argument --a{n} is new" in out.splitlines() for n in range(7)] == [True] * 7


def test_show_of_an_unknown_run_is_a_usage_error(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, with the way to find it."""
    code, _, err = opsctl(capsys, "show", "nope", "--state", str(state))

    assert code == 2
    assert "opsctl history" in err


def test_resume_alone_lists_only_what_is_open(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crashed run has ended; a cut one has not."""
    code, out, _ = opsctl(capsys, "resume", "--json", "--state", str(state))

    assert code == 0
    assert [run["id"] for run in read_document(out)["data"]["runs"]] == ["20261129-030000-cccc"]


def test_an_ended_run_is_not_resumed(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new attempt is a new run."""
    code, _, err = opsctl(capsys, "resume", "bbbb", "--yes", "--state", str(state))

    assert code == 2
    assert "has ended: failed" in err


def test_playbooks_are_listed_shown_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """list names steps, show describes them, check refuses with the line."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: bad\nabout: x\nsteps:\n  - step: stopp\n")

    listed = opsctl(capsys, "playbook", "list")
    shown = opsctl(capsys, "playbook", "show", "restart")
    checked = opsctl(capsys, "playbook", "check", "restart", "launch", "stop")
    refused = opsctl(capsys, "playbook", "check", str(bad))

    assert "restart" in listed[1]
    assert "known-failure" in listed[1]
    assert "stop the server's processes by identity" in shown[1]
    assert checked[0] == 0
    assert refused[0] == 10
    assert f"{bad}:4: unknown step 'stopp'; did you mean 'stop'?" in refused[2]


@pytest.mark.parametrize("words", [["run", "restart", "glm5", "--set", "smoke"]])
def test_a_malformed_input_is_a_usage_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """--set wants NAME=VALUE."""
    code, _, err = opsctl(capsys, *words, "--yes")

    assert code == 2
    assert "NAME=VALUE" in err


@pytest.mark.parametrize("name", ["restart", "launch", "run", "resume", "logs", "history", "show"])
def test_options_and_parameters_of_a_command_agree(name: str) -> None:
    """An option without its parameter, or the other way round, is an error only when somebody needs it."""
    import inspect

    from opsctl.cli import root

    command = root.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    function = inspect.unwrap(command.callback)  # type: ignore[arg-type]

    own = {parameter.name for parameter in command.params}
    shared = {"site_path", "state_dir", "as_json", "yes", "dry_run", "help"}
    assert own - shared == set(list(inspect.signature(function).parameters)[1:])
