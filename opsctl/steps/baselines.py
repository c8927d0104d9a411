"""What each GPU used when it was seen idle: one JSON file in the state folder, by host and UUID."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opsctl.domain.counted import counted
from opsctl.domain.gpu import Baseline
from opsctl.errors import ConfigError
from opsctl.output import Finding

FILE_NAME = "gpu-baselines.json"
GUARD_S = (
    5.0  # another opsctl writes for some milliseconds; one that stands still is not waited for
)


def load_baselines(state_dir: Path | None) -> dict[str, Baseline]:
    """Return the known baselines of all hosts by UUID (a UUID is one card, wherever it sits).

    Raises:
        ConfigError: the file is damaged; guessing would be worse than stopping.
    """
    if state_dir is None:
        return {}
    found: dict[str, Baseline] = {}
    for cards in _read(state_dir / FILE_NAME).values():
        for uuid, entry in cards.items():
            found[uuid] = Baseline(entry["used_bytes"], entry["memory_version"])
    return found


def save_baselines(state_dir: Path, host: str, learned: Mapping[str, Baseline]) -> list[Finding]:
    """Add or replace baselines; readers see the old file or the new one, also after a power cut.

    Returns a finding where they could not be kept: what was proven stays proven, and is learned again.
    """
    if not learned:
        return []
    path = state_dir / FILE_NAME
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _guarded(state_dir / (FILE_NAME + ".lock")):
            body = _read(path)
            _add(body, host, learned)
            _write(path, json.dumps(body, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        cards, why = counted(len(learned), "GPU"), error.strerror or error
        text = f"the idle baselines of {cards} were not kept: {why}"
        step = "make room there or mend its rights; they are learned again from idle cards"
        return [Finding("baseline-not-kept", str(path), text, step)]
    return []


@contextmanager
def _guarded(path: Path) -> Iterator[None]:
    with open(path, "w") as guard:
        end = time.monotonic() + GUARD_S
        while True:
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        yield


def _add(body: dict[str, dict[str, Any]], host: str, learned: Mapping[str, Baseline]) -> None:
    for cards in body.values():
        for uuid in learned:
            cards.pop(uuid, None)  # a card that moved has one baseline
    cards = body.setdefault(host, {})
    for uuid, baseline in learned.items():
        cards[uuid] = {
            "used_bytes": baseline.used_bytes,
            "memory_version": baseline.memory_version,
            "learned_at_s": round(time.time(), 3),
        }


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with open(temporary, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        body: dict[str, dict[str, Any]] = json.loads(path.read_text())
        _check(body)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{path} is damaged: {why}",
            next_step=f"remove it; baselines are learned again from idle cards: rm {path}",
            subject=str(path),
        ) from error
    return body


def _check(body: Any) -> None:
    """Raise ValueError for what no opsctl has written: a wrong baseline would call a busy card idle."""
    hosts = body.values() if isinstance(body, dict) else [None]
    for cards in hosts:
        if not isinstance(cards, dict):
            raise ValueError("it holds no GPUs by host")
        for uuid, entry in cards.items():
            known = entry if isinstance(entry, dict) else {}
            numbers = [known.get(key) for key in ("used_bytes", "memory_version")]
            if any(type(number) is not int or number < 0 for number in numbers):
                raise ValueError(f"the entry of {uuid} is no baseline")
