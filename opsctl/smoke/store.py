"""Smoke results on disk: one JSON document per run in the state folder, found again by its id."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from pathlib import Path
from typing import Any

from opsctl.errors import UsageError
from opsctl.smoke.judge import Answer

FOLDER = "smoke"
STORE_SCHEMA = "opsctl.smoke-run/1"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*$")

LEVEL_KEYS = {"concurrency", "outcome"}  # without them a level says nothing


def new_run_id(now_s: float | None = None) -> str:
    """Return an id that sorts by time and is unique."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
    return f"{stamp}-{secrets.token_hex(2)}"


def save_result(state: Path, run: str, body: dict[str, Any]) -> Path:
    """Write one result whole or not at all, and return its path."""
    folder = state / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{run}.json"
    part = folder / f".{run}.part"
    with part.open("w", encoding="utf-8") as out:
        json.dump({"schema": STORE_SCHEMA, "run": run, **body}, out, ensure_ascii=False)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)
    return path


def load_result(state: Path, name: str) -> dict[str, Any]:
    """Return a saved result by id, by a part of its id that is unique, by path, or the ``last`` one.

    Raises:
        UsageError: there is none, several fit, or the file is no smoke result.
    """
    path = _find(state, name)
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the result {path} cannot be read: {error}") from error
    if not isinstance(body, dict):
        raise UsageError(f"{path} is no smoke result")
    if str(body.get("schema", "")).startswith("opsctl.smoke/"):  # what --json printed
        data = body.get("data") or {}
        body = {**data, "run": body.get("run") or path.stem, "outcome": body.get("outcome")}
    levels = body.get("levels")
    if not isinstance(levels, list):
        raise UsageError(f"{path} is no smoke result: it has no levels")
    if not all(isinstance(level, dict) and level.keys() >= LEVEL_KEYS for level in levels):
        raise UsageError(f"{path} is damaged: a level lacks {' or '.join(sorted(LEVEL_KEYS))}")
    return body


def _find(state: Path, name: str) -> Path:
    if os.sep in name or name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"there is no file {name}")
        return path
    known = sorted((state / FOLDER).glob("*.json"))
    if name == "last" and known:
        return known[-1]
    fitting = [path for path in known if name and name in path.stem]
    exact = [path for path in fitting if path.stem == name]
    if exact or len(fitting) == 1:
        return (exact or fitting)[0]
    latest = ", ".join(path.stem for path in known[-3:]) or "none yet"
    if fitting:
        raise UsageError(f"{len(fitting)} runs fit '{name}'", next_step="give more of the id")
    raise UsageError(f"there is no smoke run '{name}'", next_step=f"the last runs: {latest}")


def answers_to_json(answers: dict[str, Answer]) -> dict[str, Any]:
    """Return reference answers as JSON can hold them."""
    return {key: a if isinstance(a, str) else list(a) for key, a in answers.items()}


def answers_from_json(answers: Any) -> dict[str, Answer]:
    """Return reference answers as saved; an empty book for a run that kept none."""
    if not isinstance(answers, dict):
        return {}
    return {str(k): a if isinstance(a, str) else tuple(a) for k, a in answers.items()}
