"""What a plain stretch must not change: answers, grammars, logprobs, aborts, retraction.

The models' answers are known: token x is followed by 17 x + 3, so each token of each answer is checked.
"""

from __future__ import annotations

import concurrent.futures
import json
import random
import re
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests.gpu.models import VOCABULARY
from tests.gpu.side import Server

MANY, FEW = 12, 2  # requests above and at the threshold of 2
LENGTHS = (60, 140)


def ask(
    server: Server, count: int, lengths: Sequence[int] = LENGTHS, gap_s: float = 0.0, **more: Any
) -> list[dict[str, Any]]:
    """Send ``count`` prompts at once (``gap_s`` apart) and return the answers in order."""
    sampling = {"temperature": 0, "ignore_eos": True, **more.pop("sampling", {})}

    def one(number: int) -> dict[str, Any]:
        time.sleep(gap_s * number)
        body = {
            "input_ids": prompt(number),
            "sampling_params": {"max_new_tokens": lengths[number % len(lengths)], **sampling},
            "rid": f"behaviour-{count}-{number}-{time.monotonic_ns()}",
            **more,
        }
        answer: dict[str, Any] = json.loads(server.post("/generate", body, timeout_s=120))
        return answer

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def prompt(number: int) -> list[int]:
    """Return a seeded prompt of 40 tokens."""
    rng = random.Random(number)
    return [rng.randrange(10, VOCABULARY - 10) for _ in range(40)]


def wrong(answers: Sequence[dict[str, Any]], lengths: Sequence[int] = LENGTHS) -> int:
    """Return how many tokens of greedy answers are not the known ones, missing ones counted."""
    count = 0
    for number, answer in enumerate(answers):
        token = prompt(number)[-1]
        for position in range(lengths[number % len(lengths)]):
            token = (token * 17 + 3) % VOCABULARY
            ids = answer["output_ids"]
            count += position >= len(ids) or ids[position] != token
    return count


def check(plain: Server, dynamic: Server, tight: Server) -> dict[str, Any]:
    """Return what was found, each under its name; ``bad`` lists what is not as it must be."""
    found: dict[str, Any] = {}
    found["wrong tokens, 12, 2, 12, 2 requests"] = [
        wrong(ask(dynamic, count)) for count in (MANY, FEW, MANY, FEW)
    ]
    hot = ask(dynamic, MANY, sampling={"temperature": 0.8, "top_p": 0.9})
    found["lengths short at temperature 0.8"] = sum(
        len(answer["output_ids"]) != LENGTHS[number % 2] for number, answer in enumerate(hot)
    )
    penal = ask(dynamic, MANY, sampling={"frequency_penalty": 0.5})
    found["lengths short with a penalty"] = sum(
        len(answer["output_ids"]) != LENGTHS[number % 2] for number, answer in enumerate(penal)
    )
    found["outside the grammar"] = sum(
        _outside(answer)
        for count in (MANY, FEW)
        for answer in ask(dynamic, count, sampling=_GRAMMAR)
    )
    found["logprobs apart from the plain server's"] = max(
        _apart(plain, dynamic, count) for count in (MANY, FEW)
    )
    found["wrong tokens beside three aborts"], found["aborted"] = _abort(dynamic)
    many = [ask(tight, 40, (200,), gap_s=gap) for gap in (0.0, 0.02)]
    found["wrong tokens under KV pressure"] = sum(wrong(one, (200,)) for one in many)
    text = tight.log.read_text(errors="replace")
    found["retractions seen"] = text.count("Retract requests")
    found["switches of drafting"] = dynamic.log.read_text(errors="replace").count(
        "spec-disable: drafts o"
    )
    found["bad"] = _bad(found)
    return found


_GRAMMAR = {"regex": "(t(5|6|7|8))+", "ignore_eos": False}


def _bad(found: dict[str, Any]) -> list[str]:
    bad = [name for name, value in found.items() if "wrong" in name and value not in (0, [0] * 4)]
    bad += [name for name, value in found.items() if "short" in name and value]
    bad += ["outside the grammar"] if found["outside the grammar"] else []
    bad += ["logprobs"] if found["logprobs apart from the plain server's"] > 0.05 else []
    bad += [] if found["aborted"] == 3 else ["aborts"]
    return bad + ([] if found["retractions seen"] else ["no retraction was provoked"])


def _outside(answer: dict[str, Any]) -> bool:
    return not re.fullmatch("(t(5|6|7|8))+", answer["text"].replace(" ", ""))


def _apart(plain: Server, dynamic: Server, count: int) -> float:
    asked: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2}
    apart = 0.0
    pairs = zip(ask(plain, count, **asked), ask(dynamic, count, **asked), strict=True)
    for first, second in pairs:
        left, right = (one["meta_info"]["output_token_logprobs"] for one in (first, second))
        same = len(left) == len(right) and [one[1] for one in left] == [one[1] for one in right]
        apart = max(
            [apart, 0.0 if same else 99.0]
            + [abs(a[0] - b[0]) for a, b in zip(left, right, strict=False)]
        )
    return round(apart, 5)


def _abort(server: Server) -> tuple[int, int]:
    """Abort three of eight in the middle of a plain stretch; return wrong tokens of the rest, and aborts."""
    names = [f"abort-{number}-{time.monotonic_ns()}" for number in range(8)]

    def one(number: int) -> dict[str, Any]:
        length = 3000 if number in (1, 3, 5) else LENGTHS[number % 2]
        sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": length}
        body = {"input_ids": prompt(number), "sampling_params": sampling, "rid": names[number]}
        answer: dict[str, Any] = json.loads(server.post("/generate", body, timeout_s=120))
        return answer

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(one, number) for number in range(8)]
        time.sleep(0.4)
        for number in (1, 3, 5):
            server.post("/abort_request", {"rid": names[number]})
        answers = [each.result() for each in asked]
    ended = sum(
        answers[number]["meta_info"]["finish_reason"]["type"] == "abort" for number in (1, 3, 5)
    )
    rest = 0
    for number in (0, 2, 4, 6, 7):
        token = prompt(number)[-1]
        for position in range(LENGTHS[number % 2]):
            token = (token * 17 + 3) % VOCABULARY
            rest += answers[number]["output_ids"][position : position + 1] != [token]
    return rest, ended


def acceptance(server: Server, during: int = 12) -> dict[str, float]:
    """Return tokens per step of one long answer before, in and after a burst that turns drafting off."""
    arrivals: list[tuple[float, int]] = []
    body = {
        "input_ids": prompt(77),
        "sampling_params": {"max_new_tokens": 1400, "temperature": 0, "ignore_eos": True},
        "stream": True,
    }
    request = urllib.request.Request(
        server.url + "/generate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    burst: list[float] = []
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        urllib.request.urlopen(request, timeout=120) as reply,
    ):
        running: concurrent.futures.Future[Any] | None = None
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            count = json.loads(line[6:])["meta_info"]["completion_tokens"]
            arrivals.append((time.monotonic(), count))
            if running is None and count >= 200:
                burst.append(time.monotonic())
                running = pool.submit(ask, server, during, (400,))
            if running is not None and running.done() and len(burst) == 1:
                burst.append(time.monotonic())
    if len(burst) < 2:
        return {"tokens per step before": 0.0}
    return {
        "tokens per step before": _per_step([n for t, n in arrivals if t < burst[0]]),
        "in the burst": _per_step([n for t, n in arrivals if burst[0] + 0.3 < t < burst[1] - 0.1]),
        "after": _per_step([n for t, n in arrivals if t > burst[1] + 0.1]),
    }


def _per_step(counts: list[int]) -> float:
    if len(counts) < 3:
        return 0.0
    return round((counts[-1] - counts[0]) / (len(counts) - 1), 2)
