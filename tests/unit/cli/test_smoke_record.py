"""What a smoke run leaves in the ledger, and what it learns from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.cli.app import App
from opsctl.cli.smoke_record import record_smoke, way_out_of
from opsctl.ledger import Ledger
from opsctl.output import Document

SIGNATURE = "shape-mismatch:c7b51289d13b"


def app_in(state: Path) -> App:
    return App(site_path=None, state_dir=state, as_json=True, yes=False, dry_run=False)


def crash(run: str) -> Document:
    data = {"profile": "quick", "url": "http://x", "diagnosis": {"signature": SIGNATURE}}
    return Document("smoke", "crashed", 60, run, data=data)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A ledger with one restart of glm5 that passed."""
    ledger = Ledger.open(tmp_path)
    ledger.begin(
        "r1", server="glm5", playbook="restart", at_s=1.0, who="ops", reason=None, inputs={}
    )
    ledger.set_facts("r1", {"content": {"patches": {"spec-disable-v1": "ab12" * 16}}}, "f1")
    ledger.finish("r1", at_s=2.0, outcome="done", exit_code=0, signature=None, document={})
    ledger.close()
    return tmp_path


def test_smoke_keeps_the_content_of_the_launch_that_it_smoked(state: Path) -> None:
    """A second crash of this kind names the first one, with the patches that ran then."""
    record_smoke(app_in(state), crash("s1"), "glm5", 10.0, "", "r1")
    second = crash("s2")
    record_smoke(app_in(state), second, "glm5", 20.0, "", "r1")

    (finding,) = [f for f in second.findings if f.code == "signature-known"]
    assert "s1 (glm5, smoke, 1970-01-01 00:00, patches spec-disable-v1 ab12ab12)" in finding.text
    assert "glm5 last passed without it: r1 (glm5, restart" in finding.text
    assert finding.next == "opsctl show s1"


def test_patches_of_a_launch_from_elsewhere_are_not_guessed(state: Path) -> None:
    """The record beside the server names a run that this ledger does not have."""
    record_smoke(app_in(state), crash("s1"), "glm5", 10.0, "", "r-of-another-machine")
    second = crash("s2")
    record_smoke(app_in(state), second, "glm5", 20.0, "", None)

    (finding,) = [f for f in second.findings if f.code == "signature-known"]
    assert "s1 (glm5, smoke, 1970-01-01 00:00, patches not known)" in finding.text


def test_first_crash_of_its_kind_says_nothing(state: Path) -> None:
    """No signature was seen before: no finding."""
    document = crash("s1")
    record_smoke(app_in(state), document, "glm5", 10.0, "", "r1")
    assert not document.findings


@pytest.mark.parametrize("good_run", [False, True])
def test_a_known_bad_patch_of_the_launch_is_told_with_its_way_out(
    tmp_path: Path, good_run: bool
) -> None:
    """By the launch's own record, whatever stands by now; and which run passed without it."""
    ledger = Ledger.open(tmp_path)
    runs = [("r1", "spec-disable-v2", 0), ("r2", "spec-disable-v1", 60)][0 if good_run else 1 :]
    for at_s, (run, patch, code) in enumerate(runs):
        ledger.begin(
            run, server="glm5", playbook="restart", at_s=at_s, who="", reason=None, inputs={}
        )
        content = {"patches": {patch: "ab"}, "package_version": "0.5.12.post1"}
        ledger.set_facts(run, {"content": content}, run)
        ledger.finish(run, at_s=at_s, outcome="", exit_code=code, signature=None, document={})
    ledger.close()
    site = SimpleNamespace(patch_folder=None)
    session: Any = SimpleNamespace(name="glm5", hosts=SimpleNamespace(site=site))

    said = way_out_of(app_in(tmp_path), session, "r2") or ""

    assert "spec-disable-v1 is in place and known to be bad" in said
    assert "write spec-disable-v2 in its place" in said
    assert ("run r1 passed without it" in said) is good_run
    if good_run:
        assert way_out_of(app_in(tmp_path), session, "r1") is None
