"""README and docs as the tests see them: code blocks with their markers, commands in them, links.

A block that holds commands says above itself what a test does with it::

    <!-- run: wire -->            in a folder with a site and a stand-in server on this machine
    <!-- run: wire, exit 20 -->   the last command ends with 20
    <!-- run: wire, output -->    and the transcript's lines are what it prints (``...`` is anything)
    <!-- run: lab -->             on the lab's control machine, with its Proxmox node and container 129
    <!-- run: incident, exits 50 0 -->   on real SGLang there (tests/lab/test_readme_incident.py): the exit
                                  code of each command, and the lines in their order, numbers aside
    <!-- no run: REASON -->       it is parsed, and not executed

"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from opsctl.cli import COMMANDS, root

ROOT = Path(__file__).resolve().parents[1]
COMMAND_LANGUAGES = ("console", "sh", "bash")
MARK = re.compile(r"^\s*<!-- (run|no run): (.*?) -->\s*$")
FENCE = re.compile(r"^(\s*)(```+)\s*([\w+-]*)(.*)$")
PLACES = ("wire", "lab", "incident")
OPERATORS = ("|", ">", ">>", "2>", "<", "&&", "||", ";", "&")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    mark: str | None = None  # run, no run
    word: str = ""  # what the mark says

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def place(self) -> str | None:
        """The place where it runs; None when it does not."""
        return self.word.split(",")[0].strip() if self.mark == "run" else None

    @property
    def exit_code(self) -> int:
        """The exit code of its last command."""
        found = re.search(r"\bexit (\d+)", self.word)
        return int(found.group(1)) if found else 0

    def output(self) -> list[str]:
        """Return the transcript's lines of output, when the mark says that they are to be compared."""
        if "output" not in self.word.split(", "):
            return []
        return [line for line in self.text.splitlines() if line and not line.startswith("$ ")]

    def commands(self) -> list[str]:
        """Return the command lines: after ``$`` in a transcript, each line of a script."""
        joined = re.sub(r"\\\n\s*", " ", self.text)
        lines = joined.splitlines()
        if self.language == "console":
            return [line[2:].strip() for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def pages() -> list[Path]:
    """Return README, CONTRIBUTING and every page of docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    page = str(path.relative_to(ROOT))
    lines = path.read_text().splitlines()
    mark: tuple[str | None, str] = (None, "")
    at = 0
    while at < len(lines):
        said = MARK.match(lines[at])
        fence = FENCE.match(lines[at])
        if said:
            mark = (said.group(1), said.group(2))
        elif fence:
            begin = at + 1
            at += 1
            while lines[at].strip() != fence.group(2):
                at += 1
            body = [line.removeprefix(fence.group(1)) for line in lines[begin:at]]
            yield Block(page, begin, fence.group(3), "\n".join(body), *mark)
            mark = (None, "")
        elif lines[at].strip():
            mark = (None, "")
        at += 1


def all_blocks() -> list[Block]:
    return [block for path in pages() for block in blocks(path)]


def blocks_for(place: str) -> dict[str, list[Block]]:
    """Return the blocks that run at ``place``, by page."""
    found: dict[str, list[Block]] = {}
    for block in all_blocks():
        if block.place == place:
            found.setdefault(block.page, []).append(block)
    return found


def inline_commands(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the commands in a page's running text: code spans that begin with ``opsctl``."""
    text = path.read_text()
    prose = re.sub(
        r"^\s*(```+).*?^\s*\1\s*$",
        lambda m: "\n" * m.group(0).count("\n"),
        text,
        flags=re.S | re.M,
    )
    for found in re.finditer(r"`(opsctl [^`]+)`", prose):
        yield prose[: found.start()].count("\n") + 1, " ".join(found.group(1).split())


def opsctl_calls(line: str) -> Iterator[list[str]]:
    """Yield the words after ``opsctl`` of each call in a shell line, without redirections."""
    line = re.sub(r"(?<=\s)2>(&1)?", ">", re.sub(r"\s#.*", "", line))
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] | None = None
    skip = False
    for token in [*lexer, ";"]:
        if set(token) <= set("|&;<>()"):
            if words is not None and "<" not in token and ">" not in token:
                yield words
                words = None
            skip = ">" in token or "<" in token
        elif skip:
            skip = False
        elif words is not None:
            words.append(token)
        elif token == "opsctl":
            words = []


def parse(words: list[str]) -> None:
    """Parse one call by the real commands, without running it. Raises click.UsageError."""
    context = root.make_context("opsctl", list(words))
    command: click.Command = root
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        try:
            context = command.make_context(name, list(rest), parent=context)
        except click.exceptions.Exit:
            return  # --help, --version
        except click.BadParameter as error:
            if error.message.endswith("does not exist."):
                return  # a file: whoever runs the line has it
            raise


def check_words(text: str) -> str | None:
    """Say what is wrong with a command in running text, in which SERVER and A|B stand for others."""
    words = text.split()[1:]
    found: list[click.Command] = [root]
    for number, word in enumerate(words):
        if word in OPERATORS or word == "--":
            break
        if word in ("--help", "-h"):
            continue
        if word.startswith(("-", "[-")) and len(word.strip("[]-.,")):
            option = word.strip("[],.").split("=")[0].split("|")[0]
            if not any(option in [*p.opts, *p.secondary_opts] for c in found for p in c.params):
                return f"{option} is no option of {' '.join(words[:number])}"
        elif all(isinstance(one, click.Group) for one in found):
            names = word.strip(".,").split("|")
            if names == ["COMMAND"]:
                break
            next_ = [get(one, name) for one in found for name in names]
            if None in next_:
                return f"there is no command {word}"
            found = [one for one in next_ if one is not None]
    return None


def get(group: click.Command, name: str) -> click.Command | None:
    """Return a command of a group; None where there is none."""
    assert isinstance(group, click.Group)
    if group is root and name not in COMMANDS:
        return None
    return group.get_command(click.Context(group), name)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs both make them."""
    prose = re.sub(r"^\s*(```+).*?^\s*\1\s*$", "", path.read_text(), flags=re.S | re.M)
    found = set()
    for line in prose.splitlines():
        if line.startswith("#"):
            title = re.sub(r"[`*]", "", line.lstrip("#").strip()).lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def is_printed(line: str, printed: str) -> bool:
    """Say whether a line of a transcript is among what was printed; ``...`` stands for anything."""
    pattern = ".*".join(re.escape(part.strip()) for part in line.split("..."))
    return any(re.fullmatch(pattern, one.strip()) for one in printed.splitlines())


def with_yes(line: str) -> str:
    """Return a line of opsctl with ``--yes`` where the command would ask, as the reader would agree."""
    found = re.search(r"\bopsctl (.*?)(?=\s+[|>&;#]|$)", line)
    if found is None or "--dry-run" in line or "--yes" in line:
        return line
    command: click.Command = root
    for word in found.group(1).split():
        if not isinstance(command, click.Group):
            break
        command = get(command, word) or click.Command(word)
    asks = any("--yes" in param.opts for param in command.params)
    return f"{line[: found.end()]} --yes{line[found.end() :]}" if asks else line
