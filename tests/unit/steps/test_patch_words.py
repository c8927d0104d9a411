"""What a patch command says of a server that still runs the old files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from opsctl.steps.patch import restart_finding


def test_restart_that_is_needed_names_the_server() -> None:
    """The name was given to the command: its advice can be pasted."""
    seen = SimpleNamespace(root="/v/sglang", raw={"running": [{"pid": 7}]})

    found = restart_finding(cast("Any", seen), "glm5")

    assert found is not None
    assert "pid 7 still runs" in found.text
    assert found.next == "restart the server: opsctl restart glm5"
