"""What each GPU used when it was seen idle: one JSON file in the state folder, by host and UUID."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.domain.gpu import Baseline
from opsctl.errors import ConfigError

FILE_NAME = "gpu-baselines.json"


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


def save_baselines(state_dir: Path, host: str, learned: Mapping[str, Baseline]) -> None:
    """Add or replace baselines; readers see the old file or the new one."""
    if not learned:
        return
    path = state_dir / FILE_NAME
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(state_dir / (FILE_NAME + ".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        body = _read(path)
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
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
        os.replace(temporary, path)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        body: dict[str, dict[str, Any]] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged: {error}",
            next_step=f"remove it; baselines are learned again from idle cards: rm {path}",
            subject=str(path),
        ) from error
    return body
