"""What an attempt consists of, and what earlier attempts with the same content say about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from enum import StrEnum
from typing import Any

from opsctl.records import dataclass

# Where a server listens, and for whom it logs, says nothing about whether it works.
PLACE_FLAGS = frozenset({"--host", "--port", "--log-level", "--log-level-http", "--nccl-port"})

SHOWN = 5  # differences on one line


class AttemptOutcome(StrEnum):
    """How an attempt ended, as far as it says something about its content."""

    PASSED = "passed"
    CRASHED = "crashed"
    HUNG = "hung"
    WRONG_ANSWERS = "wrong-answers"
    INCONCLUSIVE = "inconclusive"  # transport, client, disk, Xid, foreign memory, interruption


FAILURES = frozenset({AttemptOutcome.CRASHED, AttemptOutcome.HUNG, AttemptOutcome.WRONG_ANSWERS})


@dataclass(frozen=True, slots=True)
class Content:
    """What decides whether a server works: the code, how it is started, and on what.

    ``patches`` maps a patch's id to the sha256 over its content; ``environment`` holds no secrets.
    ``interpreter`` is told and compared, but is no part of the fingerprint: the package's version is.
    """

    package: str | None
    package_version: str | None
    arguments: tuple[str, ...]
    gpu_model: str | None
    patches: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    interpreter: str | None = None  # None: an attempt of before it was recorded

    @property
    def model(self) -> str:
        """What is served, by the arguments: the model's flag, else all that has no flag."""
        flags = _flags(self.arguments)
        named = flags.get("--model-path") or flags.get("--model") or flags.get("") or ""
        return named.strip()

    def is_comparable(self, other: Content) -> bool:
        """Whether a difference between the two says something: the same model and interpreter."""
        interpreters = {self.interpreter, other.interpreter} - {None}
        return self.model == other.model and len(interpreters) <= 1

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits over all of it."""
        body = {
            "package": self.package,
            "package_version": self.package_version,
            "arguments": without_place(self.arguments),
            "patches": dict(sorted(self.patches.items())),
            "environment": dict(sorted(self.environment.items())),
            "gpu_model": self.gpu_model,
        }
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "arguments": list(self.arguments)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Content:
        """Read what ``to_json`` wrote, also by an older or a newer opsctl: unknown keys are left out."""
        return Content(
            package=_text(data.get("package")),
            package_version=_text(data.get("package_version")),
            arguments=tuple(str(item) for item in data.get("arguments") or ()),
            gpu_model=_text(data.get("gpu_model")),
            patches={str(k): str(v) for k, v in (data.get("patches") or {}).items()},
            environment={str(k): str(v) for k, v in (data.get("environment") or {}).items()},
            interpreter=_text(data.get("interpreter")),
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finished attempt, from this machine's ledger or from the copy beside the server."""

    run: str
    server: str
    at_s: float  # seconds since the epoch
    outcome: AttemptOutcome
    content: Content
    signature: str | None = None
    detail: str = ""  # one sentence: "crashed at C=10"
    who: str = ""
    smoked_to: int | None = None  # highest level that passed, or the first bad one; None: no smoke

    @property
    def fingerprint(self) -> str:
        return self.content.fingerprint()

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "server": self.server,
            "at_s": self.at_s,
            "outcome": self.outcome.value,
            "fingerprint": self.fingerprint,
            "signature": self.signature,
            "detail": self.detail,
            "who": self.who,
            "smoked_to": self.smoked_to,
            "content": self.content.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Attempt:
        """Read one line of attempts.jsonl.

        Raises:
            ValueError: if the line is no attempt.
        """
        try:
            known = {item.value for item in AttemptOutcome}
            outcome = str(data["outcome"])
            return Attempt(
                run=str(data["run"]),
                server=str(data["server"]),
                at_s=float(data["at_s"]),
                outcome=AttemptOutcome(outcome if outcome in known else "inconclusive"),
                content=Content.from_json(data["content"]),
                signature=_text(data.get("signature")),
                detail=str(data.get("detail") or ""),
                who=str(data.get("who") or ""),
                smoked_to=None if data.get("smoked_to") is None else int(data["smoked_to"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an attempt: {error}") from error


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether an attempt may be made, by what is known."""

    blocking: Attempt | None  # the last conclusive attempt with this content, when it failed
    last_passed: Attempt | None  # the last attempt on this server that passed
    differences: tuple[str, ...]  # from ``compared`` to what is planned
    compared: Attempt | None = None  # the last that passed with the same model and interpreter

    @property
    def is_known_bad(self) -> bool:
        return self.blocking is not None


def judge(content: Content, server: str, attempts: Iterable[Attempt]) -> Judgement:
    """Say what earlier attempts know about ``content``.

    Only the last conclusive outcome of the same fingerprint counts, whatever the server was called;
    inconclusive attempts say nothing, and a pass that looked less far than a failure does not clear it.
    An attempt that is known twice (ledger and host) is one attempt.
    """
    ordered = sorted({item.run: item for item in attempts}.values(), key=lambda item: item.at_s)
    conclusive = [item for item in ordered if item.outcome is not AttemptOutcome.INCONCLUSIVE]
    standing: dict[str, Attempt] = {}  # fingerprint -> its failure that nothing has cleared
    for item in conclusive:
        failure = standing.get(item.fingerprint)
        if item.outcome in FAILURES:
            standing[item.fingerprint] = item
        elif failure is not None and clears(item, failure):
            del standing[item.fingerprint]
    passed = [
        item
        for item in conclusive
        if item.outcome is AttemptOutcome.PASSED and item.server == server
        if item.fingerprint not in standing
    ]
    last_passed = passed[-1] if passed else None
    blocking = standing.get(content.fingerprint())
    alike = [item for item in passed if item.content.is_comparable(content)]
    compared = alike[-1] if alike else None
    found = differences(compared.content, content) if compared else ()
    return Judgement(blocking, last_passed, found, compared)


def clears(passed: Attempt, failure: Attempt) -> bool:
    """Say whether a pass disproves an earlier failure: one under load needs a smoke that climbed as high.

    ``--no-smoke`` starts a server that is known to crash at C=10 and proves nothing about C=10.
    """
    if failure.smoked_to is None:
        return True
    return passed.smoked_to is not None and passed.smoked_to >= failure.smoked_to


def differences(old: Content, new: Content) -> tuple[str, ...]:
    """Return what differs from ``old`` to ``new``, one short phrase each, nothing when they are equal.

    What is most often the cause comes first: patches, version, GPU, arguments, environment.
    """
    found = _changed("patch", old.patches, new.patches, show_values=False)
    if (old.package, old.package_version) != (new.package, new.package_version):
        found.append(
            f"package {_package(old)} became {_package(new)}",
        )
    if old.gpu_model != new.gpu_model:
        found.append(f"GPU {old.gpu_model or 'unknown'} became {new.gpu_model or 'unknown'}")
    found += _changed("argument", _flags(old.arguments), _flags(new.arguments), show_values=True)
    found += _changed("environment", old.environment, new.environment, show_values=True)
    return tuple(found)


def shortened(found: Sequence[str], run: str) -> str:
    """Return the first differences on one line, and where the others are: in the run that noted them."""
    words = "; ".join(found[:SHOWN])
    more = len(found) - SHOWN
    return f"{words}; and {more} more: opsctl show {run}" if more > 0 else words


def without_place(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without host, port and log level, which do not decide whether it works."""
    kept: list[str] = []
    skip = False
    for item in arguments:
        if skip:
            skip = False
            continue
        flag, equals, _ = item.partition("=")
        if flag in PLACE_FLAGS:
            skip = not equals
            continue
        kept.append(item)
    return kept


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """Group an argument list by flag: ``--a 1 2 --b`` is {"--a": "1 2", "--b": ""}."""
    grouped: dict[str, str] = {}
    flag = ""
    for item in without_place(arguments):
        if item.startswith("--"):
            flag, _, value = item.partition("=")
            grouped[flag] = value
        else:
            grouped[flag] = f"{grouped.get(flag, '')} {item}".strip()
    return grouped


def _changed(
    what: str, old: Mapping[str, str], new: Mapping[str, str], *, show_values: bool
) -> list[str]:
    found = []
    for key in sorted({*old, *new}):
        name = f"{what} {key}" if key else what
        if key not in new:
            found.append(
                f"{name} {old[key]}".rstrip() + " is gone" if show_values else f"{name} is gone"
            )
        elif key not in old:
            found.append(
                f"{name} {new[key]}".rstrip() + " is new" if show_values else f"{name} is new"
            )
        elif old[key] != new[key]:
            change = f" {old[key] or '(none)'} became {new[key] or '(none)'}" if show_values else ""
            found.append(f"{name}{change or ' has other content'}")
    return found


def _package(content: Content) -> str:
    return f"{content.package or 'unknown'} {content.package_version or 'of unknown version'}"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
