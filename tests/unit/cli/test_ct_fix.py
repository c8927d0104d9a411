"""`opsctl ct fix-devices` stands back while a run is open on a server in the container."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.cli.app import App
from opsctl.cli.ct_fix import refuse_open_run
from opsctl.containers import Place
from opsctl.errors import SafetyRefusal
from opsctl.ledger import Ledger


def target(*servers: str) -> Any:
    return SimpleNamespace(name="container 129 on pve1", place=Place(129, "pve1", servers))


def test_an_open_run_is_named_with_the_way_to_end_it(tmp_path: Path) -> None:
    """A run that was cut is open as well: resume looks first, then the lines may change."""
    ledger = Ledger.open(tmp_path)
    ledger.begin(
        "20261129-1", server="glm5", playbook="restart", at_s=1.0, who="alice@ops", reason=None, inputs={}
    )  # fmt: skip
    app = App(state_dir=tmp_path)

    with pytest.raises(SafetyRefusal) as caught:
        refuse_open_run(app, target("glm5"))
    refuse_open_run(app, target("another"))
    refuse_open_run(app, target())
    ledger.finish("20261129-1", at_s=2.0, outcome="done", exit_code=0, signature=None, document={})
    ledger.close()

    assert caught.value.code == "run-open"
    assert "alice@ops" in caught.value.message
    assert "opsctl resume 20261129-1" in (caught.value.next_step or "")
    refuse_open_run(app, target("glm5"))
