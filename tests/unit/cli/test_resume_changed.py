"""`opsctl resume` after the playbook has changed: it goes on where that is sound, and says why where not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import run
from opsctl.ledger import Ledger


def book(path: Path, *steps: str, inputs: str = "{}") -> None:
    rows = "".join(f"  - step: {step}\n" for step in steps)
    path.write_text(f"name: {path.stem}\nabout: a test\ninputs: {inputs}\nsteps:\n{rows}")


@pytest.fixture
def resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Writes a run that was cut after lock and look, and resumes it under the playbook of now."""
    playbook = tmp_path / "mine.yaml"
    ledger = Ledger.open(tmp_path)
    given = {"smoke": True}
    ledger.begin(
        "r1", server="one", playbook=str(playbook), at_s=1.0, who="me", reason=None,
        inputs={"command": "run", "playbook": str(playbook), "given": given, "deadline_s": None},
    )  # fmt: skip
    for position, name in enumerate(("lock", "look")):
        ledger.begin_step("r1", position, name, "read", 2.0 + position)
        ledger.end_step("r1", position, 0, at_s=3.0, outcome="done", changed=False, body={})
    ledger.finish("r1", at_s=4.0, outcome="cut", exit_code=30, signature=None, document={})
    ledger.close()
    site = tmp_path / "opsctl.yaml"
    site.write_text("hosts: {here: {local: true}}\nservers: {one: {host: here, command: [/x]}}\n")

    def call(*steps: str, inputs: str) -> tuple[int, dict[str, Any]]:
        book(playbook, *steps, inputs=inputs)
        words = ["resume", "r1", "--json", "--site", str(site), "--state", str(tmp_path)]
        code = run(words)
        return code, json.loads(capsys.readouterr().out)

    return call


def test_a_playbook_that_lost_a_begun_step_is_refused(resumed: Any) -> None:
    """Exit 50 with the step, what to look at, and that a new run is the way."""
    code, document = resumed("lock", "ask", "stop", inputs="{smoke: {default: true}}")

    finding = document["findings"][0]
    assert (code, finding["code"]) == (50, "playbook-changed")
    assert "begun step 'look', which the playbook does not have now" in finding["text"]
    assert "opsctl status one" in finding["next"]


def test_an_input_that_is_gone_is_refused(resumed: Any) -> None:
    """The run was begun with a value that the playbook of now does not know."""
    code, document = resumed("lock", "look", "ask", inputs="{}")

    assert (code, document["findings"][0]["code"]) == (50, "playbook-changed")
    assert "no input 'smoke'" in document["findings"][0]["text"]


def test_a_refused_run_stays_open(resumed: Any, tmp_path: Path) -> None:
    """Nothing was done in its name: with the old playbook back it can still go on."""
    resumed("lock", "ask", inputs="{smoke: {default: true}}")

    ledger = Ledger.open(tmp_path)
    found = ledger.find("r1")
    ledger.close()

    assert (found.run.outcome, found.notes) == ("cut", ())
