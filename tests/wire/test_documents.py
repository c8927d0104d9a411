"""Commands of README and docs, run as they stand, where a stand-in server on this machine is enough."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, Block, blocks_for, is_printed, with_yes
from tests.wire.ground import Ground, make_ground
from tests.wire.test_oncall import environment

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]
PAGES = blocks_for("wire")


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """A folder with a site of one server, glm5, and the log that the pages speak of."""
    with make_ground(tmp_path, "glm5") as made:
        shutil.copy(
            ROOT / "tests" / "data" / "diagnose" / "shape-v2-192-by-12.log", tmp_path / "server.log"
        )
        yield made


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_commands_of_a_page_do_what_the_page_says(ground: Ground, page: str) -> None:
    """Each block in its order, with the exit code that its mark promises."""
    for block in PAGES[page]:
        run_block(ground, block)


def run_block(ground: Ground, block: Block) -> None:
    lines = block.commands() if block.language == "console" else [block.text]
    printed = ""
    for number, line in enumerate(lines, 1):
        done = subprocess.run(
            ["sh", "-e", "-c", with_yes(line) if block.language == "console" else line],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(ground),
            cwd=ground.folder,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        wanted = block.exit_code if number == len(lines) else 0
        assert done.returncode == wanted, (block.where, line, done.stdout, done.stderr)
        printed += done.stdout + done.stderr
    missing = [line for line in block.output() if not is_printed(line, printed)]
    assert not missing, (block.where, missing, printed)
