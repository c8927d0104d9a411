"""`opsctl smoke SERVER` on real SGLang (CPU) that dies, is busy, or has a grammar backend."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sglang import environment
from tests.lab.test_smoke_sglang import VERSION, Real, smoke

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not environment.is_built(environment.default_prefix(), VERSION),
        reason="real SGLang is not built: python -m tests.lab.sglang build",
    ),
]
# As SGLang did before it watched its children: the death of a scheduler is not noticed by anybody.
BLIND = """\
import os, runpy, signal
kill = os.kill
os.kill = lambda pid, number: None if number == signal.SIGQUIT else kill(pid, number)
runpy.run_module("sglang.launch_server", run_name="__main__")
"""
CPU_MASK = """\
import runpy, xgrammar
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar
def apply_vocab_mask(logits, vocab_mask):
    xgrammar.apply_token_bitmask_inplace(logits, vocab_mask)
XGrammarGrammar.apply_vocab_mask = staticmethod(apply_vocab_mask)
runpy.run_module("sglang.launch_server", run_name="__main__")
"""
LETTERS = "".join(map(chr, range(33, 127)))
FIRST_LETTER = 100  # token id

Start = Callable[..., Real]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    begun: list[Real] = []

    def one(**more: Any) -> Real:
        begun.append(Real(tmp_path, **more))
        return begun[-1]

    yield one
    for server in begun:
        server.end()


@pytest.mark.parametrize(
    ("title", "number", "words"),
    [
        ("sglang::scheduler", signal.SIGSEGV, "signal 11"),
        ("sglang::detokenizer", signal.SIGKILL, "signal 9"),
    ],
)
def test_real_process_that_dies_mid_level_is_seen_and_named(
    start: Start,
    capsys: pytest.CaptureFixture[str],
    title: str,
    number: int,
    words: str,
) -> None:
    """Crashed, by the first process's death, within 250 ms; its name and signal are in the reason."""
    real = start()
    thread = real.signal_under_load(real.pid_of(title), number)

    code, document = smoke(real, capsys, "--levels", "1,5,10", "--requests", "40", "--allow-live")

    thread.join(timeout=120)
    data = document["data"]
    level, first = data["levels"][-1], data["evidence"]["exits"][0]
    assert code == 60
    assert level["outcome"] == "crashed"
    assert title in level["reason"]
    assert words in level["reason"]
    # a native crash is in the log (faulthandler) before the process has ended
    assert level["sign"]["monotonic_s"] - first["monotonic_s"] < 0.25
    assert data["bracket"] == {"last_good": 1, "first_bad": 5}
    assert data["diagnosis"]["category"] in ("child-died", "detokenizer-died")
    assert data["diagnosis"]["signature"]


def test_real_port_that_answers_with_dead_workers_is_a_crash(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scheduler dies and nobody notices: first under load, then for a smoke that begins later."""
    real = start(argv=lambda usual: [usual[0], "-c", BLIND, *usual[3:]])
    thread = real.signal_under_load(real.pid_of("sglang::scheduler"), signal.SIGKILL)
    quick = ["--requests", "40", "--stall", "4", "--startup", "6", "--allow-live"]

    code, document = smoke(real, capsys, "--levels", "1,5,10", *quick)
    thread.join(timeout=120)
    assert code == 60
    assert document["data"]["levels"][-1]["outcome"] == "crashed"
    assert "sglang::scheduler" in document["data"]["levels"][-1]["reason"]
    assert document["data"]["diagnosis"]["category"] == "zombie-service"
    assert real.process.poll() is None

    code, document = smoke(real, capsys, "--levels", "1,5", *quick)
    assert code == 60
    assert document["data"]["levels"][0]["outcome"] in ("hung", "crashed")
    assert document["data"]["diagnosis"]["category"] in ("zombie-service", "silent-hang")


def test_real_server_that_is_busy_answers_503_and_is_not_called_dead(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full queue: requests fail as busy, the level failed, the server lives and is left alone."""
    real = start(max_running_requests=2, max_queued_requests=1)

    code, document = smoke(
        real, capsys, "--levels", "1,10", "--requests", "40", "--tokens", "64", "--allow-live"
    )

    level = document["data"]["levels"][-1]
    assert code == 70
    assert level["outcome"] == "failed"
    assert set(level["errors"]) == {"server-busy"}
    assert real.process.poll() is None


def with_letters(folder: Path) -> Path:
    """A model folder whose tokens include every printable ASCII character, so that JSON can be written."""
    plain = environment.default_prefix() / "models" / "tiny-llama"
    made = folder / "letters"
    shutil.copytree(plain, made)
    body = json.loads((made / "tokenizer.json").read_text())
    vocabulary = sorted(body["model"]["vocab"].items(), key=lambda item: item[1])
    letters = dict(enumerate(LETTERS, start=FIRST_LETTER))
    body["model"]["vocab"] = {letters.get(number, word): number for word, number in vocabulary}
    (made / "tokenizer.json").write_text(json.dumps(body))
    return made


def with_grammar(model: Path, *, cpu_mask: bool) -> Callable[[list[str]], list[str]]:
    """Return what makes the command line of a server with that model; SGLang masks logits on GPUs only."""

    def argv(usual: list[str]) -> list[str]:
        changed = list(usual)
        changed[changed.index("--model-path") + 1] = str(model)
        return [changed[0], "-c", CPU_MASK, *changed[3:]] if cpu_mask else changed

    return argv


def test_constrained_shape_on_a_real_grammar_backend(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain and constrained requests side by side through xgrammar: whole answers, none judged as mush."""
    real = start(
        argv=with_grammar(with_letters(tmp_path), cpu_mask=True), grammar_backend="xgrammar"
    )
    records = tmp_path / "records.jsonl"
    words = ["--levels", "1,4", "--requests", "12", "--shapes", "plain,constrained"]

    code, document = smoke(real, capsys, *words, "--records", str(records))

    rows = [json.loads(line) for line in records.read_text().splitlines()]
    constrained = [row for row in rows if row["shape"] == "constrained"]
    assert code == 0, (document["findings"], real.text()[-3000:])
    assert [level["outcome"] for level in document["data"]["levels"]] == ["passed", "passed"]
    assert len(constrained) == 12
    assert all(row["answer"][0] == LETTERS.index("{") + FIRST_LETTER for row in constrained)


def test_constrained_request_that_kills_the_server_is_not_called_load(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This version cannot mask logits on a CPU: the first constrained request ends it, at level 1."""
    real = start(
        argv=with_grammar(with_letters(tmp_path), cpu_mask=False), grammar_backend="xgrammar"
    )

    code, document = smoke(real, capsys, "--levels", "1,4", "--shapes", "plain,constrained")

    data = document["data"]
    assert code == 60
    assert data["bracket"] == {"last_good": None, "first_bad": 1}
    assert data["diagnosis"]["category"] == "scheduler-exception"
    assert "Unsupported device: cpu" in data["diagnosis"]["first_record"]
