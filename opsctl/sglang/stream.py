"""What a streamed answer says: server-sent events to tokens, text, finish reason and error.

Pure: it works on recorded pieces of a body, after the end. ``/generate`` streams the whole text so
far (or the new part, by a server flag), the OpenAI routes stream the new part: two joiners.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

from opsctl.records import dataclass
from opsctl.sglang.frame import Framed, read_framed

_load = json.JSONDecoder().decode  # json.loads looks at its options for each call
GOOD_FINISHES = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


Document = tuple[float, dict[str, Any] | int]
Event = tuple[float, bytes]  # when its last byte arrived, and what its data: lines hold


@dataclass(slots=True)
class Reply:
    """One decoded answer. Token counts come from usage or meta_info, never from chunks."""

    chunk_s: list[float] = field(default_factory=list)  # arrival of chunks that carry content
    chunk_tokens: list[int] | None = None  # tokens so far at each of them; None: not told
    text: str = ""
    ids: list[int] | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None  # spec_verify_ct
    finish: str | None = None
    done: bool = False  # the [DONE] marker was seen
    error: str | None = None  # an error object inside the stream
    error_status: int | None = None
    broken: str | None = None  # a piece that is no JSON

    @property
    def answer(self) -> tuple[int, ...] | str:
        """The comparable answer: token ids where the server gives them, else the text."""
        return self.text if self.ids is None else tuple(self.ids)


def split_events(times: Sequence[float], pieces: Sequence[bytes]) -> tuple[list[Event], bytes]:
    """Return the complete events of a recorded body and the bytes of an unfinished one.

    Lines may end with LF, CRLF or CR LF cut between pieces; comments and other fields are dropped;
    several ``data:`` lines of one event are joined with LF (WHATWG server-sent events).
    """
    if _one_each(pieces):  # nearly every stream
        return list(zip(times, [piece[6:-2] for piece in pieces], strict=True)), b""
    events: list[Event] = []
    rest = b""
    lines: list[bytes] = []
    for at_s, piece in zip(times, pieces, strict=True):
        if not rest and not lines and piece[:6] == b"data: " and piece[-2:] == b"\n\n":
            whole = piece[6:-2]
            if b"\n" not in whole and b"\r" not in whole:
                events.append((at_s, whole))
                continue
        buffer = rest + piece if rest else piece
        start = 0
        while True:
            end = buffer.find(b"\n", start)
            if end < 0:
                break
            line = buffer[start:end]
            start = end + 1
            if line.endswith(b"\r"):
                line = line[:-1]
            if line.startswith(b"data:"):
                lines.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and lines:
                events.append((at_s, lines[0] if len(lines) == 1 else b"\n".join(lines)))
                lines = []
        rest = buffer[start:]
    left = b"\n".join([*lines, rest]) if lines else rest
    return events, left


def _one_each(pieces: Sequence[bytes]) -> bool:
    """Say whether each piece is one whole event of one line, looked at all together."""
    framed = [piece for piece in pieces if piece[:6] == b"data: " and piece[-2:] == b"\n\n"]
    if len(framed) != len(pieces):
        return False
    body = b"".join(pieces)
    return body.count(b"\n") == 2 * len(pieces) and b"\r" not in body


def decode(
    api: str, times: Sequence[float], pieces: Sequence[bytes], content_type: str = ""
) -> Reply:
    """Return the reply that a recorded body holds; never raises on what a server may send."""
    events, rest = split_events(times, pieces)
    if not events and pieces and "event-stream" not in content_type:
        body = b"".join(pieces)
        if body.lstrip()[:1] in (b"{", b"["):  # an answer that was not streamed at all
            events, rest = [(times[-1], body)], b""
    reply = Reply()
    wanted = [
        event
        for event in events
        if event[1][:1] == b"{" or event[1].strip() not in (b"[DONE]", b"")
    ]
    reply.done = any(data.strip() == b"[DONE]" for _, data in reversed(events))
    framed = None if api == "generate" else read_framed(wanted)
    documents = _documents(reply, wanted, framed)
    if rest.rstrip(b"\r\n") == b"[DONE]":
        reply.done = True  # its blank line is missing: some servers close right after the marker
    elif rest.strip():
        reply.broken = reply.broken or rest[:80].decode("utf-8", "replace")
    if api == "generate":
        _join_generate(reply, documents)
    else:
        _join_openai(reply, documents, framed)
    return reply


def _documents(reply: Reply, events: Sequence[Event], framed: Framed | None) -> list[Document]:
    """Return each event's document; where its chunk is framed, the number of its place instead."""
    known = framed.chunks if framed is not None else {}
    parsed = [event for place, event in enumerate(events) if place not in known]
    rest = iter(_load_all(parsed))
    documents: list[Document] = []
    for place, (at_s, data) in enumerate(events):
        if place in known:
            documents.append((at_s, place))
            continue
        document = next(rest)
        if isinstance(document, dict):
            documents.append((at_s, document))
            if "error" in document or "choices" not in document:
                _take_error(reply, document)
        elif document is None:
            reply.broken = reply.broken or data[:80].decode("utf-8", "replace")
    return documents


def _load_all(events: Sequence[Event]) -> list[Any]:
    """Return each event's JSON, None for one that is none; whole streams at once, which is faster."""
    try:
        found = _load((b"[" + b",".join([data for _, data in events]) + b"]").decode())
    except ValueError:
        found = []
    if isinstance(found, list) and len(found) == len(events):
        return found
    return [_load_one(data) for _, data in events]


def _load_one(data: bytes) -> Any:
    try:
        return _load(data.decode())
    except ValueError:
        return None


def _take_error(reply: Reply, document: dict[str, Any]) -> None:
    if reply.error is not None:
        return
    error = document.get("error")
    if error is None and document.get("object") == "error":
        error = document
    if error is None and isinstance(document.get("detail"), str) and "choices" not in document:
        error = document["detail"]
    if error is None:
        return
    if isinstance(error, dict):
        code = error.get("code")
        reply.error_status = code if isinstance(code, int) else None
        error = error.get("message") or json.dumps(error)
    reply.error = str(error)[:500]


def _join_generate(reply: Reply, documents: list[Document]) -> None:
    texts: list[str] = []
    ids: list[list[int]] = []
    counts: list[int | None] = []
    for at_s, document in documents:
        assert isinstance(document, dict)  # this route has no frames
        text = document.get("text")
        tokens = document.get("output_ids")
        meta = document.get("meta_info")
        meta = meta if isinstance(meta, dict) else {}
        count = _number(meta.get("completion_tokens"))
        if isinstance(tokens, list):
            ids.append([token for token in tokens if isinstance(token, int)])
        if isinstance(text, str):
            texts.append(text)
        if count is not None:
            reply.tokens = count
        if text or tokens or count:
            previous = next((value for value in reversed(counts) if value is not None), 0)
            if count is None or count > previous:
                reply.chunk_s.append(at_s)
                counts.append(count)
        for name, key in (("prompt_tokens", "prompt_tokens"), ("cached_tokens", "cached_tokens")):
            value = _number(meta.get(key))
            if value is not None:
                setattr(reply, name, value)
        steps = _number(meta.get("spec_verify_ct"))
        reply.verify_steps = reply.verify_steps if steps is None else steps
        _take_generate_finish(reply, meta.get("finish_reason"))
    reply.text = _join_texts(texts)
    reply.ids = _join_ids(ids, reply.tokens) if ids else None
    _keep_counts(reply, counts)


def _take_generate_finish(reply: Reply, finish: Any) -> None:
    if isinstance(finish, dict):
        reply.finish = str(finish.get("type") or "") or reply.finish
        if finish.get("type") == "abort" and finish.get("message") and reply.error is None:
            reply.error = str(finish["message"])[:500]
            reply.error_status = _number(finish.get("status_code"))
    elif isinstance(finish, str) and finish:
        reply.finish = finish


def _join_openai(reply: Reply, documents: list[Document], framed: Framed | None) -> None:
    texts: list[str] = []
    counts: list[int | None] = []
    if framed is not None and isinstance(framed.sample.get("usage"), dict):
        _take_usage(reply, framed.sample["usage"])
    for at_s, document in documents:
        if isinstance(document, int):
            assert framed is not None
            said, count = framed.chunks[document]
            reply.tokens = reply.tokens if count is None else count
        else:
            said, count = _take_chunk(reply, document)
        if said:
            texts.append(said)
            reply.chunk_s.append(at_s)
            counts.append(count)
        elif count and counts and counts[-1] is None:
            counts[-1] = count  # the last chunk's count came with the usage after it
    reply.text = "".join(texts)
    _keep_counts(reply, counts)


def _take_chunk(reply: Reply, document: dict[str, Any]) -> tuple[str, int | None]:
    """Take one parsed chunk; return its text, and the tokens so far where it tells them."""
    usage = document.get("usage")
    count = None
    if isinstance(usage, dict):
        count = _number(usage.get("completion_tokens"))
        _take_usage(reply, usage)
    return _take_choices(reply, document.get("choices")), count


def _take_choices(reply: Reply, choices: Any) -> str:
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        choice = choices[0]  # nearly every chunk
        finish = choice.get("finish_reason")
        if finish and isinstance(finish, str):
            reply.finish = finish
        return _content(choice)
    said = ""
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        said += _content(choice)
        finish = choice.get("finish_reason")
        if finish and isinstance(finish, str):
            reply.finish = finish
    return said


def _content(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or choice.get("message")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    if len(delta) == 1 and "content" in delta:
        return delta["content"] if isinstance(delta["content"], str) else ""
    said = ""
    for key in ("reasoning_content", "content"):
        if isinstance(delta.get(key), str):
            said += delta[key]
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                said += str(function.get("name") or "") + str(function.get("arguments") or "")
    return said


def _take_usage(reply: Reply, usage: dict[str, Any]) -> None:
    for name in ("prompt_tokens", "completion_tokens"):
        value = _number(usage.get(name))
        if value is not None:
            setattr(reply, "tokens" if name == "completion_tokens" else name, value)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        cached = _number(details.get("cached_tokens"))
        reply.cached_tokens = reply.cached_tokens if cached is None else cached
    spec = usage.get("spec_tokens_details") or usage.get("completion_tokens_details")
    if isinstance(spec, dict):
        steps = _number(spec.get("spec_verify_ct"))
        reply.verify_steps = reply.verify_steps if steps is None else steps


def _keep_counts(reply: Reply, counts: list[int | None]) -> None:
    """Keep per-chunk counts only when every chunk told one and they grow."""
    if not counts or any(count is None for count in counts):
        return
    told = [count for count in counts if count is not None]
    if all(later > earlier for earlier, later in pairwise(told)):
        reply.chunk_tokens = told


def _join_texts(texts: list[str]) -> str:
    if len(texts) < 2:
        return "".join(texts)
    # A character cut in half shows as U+FFFD until its other half arrives.
    grows = all(b.startswith(a.rstrip("\ufffd")) for a, b in pairwise(texts))
    return texts[-1] if grows and len(texts[-1]) > len(texts[0]) else "".join(texts)


def _join_ids(ids: list[list[int]], tokens: int | None) -> list[int]:
    last = ids[-1]
    total = sum(len(part) for part in ids)
    if tokens is not None:
        if len(last) == tokens:
            return last
        if total == tokens:
            return [token for part in ids for token in part]
    grows = all(b[: len(a)] == a for a, b in pairwise(ids))
    if grows and len(last) > len(ids[0]):
        return last
    return [token for part in ids for token in part]


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value)
