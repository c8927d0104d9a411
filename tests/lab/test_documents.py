"""Commands of README and docs, run as they stand on the lab: a node, container 129, server glm5."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.documents import Block, blocks_for, with_yes
from tests.lab.fixture import Lab, wait_until
from tests.lab.stopping import cleared
from tests.lab.test_restart import mains, with_server

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]
WHERE, PORT = "ct129", 30000


@pytest.fixture
def site(clean_lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """The lab's site with the stand-in as glm5, small and quick."""
    small = {"levels": [1, 2], "requests": 2, "tokens": 4}
    with cleared(clean_lab, WHERE):
        path = with_server(clean_lab, tmp_path, "glm5", smoke=small, stop={"grace_s": 5})
        body = yaml.safe_load(path.read_text())
        hosts = {name: body["hosts"][name] for name in ("pve1", "node1", "gpu1", WHERE)}
        servers = {"glm5": body["servers"]["glm5"]}
        path.write_text(yaml.safe_dump({"hosts": hosts, "servers": servers}))
        yield path
        script = "systemctl stop 'opsctl-*' ; rm -rf /var/lib/opsctl"
        clean_lab.on(WHERE, ["sh", "-c", script])


def test_the_commands_of_all_pages_do_what_the_pages_say(clean_lab: Lab, site: Path) -> None:
    """Every block in its order; before each page the server runs, before some it is broken on purpose."""
    wrong = []
    for page, found in blocks_for("lab").items():
        if not mains(clean_lab, WHERE, PORT):
            assert run(clean_lab, site, "opsctl restart glm5 --yes --no-smoke") == 0, page
        for block in found:
            prepare(clean_lab, block)
            lines = block.commands()
            for number, line in enumerate(lines, 1):
                wanted = block.exit_code if number == len(lines) else 0
                code = run(clean_lab, site, with_yes(line))
                wrong += [(block.where, line, code)] if code != wanted else []
    assert wrong == []


def prepare(lab: Lab, block: Block) -> None:
    """Bring about what the mark says: a crashed server, a stopped container."""
    words = block.word.split(", ")
    if "crashed" in words:
        for pid in mains(lab, WHERE, PORT):
            lab.on(WHERE, ["/bin/kill", "-9", str(pid)])
        wait_until(lambda: not mains(lab, WHERE, PORT), 10, "the main process is gone")
    if "stopped" in words:
        lab.pct("stop", "129")


def run(lab: Lab, site: Path, line: str) -> int:
    """Run one line on the control machine, as a shell does there; print what it said."""
    bin_ = site.parent / "bin"
    if not bin_.exists():
        bin_.mkdir()
        (bin_ / "opsctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m opsctl "$@"\n')
        (bin_ / "opsctl").chmod(0o755)
    begun = time.monotonic()
    script = f"cd {site.parent} && PATH={bin_}:$PATH && {line}"
    done = lab.run(
        ["sh", "-e", "-c", script],
        timeout_s=120,
        OPSCTL_SITE=str(site),
        XDG_STATE_HOME=str(site.parent / "state"),
    )
    print(
        f"$ {line}\n{done.stdout}{done.stderr}(exit {done.exit_code}, {time.monotonic() - begun:.1f} s)"
    )
    return done.exit_code
