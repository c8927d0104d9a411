"""Judge a captured HTTP stream: complete, odd but correct, cut, aborted, or an error inside a 200."""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import Any

from opsctl.records import dataclass

ACCEPTED = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
"""Finish reasons of an answer that ended well; anything else is a failure."""
_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}
_STATUS = re.compile(r"^HTTP/\d(?:\.\d)? (\d{3})")
_MUSH = re.compile(r"(.{1,8}?)\1{11,}", re.DOTALL)


@dataclass(slots=True)
class StreamJudge:
    """Watches the lines of one captured answer."""

    events: int = 0
    done: bool = False
    finish: str | None = None
    error: str | None = None
    broken: str | None = None  # the last event that was no JSON
    usage: bool = False
    empty_choices: bool = False
    empty_finish: bool = False
    cumulative: bool = False
    told_reasons: bool = False  # the choices carry a finish_reason, be it null
    status: int | None = None
    text: str = ""
    first_line: int | None = None
    odd: list[str] = field(default_factory=list)

    def status_line(self, body: str, line: int) -> None:
        """Take a status line of the answer, when it is one."""
        if (found := _STATUS.match(body)) is not None:
            self.status = int(found[1])
            self.first_line = self.first_line or line

    def feed(self, body: str, line: int) -> None:
        """Take one ``data:`` line."""
        self.first_line = self.first_line or line
        payload = body[5:].strip()
        self.events += 1
        if payload == "[DONE]":
            self.done = True
            return
        try:
            event = json.loads(payload)
        except ValueError:
            self.broken = payload[:200]
            return
        if isinstance(event, dict):
            self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        error = event.get("error")
        if event.get("object") == "error" or (error and not event.get("choices")):
            self.error = json.dumps(error or event, ensure_ascii=False)[:200]
        self._typed(event)
        if event.get("usage"):
            self.usage = True
        if isinstance(meta := event.get("meta_info"), dict):
            self._native(event, meta)
        choices = event.get("choices")
        if choices == []:
            self.empty_choices = True
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                self._choice(choice)

    def _typed(self, event: dict[str, Any]) -> None:
        """Take an event of the routes whose events carry a type: /v1/messages and /v1/responses."""
        kind = event.get("type")
        delta = event.get("delta")
        if isinstance(delta, dict) and isinstance(reason := delta.get("stop_reason"), str):
            self._finished(_STOP_REASONS.get(reason, reason))
        if kind == "response.completed":
            self._finished("stop")
        elif kind in ("response.incomplete", "response.failed"):
            self._finished(str(kind))
            told = event.get("response")
            fault = told.get("error") if isinstance(told, dict) else None
            self.error = json.dumps(fault, ensure_ascii=False)[:200] if fault else self.error
        if kind in ("message_stop", "response.completed"):
            self.done = True
        if isinstance(delta, str) or (isinstance(delta, dict) and "choices" not in event):
            text = delta if isinstance(delta, str) else delta.get("text")
            if isinstance(text, str) and len(self.text) < 4000:
                self.text += text

    def _native(self, event: dict[str, Any], meta: dict[str, Any]) -> None:
        text = event.get("text")
        if isinstance(text, str):
            if self.text and text.startswith(self.text):
                self.cumulative = True
            self.text = text[-4000:] if len(text) > 4000 else text
        reason = meta.get("finish_reason")
        if isinstance(reason, dict):
            self._finished(str(reason.get("type")))
        elif isinstance(reason, str):
            self._finished(reason)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        content = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        if isinstance(content, str) and len(self.text) < 4000:
            self.text += content
        reason = choice.get("finish_reason")
        self.told_reasons = self.told_reasons or "finish_reason" in choice
        if reason == "":
            self.empty_finish = True
        elif isinstance(reason, str):
            self._finished(reason)

    def _finished(self, reason: str) -> None:
        if self.finish is None or self.finish in ACCEPTED:
            self.finish = reason

    def verdict(self) -> tuple[str, float, str] | None:
        """Return category, confidence and the reason; None when no stream was seen."""
        if not self.events:
            return None
        if self.error is not None:
            return "stream-error", 0.95, f"an error object inside the stream: {self.error}"
        if self.finish is not None and self.finish not in ACCEPTED:
            category = "stream-error" if "error" in self.finish else "stream-abort"
            return category, 0.95, f"finish_reason is {self.finish!r}, which is no good end"
        if self.finish is None and not self.done:
            where = f"; the last event is cut: {self.broken}" if self.broken else ""
            return (
                "stream-cut",
                0.93,
                f"no finish_reason and no [DONE] in {self.events} events{where}",
            )
        if self.broken is not None:
            return "stream-cut", 0.8, f"an event is no JSON: {self.broken}"
        if _is_mush(self.text):
            return "wrong-output", 0.85, f"the text repeats itself: {self.text[-60:]!r}"
        if self.finish is None and self.done and self.told_reasons:
            return "stream-cut", 0.5, "[DONE] came without a finish_reason"
        return "stream-ok", 0.9 if self.done else 0.7, self._oddities()

    def _oddities(self) -> str:
        seen = []
        if self.empty_choices:
            seen.append("usage comes last with empty choices")
        if self.empty_finish:
            seen.append('finish_reason "" is not an end')
        if self.cumulative:
            seen.append("the text is cumulative (/generate): never join it like deltas")
        if not self.done:
            seen.append("no [DONE] after the finish_reason")
        return "the stream is complete" + (": " + "; ".join(seen) if seen else "")


def _is_mush(text: str) -> bool:
    tail = text[-400:]
    if len(tail.strip()) < 12:
        return False
    if tail.count("\ufffd") > len(tail) // 4:
        return True
    found = _MUSH.search(tail)
    return found is not None and len(found[0]) > 40 and found[1].strip(" -=_*.\n#|\t") != ""
