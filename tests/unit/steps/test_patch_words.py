"""What a patch command says of a server that still runs the old files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from opsctl.steps.patch import findings_of, restart_finding


def test_restart_that_is_needed_names_the_server() -> None:
    """The name was given to the command: its advice can be pasted."""
    seen = SimpleNamespace(root="/v/sglang", raw={"running": [{"pid": 7}]})

    found = restart_finding(cast("Any", seen), "glm5")

    assert found is not None
    assert "pid 7 still runs" in found.text
    assert found.next == "restart the server: opsctl restart glm5"


def test_other_installations_are_told_where_somebody_looks_and_not_at_each_change() -> None:
    """`patch status` asks for them; what changes files, and a restart, do not say it again and again."""
    target = SimpleNamespace(interpreter="/v/bin/python")
    raw: dict[str, Any] = {"package": None, "busy": None}
    seen = cast(
        "Any",
        SimpleNamespace(
            root="/v/sglang", raw=raw, others=("/w/sglang",), editable=False, target=target
        ),
    )

    assert [one.code for one in findings_of(seen, others=True)] == ["package-others"]
    assert findings_of(seen) == []
