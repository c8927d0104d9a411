"""From recorded exchanges to a level's numbers and its first verdict."""

from __future__ import annotations

import json

import pytest

from opsctl.domain.report import LevelReport, Outcome
from opsctl.sglang.client import Ended, Exchange
from opsctl.smoke.load import Job, RawLevel, Sign
from opsctl.smoke.measure import client_limit, measure, read_request
from opsctl.smoke.prompts import Prompt


def exchange(
    sent: float = 0.0, first: float = 0.1, gap: float = 0.02, chunks: int = 4, per_chunk: int = 1
) -> Exchange:
    """One good /generate stream: ``chunks`` chunks of ``per_chunk`` tokens."""
    tokens = chunks * per_chunk
    made = Exchange(b"", Job(Prompt("p", "x"), b"", tokens))
    made.sent_s, made.status, made.content_type = sent, 200, "text/event-stream"
    for number in range(1, chunks + 1):
        finish = {"type": "length"} if number == chunks else None
        meta = {"completion_tokens": number * per_chunk, "finish_reason": finish}
        body = json.dumps({"text": " word" * number, "meta_info": meta}).encode()
        made.times.append(sent + first + (number - 1) * gap)
        made.pieces.append(b"data: " + body + b"\n\n")
    made.finish(Ended.COMPLETE, made.times[-1])
    return made


def level_of(exchanges: list[Exchange], concurrency: int, **more: object) -> LevelReport:
    ended = max(one.end_s for one in exchanges)
    raw = RawLevel("x", concurrency, len(exchanges), exchanges, 0.0, ended, **more)  # type: ignore[arg-type]
    return measure(raw, [read_request(one, "generate") for one in exchanges], {})


def test_level_with_the_claimed_concurrency_passes() -> None:
    """Two streams at once at C=2."""
    assert level_of([exchange(), exchange()], 2).outcome is Outcome.PASSED


def test_level_that_never_held_its_concurrency_is_not_measured() -> None:
    """Five of nine known tools do not hold what they claim: here it is verified."""
    level = level_of([exchange(sent=0.0), exchange(sent=5.0)], 2)

    assert level.outcome is Outcome.NOT_MEASURED
    assert "at most 1 of 2" in level.reason


@pytest.mark.parametrize(
    ("lags", "limited"),
    [([0.001] * 50, False), ([0.03] * 50, True), ([0.0] * 40 + [0.2] * 10, True), ([9.0], False)],
)
def test_late_client_is_known(lags: list[float], limited: bool) -> None:
    """A loop that is late on average or often measures itself; one sample says nothing."""
    assert (client_limit(lags) is not None) is limited


def test_times_per_token_and_per_chunk_differ_by_the_tokens_of_a_chunk() -> None:
    """20 ms between chunks of four tokens are 5 ms per token."""
    level = level_of([exchange(per_chunk=4)], 1)

    assert level.chunk_gap_ms is not None
    assert level.itl_ms is not None
    assert level.ttft_ms is not None
    assert level.chunk_gap_ms.p50 == pytest.approx(20)
    assert level.itl_ms.p50 == pytest.approx(5)
    assert level.ttft_ms.p50 == pytest.approx(100)
    assert (level.tokens, level.tokens_per_chunk) == (16, 4.0)


def test_sign_of_death_decides_before_everything_else() -> None:
    """Whatever ended well before it, the level crashed."""
    level = level_of([exchange()], 1, sign=Sign("process", 0.1, "gone"))

    assert (level.outcome, level.reason) == (Outcome.CRASHED, "gone")


def test_goodput_counts_only_requests_within_every_limit() -> None:
    """One fast, one slow to its first token."""
    exchanges = [exchange(first=0.1), exchange(first=0.9)]
    raw = RawLevel("x", 2, 2, exchanges, 0.0, 1.0)

    level = measure(raw, [read_request(e, "generate") for e in exchanges], {"ttft_ms": 500.0})

    assert level.goodput == 0.5


@pytest.mark.parametrize(
    ("ended", "failure"),
    [
        (Ended.LOCAL, "client-limit"),
        (Ended.REFUSED, "refused"),
        (Ended.STALLED, "stalled"),
        (Ended.RESET, "stream-cut"),
        (Ended.PROTOCOL, "not-http"),
    ],
)
def test_ends_on_the_wire_have_names(ended: Ended, failure: str) -> None:
    """Each end is told apart; only those of the client never blame the server."""
    made = Exchange(b"", Job(Prompt("p", "x"), b"", 4))
    made.finish(ended, 1.0, "why")

    assert read_request(made, "chat").failure == failure


def test_request_that_we_cancelled_says_nothing() -> None:
    """Closed by the end of a level: neither good nor bad."""
    made = Exchange(b"", Job(Prompt("p", "x"), b"", 4))
    made.finish(Ended.CANCELLED, 1.0)

    assert not read_request(made, "chat").counted


@pytest.mark.parametrize(
    ("status", "failure"),
    [(503, "server-busy"), (429, "server-busy"), (400, "client-error"), (500, "stream-abort")],
)
def test_abort_inside_a_200_counts_as_its_status_says(status: int, failure: str) -> None:
    """SGLang tells a full queue, and a prompt that is too long, in a stream that began well."""
    made = exchange()
    finish = {"type": "abort", "message": "The request queue is full.", "status_code": status}
    meta = {"completion_tokens": 4, "finish_reason": finish}
    made.pieces[-1] = (
        b"data: " + json.dumps({"text": " word" * 4, "meta_info": meta}).encode() + b"\n\n"
    )

    request = read_request(made, "generate")

    assert (request.failure, request.detail) == (failure, "The request queue is full.")


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_four_reasons_to_finish_are_good(reason: str) -> None:
    """And none of them is held against a server."""
    assert finished_with(reason) is None


@pytest.mark.parametrize(
    ("reason", "failure"),
    [("abort", "stream-abort"), ("error", "bad-finish"), ("cancelled", "bad-finish")],
)
def test_any_other_reason_to_finish_fails_the_request(reason: str, failure: str) -> None:
    """Whole, with status 200 and every token."""
    assert finished_with(reason) == failure


def finished_with(reason: str) -> str | None:
    made = exchange()
    meta = {"completion_tokens": 4, "finish_reason": {"type": reason}}
    body = json.dumps({"text": " word" * 4, "meta_info": meta}).encode()
    made.pieces[-1] = b"data: " + body + b"\n\n"
    return read_request(made, "generate").failure
