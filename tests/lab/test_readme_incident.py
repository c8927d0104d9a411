"""The README's incident, executed: each command with its exit code, each line that is shown, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents import ROOT, Block, blocks
from tests.lab.fixture import Lab, outside_network
from tests.lab.sglang import environment
from tests.lab.stopping import cleared

pytestmark = [pytest.mark.lab, pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]
COMMAND_S = 600.0
VERSION = "0.5.12.post1"


@pytest.fixture
def site(clean_lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """The lab's own site file in a folder of its own; container 129 is brought back as it was."""
    with outside_network():
        environment.build(environment.default_prefix(), VERSION, print)
    assert clean_lab.pct("snapshot", "129", "readme").exit_code == 0
    path = tmp_path / "opsctl.yaml"
    path.write_text(clean_lab.instance.site_file.read_text())
    try:
        with cleared(clean_lab, "ct129"):
            yield path
    finally:
        clean_lab.pct("stop", "129")
        assert clean_lab.pct("rollback", "129", "readme").exit_code == 0
        clean_lab.pct("delsnapshot", "129", "readme")
        clean_lab.restore()


def test_the_incident_goes_as_the_readme_shows_it(clean_lab: Lab, site: Path) -> None:
    """The crash is found and told, its repetition refused, and the other patch proven."""
    whole = yaml.safe_load(site.read_text())
    ran = 0
    for block in of_the_incident():
        if block.language == "yaml":
            write(site, whole, yaml.safe_load(block.text))
            continue
        codes = [int(word) for word in block.word.partition("exits ")[2].split()]
        parts = transcript(block)
        assert len(codes) == len(parts), block.where
        for wanted, (command, shown) in zip(codes, parts, strict=True):
            done = run(clean_lab, site, command)
            assert done[0] == wanted, (block.where, command, done[1])
            missing = first_missing(shown, done[1])
            assert missing is None, (block.where, command, missing, done[1])
            ran += 1
    assert ran == 8


def of_the_incident() -> list[Block]:
    """Return the blocks of that section: what goes into the site file, and the transcripts."""
    text = (ROOT / "README.md").read_text().splitlines()
    begin = text.index("## The incident, replayed")
    found = [block for block in blocks(ROOT / "README.md") if block.line > begin]
    return [block for block in found if block.language == "yaml" or block.place == "incident"]


def write(site: Path, whole: dict[str, Any], changes: dict[str, Any]) -> None:
    """Write the site file as it was, with one server, and with the block's keys in that."""
    server = dict(whole["servers"]["glm5"])
    for key, value in changes.items():
        server[key] = {**server.get(key, {}), **value} if isinstance(value, dict) else value
    site.write_text(yaml.safe_dump({**whole, "servers": {"glm5": server}}))


def transcript(block: Block) -> list[tuple[str, list[str]]]:
    """Return each command with the lines that are shown of its output."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def run(lab: Lab, site: Path, command: str) -> tuple[int, str]:
    """Run one line in the lab's shell; what it says on both streams, in their order."""
    done = lab.run(
        ["sh", "-c", f"{command} 2>&1"],
        timeout_s=COMMAND_S,
        OPSCTL_SITE=str(site),
        XDG_STATE_HOME=str(site.parent / "state"),
    )
    print(f"$ {command}\n{done.stdout}(exit {done.exit_code})")
    return done.exit_code, done.stdout


def first_missing(shown: list[str], printed: str) -> str | None:
    """Return the first line that does not come, behind those before it; None when all come."""
    left = iter([same(line) for line in printed.splitlines()])
    for line in shown:
        pattern = ".*".join(re.escape(same(part)) for part in line.split("..."))
        if not any(re.fullmatch(pattern, one) for one in left):
            return line
    return None


def same(text: str) -> str:
    """Return a line without what differs from run to run: numbers, hashes, run ids, blanks."""
    text = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b", "RUN", text)
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,16}\b", "HASH", text)
    return " ".join(re.sub(r"\d+(?:\.\d+)?", "N", text).split())
