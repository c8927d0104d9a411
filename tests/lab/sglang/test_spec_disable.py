"""The patches of the incident on real SGLang: the two that crash, and the one that works."""

from __future__ import annotations

import concurrent.futures
import json
import random
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.cli import run
from opsctl.patch_library import load_library
from tests.lab.sglang import copy, environment
from tests.lab.sglang.launch import launch
from tests.lab.sglang.server import Server, free_port, running

# minutes of real SGLang: `make test` has the crash that the incident's patch causes, these prove the way out
pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]
NEW, OLD = environment.VERSIONS
BOTH = [NEW, pytest.param(OLD, marks=pytest.mark.slow)]
PROBE = Path(__file__).parent / "probe"
THRESHOLD: dict[str, Any] = {"speculative_disable_batch_threshold": 2}
PROMPTS = [[(7 * i + 13 * k) % 1000 + 3 for k in range(5 + (i * 3) % 11)] for i in range(10)]


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that copies an environment and applies patches to it with opsctl itself."""
    made: dict[tuple[str, ...], str] = {}

    def make(version: str, *patches: str) -> str:
        key = (version, *patches)
        if key not in made:
            built = environment.build(environment.default_prefix(), version, print)
            folder = tmp_path_factory.mktemp("patched")
            python = str(copy.copy(built.parent.parent, folder / "env"))
            server = {"host": "here", "python": python, "model": "/none", "patches": list(patches)}
            server |= {
                "env": launch(version, 1, eagle=True).env,
                "state_dir": str(folder / "state"),
            }
            site = {"hosts": {"here": {"local": True}}, "servers": {"s": server}}
            (folder / "opsctl.yaml").write_text(yaml.safe_dump(site))
            argv = ["patch", "apply", "s", "--yes", "--allow-known-bad"]
            assert run([*argv, "--site", str(folder / "opsctl.yaml")]) == 0
            made[key] = python
        return made[key]

    return make


@dataclass(frozen=True, slots=True)
class Pair:
    """A plain server, and one that drafts up to two requests."""

    plain: Server
    speculating: Server

    def both(self, prompts: Sequence[list[int]], **more: Any) -> tuple[list[Any], list[Any]]:
        return ask(self.plain, prompts, **more), ask(self.speculating, prompts, **more)


def ask(
    server: Server,
    prompts: Sequence[list[int]],
    lengths: Sequence[int] = (16,),
    delays: Sequence[float] = (0.0,),
    sampling: dict[str, Any] | None = None,
    **body: Any,
) -> list[dict[str, Any]]:
    """Send prompts, each after its delay, and return the answers in order."""

    def one(number: int) -> Any:
        time.sleep(delays[number % len(delays)])
        asked = {"max_new_tokens": lengths[number % len(lengths)], "temperature": 0}
        asked |= {"ignore_eos": True, **(sampling or {})}
        sent = {"input_ids": prompts[number], "sampling_params": asked, **body}
        return server.post("/generate", sent, timeout_s=300.0)

    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(one, range(len(prompts))))


def in_play(one: str) -> list[Any]:
    """Return the variants of a shipped patch whose line shows it in play."""
    return [variant for variant in load_library()[one].variants if variant.proof.log]


def tokens(answers: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


@pytest.fixture(scope="module", params=BOTH)
def pair(
    request: pytest.FixtureRequest, patched: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Both servers with weights that read the KV cache; the ring of the patch as small as can be."""
    version = request.param
    folder = tmp_path_factory.mktemp("pair")
    probe = {"PYTHONPATH": str(PROBE), "OPSCTL_PROBE_RING": "1"}
    more: dict[str, Any] = {"weights": "random", "grammar_backend": "xgrammar"}
    plain = launch(version, free_port(), **more)
    python = patched(version, "spec-disable-v2")
    eagle = launch(version, free_port(), eagle=True, python=python, **more, **THRESHOLD)
    with ExitStack() as stack:
        first = stack.enter_context(running(plain, folder / "plain.log", **probe))
        second = stack.enter_context(running(eagle, folder / "eagle.log", **probe))
        yield Pair(first, second)


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("one", ["spec-disable-v1", "spec-disable-v1-clear-spec-info"])
def test_the_known_bad_patches_kill_the_server_above_the_threshold(
    one: str, version: str, patched: Any, tmp_path: Path
) -> None:
    """C=1 and 2 are answered; at C=5 the scheduler dies of a shape error, as in the incident."""
    python = patched(version, one)
    start = launch(version, free_port(), eagle=True, spec_v2=False, python=python, **THRESHOLD)

    with running(start, tmp_path / "log") as server:
        for concurrency in (1, 2):
            assert len(ask(server, PROMPTS[:concurrency])) == concurrency
        assert any(re.search(variant.proof.log, server.text()) for variant in in_play(one))
        with pytest.raises(OSError, match=r"Remote|reset|closed"):
            ask(server, PROMPTS[:5])
        server.process.wait(30)

        text = server.text()
        assert "Scheduler hit an exception" in text
        words = ("shape mismatch", "expanded size of the tensor", "invalid for input", "view size")
        assert any(word in text for word in words), text[-2000:]


def test_every_level_up_and_down_gives_the_plain_servers_tokens(pair: Pair) -> None:
    """Up to 10 requests of two lengths and back to 1, twice: the same greedy tokens every time."""
    for concurrency in (1, 2, 5, 10, 5, 2, 1) * 2:
        plain, speculating = pair.both(PROMPTS[:concurrency], lengths=(12, 30))

        assert tokens(speculating) == tokens(plain), f"at C={concurrency}"


def test_many_switches_in_the_middle_of_answers_change_no_token(pair: Pair) -> None:
    """Requests that come and go at random keep crossing the threshold."""
    for seed in range(3):
        rng = random.Random(seed)
        prompts = [[rng.randrange(1000) + 3 for _ in range(rng.randint(4, 24))] for _ in range(14)]
        lengths = [rng.randint(8, 50) for _ in prompts]
        delays = [rng.random() * 4 for _ in prompts]

        plain, speculating = pair.both(prompts, lengths=lengths, delays=delays)

        assert tokens(speculating) == tokens(plain)


def test_aborted_requests_leave_the_others_alone(pair: Pair) -> None:
    """Three of eight are aborted in the middle of a plain stretch."""
    wanted = tokens(ask(pair.plain, PROMPTS[:8], lengths=(60,)))
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        asked = []
        for number, prompt in enumerate(PROMPTS[:8]):
            length = 2000 if number in (1, 3, 5) else 60
            sampling = {"max_new_tokens": length, "temperature": 0, "ignore_eos": True}
            body = {"input_ids": prompt, "sampling_params": sampling, "rid": f"abort-{number}"}
            asked.append(pool.submit(pair.speculating.post, "/generate", body, 300.0))
        time.sleep(1.0)
        for number in (1, 3, 5):
            data = json.dumps({"rid": f"abort-{number}"}).encode()
            url = f"http://127.0.0.1:{pair.speculating.port}/abort_request"
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(url, data, headers)
            urllib.request.urlopen(request, timeout=20).close()
        answers = [one.result() for one in asked]

    for number in (0, 2, 4, 6, 7):
        assert answers[number]["output_ids"] == wanted[number]
    for number in (1, 3, 5):
        assert answers[number]["meta_info"]["finish_reason"]["type"] == "abort"


def test_temperature_penalties_and_grammar_work_on_both_sides_of_the_threshold(pair: Pair) -> None:
    """Sampling gives full answers, and a grammar binds a plain step as it binds a drafted one."""
    hot = ask(
        pair.speculating, PROMPTS[:8], lengths=(20, 40), sampling={"temperature": 0.8, "top_p": 0.9}
    )
    penal = ask(
        pair.speculating, PROMPTS[:5], lengths=(12, 30), sampling={"frequency_penalty": 0.5}
    )
    bound = {"regex": "(t(5|6|7|8))+", "ignore_eos": False}
    plain, speculating = pair.both(PROMPTS[:5], lengths=(12, 30), sampling=bound)
    few = ask(pair.speculating, PROMPTS[:2], lengths=(12, 30), sampling=bound)

    assert [len(ids) for ids in tokens(hot)] == [20, 40] * 4
    assert [len(ids) for ids in tokens(penal)] == [12, 30, 12, 30, 12]
    assert tokens(speculating) == tokens(plain)
    assert tokens(few) == tokens(plain)[:2]
    endings = {answer["meta_info"]["finish_reason"]["type"] for answer in [*speculating, *few]}
    assert endings <= {"length", "stop"}  # an abort would be a token that the grammar forbids


def test_logprobs_on_both_sides_of_the_threshold_are_the_plain_servers(pair: Pair) -> None:
    """0.5.9 has none under the overlap worker, and dies of the wish: spec-v2-logprobs comes along."""
    asked = {"return_logprob": True, "top_logprobs_num": 2}

    plain, speculating = pair.both(PROMPTS[:5], lengths=(12, 30), **asked)
    drafted = ask(pair.speculating, PROMPTS[:2], lengths=(12, 30), **asked)

    for first, second in [
        *zip(plain, speculating, strict=True),
        *zip(plain, drafted, strict=False),
    ]:
        left, right = (a["meta_info"]["output_token_logprobs"] for a in (first, second))
        assert [one[1] for one in left] == [one[1] for one in right]
        assert [one[0] for one in left] == pytest.approx([one[0] for one in right], abs=1e-4)
        assert len(second["meta_info"]["output_top_logprobs"]) == len(left)


def test_log_and_metrics_count_what_happened(pair: Pair) -> None:
    """A switch is a line of the log, and /metrics carries the counters."""
    ask(pair.speculating, PROMPTS[:5], lengths=(12, 40))
    url = f"http://127.0.0.1:{pair.speculating.port}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    values = {
        line.split("{")[0]: float(line.split()[-1])
        for line in lines
        if line.startswith("sglang:opsctl_spec")
    }

    assert re.search(r"opsctl spec-disable: drafts off at \d+ running", pair.speculating.text())
    assert values["sglang:opsctl_spec_plain_steps_total"] > 10
    assert values["sglang:opsctl_spec_switches_total"] >= 2
    assert values["sglang:opsctl_spec_caught_up_tokens_total"] > 0


def decided(file: Path) -> list[str]:
    """Return the decisions that one rank wrote down, step by step, and the lengths that it saw."""
    return [line for line in file.read_text().split("\n") if line.endswith("]")]


COMPARE = """
import json, sys, torch
(static_steps, static), (steps, caches) = (torch.load(path) for path in sys.argv[1:3])
found = []
for prompt, cache in caches.items():
    rows = min(cache.shape[1], static[prompt].shape[1])
    apart = float((cache[:, :rows] - static[prompt][:, :rows]).abs().max())
    common = [n for n in steps[prompt] if n in static_steps[prompt]]
    same = sum(steps[prompt][n] == static_steps[prompt][n] for n in common)
    found.append({"prompt": len(prompt), "rows": rows, "apart": apart, "common": len(common), "same": same})
print(json.dumps(found))
"""


@pytest.mark.parametrize("version", BOTH)
def test_the_draft_model_ends_up_with_the_cache_of_one_that_never_stopped(
    version: str, patched: Any, tmp_path: Path
) -> None:
    """After a plain stretch the draft's keys, values and proposals are those of a static server.

    Also for requests that ended inside the stretch: the next turn of a conversation goes on from their
    cached tokens.
    """
    python = patched(version, "spec-disable-v2")
    answers = []
    for name, flags in (("static", {}), ("dynamic", THRESHOLD)):
        more: dict[str, Any] = {"eagle": True, "weights": "random", "python": python, **flags}
        probe = {"PYTHONPATH": str(PROBE), "OPSCTL_PROBE_DRAFT": str(tmp_path / name)}
        with running(
            launch(version, free_port(), **more), tmp_path / f"{name}.log", **probe
        ) as server:
            first = tokens(ask(server, PROMPTS[:5], lengths=(30, 60, 60, 30, 30)))
            turns = [[*PROMPTS[i], *first[i], 5, 6, 7] for i in (0, 3, 4)]
            answers.append((first, tokens([ask(server, [turn])[0] for turn in turns])))

    interpreter = str(environment.interpreter(environment.default_prefix(), version))
    argv = [interpreter, "-c", COMPARE, str(tmp_path / "static"), str(tmp_path / "dynamic")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)

    assert answers[0] == answers[1]
    assert sum(one["prompt"] > 30 for one in found) == 3  # the second turns
    for one in found:
        assert one["apart"] < 1e-3, one
        assert one["same"] == one["common"] > 0, one


@pytest.mark.slow
@pytest.mark.parametrize("version", BOTH)
def test_retraction_in_a_plain_stretch_changes_no_token(
    version: str, patched: Any, tmp_path: Path
) -> None:
    """The KV pool is too small for all: requests are retracted, prefilled again, and answered right."""
    small: dict[str, Any] = {"max_total_tokens": 420, "schedule_conservativeness": 0.05}
    small |= {"weights": "random", "disable_radix_cache": True}
    with running(launch(version, free_port(), **small), tmp_path / "plain.log") as server:
        wanted = tokens(ask(server, PROMPTS[:8], lengths=(90,)))

    python = patched(version, "spec-disable-v2")
    start = launch(version, free_port(), eagle=True, python=python, **small, **THRESHOLD)
    with running(start, tmp_path / "log") as server:
        for gap_s in (
            0.0,
            0.02,
            0.05,
            0.1,
            0.2,
        ):  # how fast this machine is decides when all of them overlap
            delays = [gap_s * number for number in range(8)]
            assert tokens(ask(server, PROMPTS[:8], lengths=(90,), delays=delays)) == wanted
            if "Retract requests" in server.text():
                break

        assert "Retract requests" in server.text()


@pytest.mark.slow
@pytest.mark.parametrize("version", BOTH)
def test_two_ranks_switch_together(version: str, patched: Any, tmp_path: Path) -> None:
    """Tensor parallel: both ranks take the same decision at every single step, and the known answers come.

    Requests arrive together, and one by one, at a temperature too: how many run when drafting stops is the
    machine's own affair, that it is the same step on both ranks is not.
    """
    from tests.lab.sglang import models

    python = patched(version, "spec-disable-v2")
    start = launch(version, free_port(), eagle=True, tp=2, python=python, **THRESHOLD)
    probe = {"PYTHONPATH": str(PROBE), "OPSCTL_PROBE_RANKS": str(tmp_path)}
    with running(start, tmp_path / "log", **probe) as server:
        for concurrency, gap_s in ((1, 0.0), (5, 0.0), (8, 0.05), (8, 0.15), (1, 0.0)):
            delays = [gap_s * number for number in range(concurrency)]
            answers = ask(server, PROMPTS[:concurrency], lengths=(16, 30), delays=delays)
            for prompt, ids in zip(PROMPTS, tokens(answers), strict=False):
                assert ids == models.expected(prompt[-1], len(ids))
        hot = ask(server, PROMPTS[:8], lengths=(16, 30), sampling={"temperature": 0.9})
        assert [len(ids) for ids in tokens(hot)] == [16, 30] * 4
        first, second = decided(tmp_path / "rank0"), decided(tmp_path / "rank1")

    common = min(len(first), len(second))  # the last step may be under way on one of them
    assert first[:common] == second[:common]
    assert abs(len(first) - len(second)) <= 1
    assert {line.split()[0] for line in first} == {"True", "False"}
    assert re.search(r"drafts off at \d running requests", server.text())


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    ("one", "spec_v2", "says"),
    [
        ("spec-disable-v2", False, "it needs the overlap worker of speculative decoding"),
        ("spec-disable-v1", True, "EAGLEWorker, which does not run in this set-up"),
    ],
)
def test_the_flag_is_refused_where_it_would_do_nothing(
    one: str, spec_v2: bool, says: str, version: str, patched: Any, tmp_path: Path
) -> None:
    """Under the other worker the flag would be accepted and inert: the server does not start (case 118).

    A known-bad patch that is not in play would pass every level.
    """
    python = patched(version, one)
    start = launch(version, free_port(), eagle=True, spec_v2=spec_v2, python=python, **THRESHOLD)

    with running(start, tmp_path / "log", ready=False) as server:
        code = server.process.wait(120)

        assert code != 0
        assert says in server.text()
