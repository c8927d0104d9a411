"""Messages in one voice: one lower-case sentence without a full stop, no exclamation, no courtesy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

OPSCTL = Path(__file__).parents[3] / "opsctl"
RAISED = ("Error", "Refusal", "Failed", "Tell", "Crashed", "Interrupted")
NAMES = {"Python", "Proxmox"}
COURTESY = re.compile(
    r"\b(please|sorry|oops|successfully|unfortunately|failed to|unable to)\b", re.I
)


def text_of(node: ast.AST) -> str:
    """Return a string of the source; what is filled in later is a zero byte."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "\0"


def messages() -> Iterator[tuple[str, str]]:
    """Yield what errors, findings and checks say, and their next steps."""
    for path in sorted(OPSCTL.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            said: list[ast.AST] = list(node.args[:1]) if name.endswith(RAISED) else []
            said += node.args[2:4] if name in ("Finding", "Check") else []
            said += [k.value for k in node.keywords if k.arg in ("next_step", "text", "next")]
            yield from ((f"{path.name}:{node.lineno}", text_of(one)) for one in said)


def test_messages_have_one_voice() -> None:
    """Lower case but for names and acronyms, and no other tone anywhere."""
    wrong = []
    found = [(where, text) for where, text in messages() if text.strip("\0")]
    for where, text in found:
        first = re.match(r"[A-Za-z]+", text)
        loud = "!" in text.replace("!=", "").replace("user@realm!name", "")
        capital = first and re.fullmatch("[A-Z][a-z]+", first[0]) and first[0] not in NAMES
        stop = text.endswith(".") and not text.endswith("...")
        if loud or capital or stop or COURTESY.search(text):
            wrong.append((where, text))

    assert wrong == []
    assert len(found) > 300
