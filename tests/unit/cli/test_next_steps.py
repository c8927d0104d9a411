"""Every next step that opsctl prints can be pasted: it parses, and keeps the server, --site and --state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from opsctl.cli import COMMANDS, given, root, run
from tests import documents

OPSCTL = Path(__file__).parents[3] / "opsctl"
CALL = re.compile(rf"\bopsctl ((?:{'|'.join(sorted(COMMANDS))})\b[^`;,)\n]*)")
# what nobody but the reader knows: a log file that was not given, a server where none was named
PLACEHOLDERS = {"SERVER", "LOG", "RUN"}
PROSE = ("opsctl run 1",)  # "(opsctl run ID)" in the description of a snapshot: no command


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module that are no docstrings, with 1 for what an f-string fills in."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            inner.add(id(node.body[0].value))  # type: ignore[attr-defined]
        if isinstance(node, ast.JoinedStr):
            inner.update(id(value) for value in node.values)
            parts = (v.value if isinstance(v, ast.Constant) else "1" for v in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_docstring = id(node) in inner
            yield from () if is_docstring else [(node.lineno, node.value)]


def commands_said() -> list[tuple[str, str]]:
    found = []
    for path in sorted(OPSCTL.rglob("*.py")):
        if path.parent.name == "report":  # HTML: its commands stand in <code>
            continue
        for line, text in texts(ast.parse(path.read_text())):
            for hit in CALL.finditer(text):
                said = f"opsctl {hit.group(1)}".strip().rstrip(".")
                found.append((f"{path.relative_to(OPSCTL.parent)}:{line}", said))
    return found


def test_every_command_in_a_message_is_one_that_can_be_run() -> None:
    """Arguments and options are those of the real command; only what nobody knows is a placeholder."""
    wrong = []
    said = [one for one in commands_said() if one[1] not in PROSE]
    for where, text in said:
        words = text.removeprefix("opsctl ").rstrip("'").split()
        if words in (["ct"], ["init", "makes", "one"]):
            continue  # running text: a group, and a verb
        try:
            documents.parse(words)
        except click.UsageError as error:
            wrong.append(f"{where}: {text}: {error.message}")
        unknown = set(re.findall(r"\b[A-Z]{3,}\b", text)) - PLACEHOLDERS
        wrong += [f"{where}: {text}: placeholder {sorted(unknown)}"] if unknown else []

    assert wrong == []
    assert len(said) > 60


def test_next_steps_keep_the_site_the_state_and_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given by option, they are in the next command too; and SERVER is the one that was named."""
    site = tmp_path / "my site.yaml"
    site.write_text("hosts: {here: {local: true}}\nservers: {}\n")

    assert run(["stop", "glm5", "--site", str(site), "--state", str(tmp_path)]) == 2

    assert "there is no server 'glm5'" in capsys.readouterr().err
    options = f"--site '{site}' --state {tmp_path}"
    assert given.runnable("look: `opsctl gpu status SERVER --learn`; then") == (
        f"look: `opsctl gpu status glm5 --learn {options}`; then"
    )
    assert given.runnable("opsctl show last, opsctl diagnose x") == (
        f"opsctl show last {options}, opsctl diagnose x {options}"
    )
    assert given.runnable(f"opsctl show --site '{site}' x") == (
        f"opsctl show --site '{site}' x --state {tmp_path}"
    )


def test_next_steps_of_a_container_keep_its_node(tmp_path: Path) -> None:
    """Before the words that belong to the program in the container; other commands have no --node."""
    site = tmp_path / "opsctl.yaml"
    site.write_text("hosts: {here: {local: true}}\nservers: {}\n")

    run(["ct", "status", "130", "--node", "pve1", "--site", str(site)])

    options = f"--node pve1 --site {site}"
    assert given.runnable("opsctl ct exec 130 -- ps -ef; then") == (
        f"opsctl ct exec 130 {options} -- ps -ef; then"
    )
    assert given.runnable("`opsctl status`") == f"`opsctl status --site {site}`"


def test_next_steps_stay_as_they_are_without_such_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable holds for the next command as well; and words that are no command are left alone."""
    monkeypatch.setenv("OPSCTL_SITE", str(tmp_path / "none.yaml"))

    assert run(["status", "--state", str(tmp_path)]) == 10

    assert given.runnable("see `opsctl show x`") == f"see `opsctl show x --state {tmp_path}`"
    text = "opsctl resets no GPU; opsctl.yaml; opsctl-glm5; opsctl keeps it"
    assert given.runnable(text) == text
    given.forget()
    assert given.runnable("see `opsctl show x`") == "see `opsctl show x`"


def test_the_groups_are_those_of_the_command_line() -> None:
    """Options go behind the second word of these."""
    found = [
        name
        for name in COMMANDS
        if isinstance(root.get_command(click.Context(root), name), click.Group)
    ]

    assert sorted(found) == list(given.GROUPS)
