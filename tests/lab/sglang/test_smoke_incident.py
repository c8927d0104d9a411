"""The incident on real SGLang: the known-bad patch, found, bracketed, bisected and explained by smoke."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.cli import run
from tests.lab.sglang import copy, environment
from tests.lab.sglang.launch import Launch, launch
from tests.lab.sglang.server import free_port

VERSION = environment.VERSIONS[0]
THRESHOLD = 2
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,  # the stand-in's part of it is in test_smoke.py
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not environment.is_built(environment.default_prefix(), VERSION),
        reason="real SGLang is not built: python -m tests.lab.sglang build",
    ),
]
STARTER = """\
import json, os, subprocess, sys, time
spec = json.load(open(sys.argv[1]))
log = open(spec["log"], "ab")
begun = log.tell()
child = subprocess.Popen(spec["argv"], env=spec["env"], stdin=subprocess.DEVNULL, stdout=log,
                         stderr=log, start_new_session=True)
open(spec["pids"], "a").write("%d\\n" % child.pid)
for _ in range(1200):
    time.sleep(0.25)
    with open(spec["log"], errors="replace") as text:
        text.seek(begun)
        if "fired up and ready" in text.read():
            sys.exit(0)
    if child.poll() is not None:
        sys.exit("the server ended with %s" % child.returncode)
sys.exit("the server did not come up")
"""


class Incident:
    """EAGLE-3 with the first worker, patched as on the day, off above two requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        built = environment.build(environment.default_prefix(), VERSION, print)
        python = str(copy.copy(built.parent.parent, folder / "env"))
        self.apply(python, "spec-disable-v1-clear-spec-info")
        self.how: Launch = launch(
            VERSION,
            free_port(),
            eagle=True,
            spec_v2=False,
            python=python,
            speculative_disable_batch_threshold=THRESHOLD,
        )
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        spec = {
            "argv": self.how.argv,
            "env": {**clean, **self.how.env},
            "log": str(self.log),
            "pids": str(folder / "pids"),
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        (folder / "start.py").write_text(STARTER)
        self.log.touch()

    @property
    def restart(self) -> str:
        return f"{sys.executable} {self.folder / 'start.py'} {self.folder / 'spec.json'}"

    def apply(self, python: str, patch: str) -> None:
        server = {"host": "here", "python": python, "model": "/none", "patches": [patch]}
        server |= {
            "env": launch(VERSION, 1, eagle=True).env,
            "state_dir": str(self.folder / "far"),
        }
        site = self.folder / "opsctl.yaml"
        body = {"hosts": {"here": {"local": True}}, "servers": {"s": server}}
        site.write_text(yaml.safe_dump(body))
        assert run(["patch", "apply", "s", "--yes", "--allow-known-bad", "--site", str(site)]) == 0

    def end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for line in (self.folder / "pids").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(line), signal.SIGKILL)


@pytest.fixture
def incident(tmp_path: Path) -> Iterator[Incident]:
    made = Incident(tmp_path)
    yield made
    made.end()


def test_the_first_bad_level_is_the_threshold_plus_one(
    incident: Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    """C=1 and 2 pass, 5 kills the server; the bisection ends at 3, twice; the log says shapes differ."""
    assert os.system(incident.restart) == 0
    url = f"http://127.0.0.1:{incident.how.port}"
    words = ["smoke", "--url", url, "--log", str(incident.log), "--levels", "1,2,5"]
    words += ["--requests", "2", "--tokens", "8", "--prompt-tokens", "8", "--stall", "120"]
    words += ["--bisect", "--restart-command", incident.restart, "--yes", "--json"]
    capsys.readouterr()

    begun = time.monotonic()
    code = run([*words, "--state", str(incident.folder / "state")])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)

    data = document["data"]
    assert code == 60, document["findings"]
    assert [level["outcome"] for level in data["levels"]] == ["passed", "passed", "crashed"]
    assert data["bracket"] == {"last_good": THRESHOLD, "first_bad": THRESHOLD + 1}
    assert data["bisection"]["deterministic"] is True
    assert data["diagnosis"]["category"] == "shape-mismatch"
    assert time.monotonic() - begun < 1100
