"""README and docs say only what is so: commands exist, links lead somewhere, blocks are marked."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from opsctl.cli import COMMANDS, root
from opsctl.site import Site
from tests import documents
from tests.documents import ROOT, Block

LANGUAGES = {*documents.COMMAND_LANGUAGES, "text", "yaml", "json", "ini", "python", "diff", "jinja"}
names = [str(path.relative_to(ROOT)) for path in documents.pages()]


@pytest.mark.parametrize("name", names)
def test_every_block_has_a_language_and_every_command_a_mark(name: str) -> None:
    """A block of commands says whether a test runs it, where, or why not."""
    for block in documents.blocks(ROOT / name):
        assert block.language in LANGUAGES, block.where
        if block.language in documents.COMMAND_LANGUAGES:
            assert block.mark is not None, f"{block.where}: no mark"
            assert block.place in (None, *documents.PLACES), block.where
            assert block.commands(), f"{block.where}: no command"
            assert block.mark == "run" or len(block.word) > 5, f"{block.where}: a reason"


@pytest.mark.parametrize("name", names)
def test_every_command_line_is_one_that_the_real_commands_take(name: str) -> None:
    """An unknown command, option or a missing argument in a document fails here."""
    for block in documents.blocks(ROOT / name):
        if block.language not in documents.COMMAND_LANGUAGES:
            continue
        for line in block.commands():
            for words in documents.opsctl_calls(line):
                try:
                    documents.parse(words)
                except click.UsageError as error:
                    pytest.fail(f"{block.where}: opsctl {' '.join(words)}: {error.message}")


@pytest.mark.parametrize("name", names)
def test_every_command_in_the_running_text_exists(name: str) -> None:
    """The same for code spans: command and options exist."""
    wrong = [
        f"{name}:{line}: `{text}`: {problem}"
        for line, text in documents.inline_commands(ROOT / name)
        if (problem := documents.check_words(text))
    ]
    assert not wrong, "\n".join(wrong)


def test_examples_of_every_help_page_are_taken_by_the_real_commands() -> None:
    """What --help shows as an example parses."""
    seen = 0
    for path, command in all_commands():
        verbatim = [part for part in (command.help or "").split("\n\n") if "\b" in part]
        for line in "\n".join(verbatim).splitlines():
            text = re.split(r"\s{2,}", line.strip())[0]
            if not re.match(r"(\S.* \| )?opsctl ", text):
                continue
            seen += 1
            for words in documents.opsctl_calls(text):
                try:
                    documents.parse(words)
                except click.UsageError as error:
                    pytest.fail(f"{path} --help: {text}: {error.message}")
    assert seen > 20


@pytest.mark.parametrize("name", names)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    """Relative links, also those that leave docs; mkdocs checks those inside once more."""
    page = ROOT / name
    for text in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if re.match(r"[a-z]+:", text):
            continue
        target, _, anchor = text.partition("#")
        file = page if not target else (page.parent / target).resolve()
        assert file.exists(), f"{name}: {text}"
        if anchor and file.suffix == ".md":
            assert anchor in documents.anchors(file), f"{name}: {text}"


@pytest.mark.parametrize("name", names)
def test_site_files_in_documents_are_valid(name: str) -> None:
    """Each YAML block parses, and one with hosts or servers is a site file."""
    for block in documents.blocks(ROOT / name):
        if block.language != "yaml":
            continue
        body = yaml.safe_load(block.text)
        if isinstance(body, dict) and {"hosts", "servers"} & set(body):
            Site.model_validate(body)


def test_a_wrong_command_is_seen() -> None:
    """The checks above are not blind: command, option, argument, and each in a pipe."""
    for line in ("opsctl restrat glm5", "opsctl stop glm5 --gentle", "x && opsctl stop"):
        (words,) = documents.opsctl_calls(line)
        with pytest.raises(click.UsageError):
            documents.parse(words)
    assert documents.check_words("opsctl stop SERVER --gentle")
    assert documents.check_words("opsctl ct stat|start")
    assert documents.check_words("opsctl ct status|start VMID --json") is None
    block = Block("p", 1, "console", "$ opsctl status \\\n  glm5\noutput\n")
    assert block.commands() == ["opsctl status  glm5"]
    calls = list(documents.opsctl_calls("opsctl logs a -n 5 > f 2>&1 && opsctl show last | tail"))
    assert calls == [["logs", "a", "-n", "5"], ["show", "last"]]


def all_commands() -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name in COMMANDS:
        command = documents.get(root, name)
        assert command is not None
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", one) for inner, one in command.commands.items()]
    return found


def without_blocks(path: Path) -> str:
    return re.sub(r"^\s*(```+).*?^\s*\1\s*$", "", path.read_text(), flags=re.S | re.M)
