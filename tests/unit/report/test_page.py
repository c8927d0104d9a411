"""The page over the ledger: what is on it, what is never on it, and that it says where it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from opsctl import cli
from opsctl.ledger import Ledger
from opsctl.report.content import kind_of, make_content
from opsctl.report.gather import gather
from opsctl.report.page import SCRIPT, history_page
from tests.schemas import read_document
from tests.unit.report.history import HOSTILE, make_history


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return make_history(tmp_path)


def page_of(ledger: Ledger, state: Path, detailed: int = 100, limit: int | None = None) -> str:
    runs = gather(ledger, state, ledger.runs(limit=limit), detailed)
    made = make_content(
        runs, total=ledger.count(), source=str(state), at_s=1_764_090_000.0, question=""
    )
    return history_page(made)


def test_everything_that_a_reader_asks_is_on_the_page(ledger: Ledger, tmp_path: Path) -> None:
    """Servers, outcomes, steps, curves, levels, diagnosis with bracket, evidence, what was launched."""
    page = page_of(ledger, tmp_path)

    for text in (
        "5 runs", "1 good", "2 bad", "1 refused, cut or not told", "1 open", ">glm5<", ">other<",
        "Throughput of glm5", "shape-mismatch:c7b5", "2 runs of glm5, other",
        "160 = 10 requests x 16 draft tokens", "last good C=5, first bad C=10",
        "Decode batch, #running-req: 10", "end of the old server&#x27;s log", "spec-disable-v2 abababab",
        "NVIDIA H200", "took 60.0 s", "launch &lt;i&gt;did it",
    ):  # fmt: skip
        assert text in page, text
    assert page.count("<polyline") == 1
    assert page.count('<details class="run"') == 5


def test_nothing_of_the_ledger_reaches_the_page_as_markup(ledger: Ledger, tmp_path: Path) -> None:
    """Reasons, findings, logs, records, reasons of levels: escaped, all of them; no secret, no address."""
    page = page_of(ledger, tmp_path)

    assert HOSTILE not in page
    assert page.count("<script>") == 1
    assert page.replace(SCRIPT, "").count("alert(1)") == page.count("&lt;script&gt;alert(1)")
    assert "sk-do-not-show" not in page
    assert not re.search(r'(?:src|href|action)="(?!#)', page)
    assert "default-src 'none'" in page


def test_the_page_says_what_it_leaves_out(ledger: Ledger, tmp_path: Path) -> None:
    """The limit of the list and of the details are told; a signature is explained all the same."""
    page = page_of(ledger, tmp_path, detailed=1, limit=4)

    assert "the newest 4 of 5 runs" in page
    assert "-n N or --all" in page
    assert "here for 2 of them" in page  # the newest, and the newest of the signature
    assert "opsctl show 20261129-030000-0003" in page
    assert "160 = 10 x 16" in page


def test_an_empty_ledger_makes_a_page(tmp_path: Path) -> None:
    """Before the first run there is nothing to show, and it says so."""
    page = page_of(Ledger.open(tmp_path), tmp_path)

    assert "nothing has run yet" in page


def test_a_damaged_record_costs_its_details_only(ledger: Ledger, tmp_path: Path) -> None:
    """The row is shown; the others whole."""
    from opsctl import ledger_tables as tables

    with ledger._engine.begin() as connection:
        connection.execute(tables.runs.update().values(document="x" * 10))

    assert page_of(ledger, tmp_path).count('<details class="run"') == 5


def test_refusals_and_unknowns_are_not_shown_as_crashes(ledger: Ledger) -> None:
    """Red is for a server that is bad; yellow for a run that was refused or could not tell."""
    kinds = {row.exit_code: kind_of(row) for row in ledger.runs()}

    assert kinds == {0: "good", 60: "bad", 50: "unsure", None: "open"}


def test_history_writes_the_page_whole_or_not_at_all(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--html FILE` prints the file's name; a place that cannot be written is a usage error."""
    ledger.close()
    target = tmp_path / "runs.html"

    assert cli.run(["history", "glm5", "--html", str(target), "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    assert "3 runs, of glm5" in target.read_text()
    assert not list(tmp_path.glob(".*.part"))

    words = ["history", "--html", str(tmp_path / "no" / "x.html"), "--state", str(tmp_path)]
    assert cli.run([*words, "--json"]) == 2
    assert read_document(capsys.readouterr().out)["findings"][0]["code"] == "usage"

    assert cli.run(["history", "--html", str(target), "--json", "--state", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["html"] == str(target)
