"""The truth of every request as JSON lines: sent, first token, each chunk, end, finish, error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opsctl.errors import UsageError
from opsctl.smoke.measure import Request


class RecordWriter:
    """Writes a level's requests when the level has ended, never during it."""

    def __init__(self, path: Path) -> None:
        try:
            self._out = path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error

    def __call__(self, kind: str, payload: dict[str, Any]) -> None:
        if kind != "level-end":
            return
        level = payload["level"]
        for number, request in enumerate(payload["requests"]):
            row = {"concurrency": level.concurrency, "phase": level.phase, "number": number}
            self._out.write(json.dumps(row | record_of(request), ensure_ascii=False) + "\n")
        self._out.flush()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._out.close()


def record_of(request: Request) -> dict[str, Any]:
    """Return one request as data; times are monotonic seconds of this client."""
    reply = request.reply
    return {
        "prompt": request.key,
        "shape": request.shape,
        "status": request.status,
        "sent_s": round(request.sent_s, 6),
        "first_token_s": None if request.first_s is None else round(request.first_s, 6),
        "end_s": round(request.end_s, 6),
        "chunks_s": [round(at, 6) for at in reply.chunk_s],
        "chunk_tokens": reply.chunk_tokens,
        "tokens": reply.tokens,
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
        "verify_steps": reply.verify_steps,
        "finish": reply.finish,
        "failure": request.failure,
        "detail": request.detail,
        "answer": reply.answer if isinstance(reply.answer, str) else list(reply.answer),
    }
