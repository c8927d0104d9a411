"""Are the answers right? Same prompts, same tokens at every level; no mush; acceptance as before. Pure.

Temperature 0 does not make batches of different size bit-identical: a larger batch may choose other
kernels, and once one near-tie falls the other way the rest of that answer differs. So an answer that
leaves its reference late has *drifted*, which is allowed up to a stated mean; one that leaves it in
the first tenth is *wrong*, which is allowed for one prompt, or for 5 % of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from opsctl.domain.report import LevelReport, Outcome
from opsctl.records import dataclass
from opsctl.smoke.measure import Request

Answer = tuple[int, ...] | str

EARLY_SHARE = 0.1
WRONG_PROMPTS_SHARE = 0.05
MUSH_LEAST = 8  # characters or tokens; below, repetition says nothing
LOOP_SHARE = 0.8
LOOP_PERIOD = 4
ACCEPT_DROP = 0.7


def common_prefix(left: Answer, right: Answer) -> int:
    """Return how many leading tokens (or characters) two answers share."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def agreement(answer: Answer, reference: Answer) -> float:
    """Return the share of the reference that the answer follows from its start, 0..1."""
    if answer == reference:
        return 1.0
    if isinstance(answer, str) != isinstance(reference, str) or not reference:
        return 0.0
    return common_prefix(answer, reference) / max(len(reference), len(answer))


def broken_text(answer: Answer) -> str | None:
    """Return why an answer cannot come from a working model, whatever the prompt; else None.

    ``!`` is token 0 of the common vocabularies: NaN logits choose it for ever.
    """
    if len(answer) < MUSH_LEAST:
        return None
    if not isinstance(answer, str):
        return "only token 0, as NaN logits give" if set(answer) == {0} else None
    if answer.count("\ufffd") >= 0.2 * len(answer):
        return "replacement characters"
    solid = "".join(answer.split())
    if len(solid) >= MUSH_LEAST:
        most = max(set(solid), key=solid.count)
        if not most.isalnum() and solid.count(most) >= 0.9 * len(solid):
            return f"'{most}' repeated"
    words = answer.lower().split()
    if len(words) >= MUSH_LEAST and set(words) == {"nan"}:
        return "'nan' repeated"
    if not solid:
        return "only white space"
    return None


def is_loop(answer: Answer) -> bool:
    """Return whether a short cycle fills most of the answer."""
    units: Sequence[Any] = answer.split() if isinstance(answer, str) else answer
    if len(units) < MUSH_LEAST and isinstance(answer, str):
        units = answer
    if len(units) < MUSH_LEAST:
        return False
    for period in range(1, LOOP_PERIOD + 1):
        same = sum(1 for i in range(period, len(units)) if units[i] == units[i - period])
        if same >= LOOP_SHARE * (len(units) - period):
            return True
    return False


def _new_loop(answer: Answer, reference: Answer) -> str | None:
    """Return why an answer that repeats itself is mush: its reference does not, and differs early."""
    if is_loop(answer) and not is_loop(reference) and agreement(answer, reference) <= 0.5:
        return "a short cycle repeated, unlike at the first level"
    return None


@dataclass(slots=True)
class Book:
    """The reference answers of a run: each prompt's answer at the lowest concurrency seen."""

    drift: float = 0.5  # allowed mean disagreement; 0 asks for identical answers
    dummy_weights: bool = False
    answers: dict[str, Answer] = field(default_factory=dict)
    foreign: bool = False  # the answers come from another run
    deterministic: bool = True
    loops_first: float | None = None
    accept_first: float | None = None

    def learn(self, requests: Iterable[Request]) -> None:
        """Keep the answers of prompts that have none yet."""
        for request in requests:
            if request.ok and request.shape == "plain":
                self.answers.setdefault(request.key, request.reply.answer)

    def check_repeat(self, requests: Sequence[Request]) -> bool:
        """Learn from one slot's repeats whether the server is deterministic at all."""
        seen: dict[str, Answer] = {}
        for request in requests:
            if not request.ok:
                continue
            answer = request.reply.answer
            first = seen.setdefault(request.key, answer)
            if agreement(answer, first) < EARLY_SHARE:
                self.deterministic = False
        return self.deterministic

    def judge(self, level: LevelReport, requests: Sequence[Request]) -> None:
        """Check a level's answers; failed ones are counted in the level, which may fail by it."""
        whole = [r for r in requests if r.ok and r.counted and r.shape != "abort"]
        self._fail_mush(level, whole)
        whole = [r for r in whole if r.ok]
        plain = [r for r in whole if r.shape == "plain"]
        loops = sum(is_loop(r.reply.answer) for r in plain) / len(plain) if plain else 0.0
        first = self.loops_first
        if self.loops_first is None and plain:
            self.loops_first = loops
        level.answers = self._compare(plain)
        level.answers["loops"] = round(loops, 3)
        self._accept(level)
        if level.outcome is not Outcome.PASSED:
            return
        verdict = self._verdict(level.answers)
        if verdict is None and first is not None and loops > first + 0.3:
            verdict = (
                f"{loops:.0%} of the answers repeat themselves, {first:.0%} at the first level"
            )
        if verdict is not None:
            level.outcome, level.reason = Outcome.FAILED, verdict

    def _fail_mush(self, level: LevelReport, whole: Sequence[Request]) -> None:
        if self.dummy_weights:
            return
        mush = 0
        for request in whole:
            why = broken_text(request.reply.answer)
            reference = self.answers.get(request.key)
            if why is None and reference is not None and self.deterministic:
                why = _new_loop(request.reply.answer, reference)
            if why is not None:
                request.failure, request.detail = "mush", why
                mush += 1
        if not mush:
            return
        level.ok -= mush
        level.failed += mush
        level.errors["mush"] = mush
        worst = next(r for r in whole if r.failure == "mush")
        level.first_error = level.first_error or f"mush: {worst.detail}"
        if level.outcome is Outcome.PASSED or level.outcome is Outcome.NOT_MEASURED:
            level.outcome = Outcome.FAILED
            level.reason = f"{mush} of {level.requests} answers are mush: {worst.detail}"

    def _compare(self, plain: Sequence[Request]) -> dict[str, Any]:
        scores: list[float] = []
        exact = wrong = 0
        prompts: set[str] = set()
        wrong_prompts: set[str] = set()
        for request in plain:
            reference = self.answers.get(request.key)
            if reference is None:
                continue
            prompts.add(request.key)
            score = agreement(request.reply.answer, reference)
            scores.append(score)
            exact += score == 1.0
            if score < EARLY_SHARE:
                wrong += 1
                wrong_prompts.add(request.key)
        compared = len(scores)
        return {
            "compared": compared,
            "prompts": len(prompts),
            "exact": exact,
            "drifted": compared - exact - wrong,
            "wrong": wrong,
            "wrong_prompts": sorted(wrong_prompts),
            "agreement": round(sum(scores) / compared, 4) if compared else None,
            "allowed": {
                "mean_disagreement": self.drift,
                "wrong_prompts": 0
                if self.drift == 0
                else max(1, int(WRONG_PROMPTS_SHARE * len(prompts))),
            },
            "reference": "run" if self.foreign else "lowest level",
            "deterministic": self.deterministic,
        }

    def _verdict(self, answers: dict[str, Any]) -> str | None:
        if not self.deterministic or not answers["compared"]:
            return None
        where = "the reference run" if self.foreign else "the lowest level"
        if len(answers["wrong_prompts"]) > answers["allowed"]["wrong_prompts"]:
            return (
                f"{answers['wrong']} of {answers['compared']} answers differ from {where} "
                "from their start"
            )
        if self.drift == 0 and answers["exact"] < answers["compared"]:
            return (
                f"{answers['compared'] - answers['exact']} of {answers['compared']} answers "
                f"are not identical to {where}"
            )
        off = 1 - answers["agreement"]
        if off > self.drift and answers["compared"] > 1:
            return (
                f"the answers disagree with {where} by {off:.0%} on average; "
                f"{self.drift:.0%} is allowed"
            )
        return None

    def _accept(self, level: LevelReport) -> None:
        if level.accept_length is None:
            return
        if self.accept_first is None:
            self.accept_first = level.accept_length
        level.accept_ratio = level.accept_length / self.accept_first
