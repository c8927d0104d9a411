"""Prove a package in a fresh process of the launch interpreter: imports, and words in a help text.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from typing import Any, Dict, Iterator

from opsctl.agent.ops import patch_record as record

Data = Dict[str, Any]  # what JSON carries; `dict[...]` at run time is Python 3.9

# Imports what a patch must leave importable, and says where each came from.
IMPORT = r"""
import importlib, json, sys
seen = {}
for name in json.loads(sys.argv[1]):
    seen[name] = getattr(importlib.import_module(name), "__file__", None)
print("opsctl:" + json.dumps(seen))
"""


def prove(request: Data) -> Data:
    """Import in a fresh process of the launch interpreter, and look for words in a help text.

    With ``stage`` (path -> packed content) it is done on a shadow of the package, before anything changes.
    """
    with contextlib.ExitStack() as stack:
        root = request["root"]
        if request.get("stage"):
            shadow = stack.enter_context(tempfile.TemporaryDirectory(prefix="opsctl-stage-"))
            root = build_shadow(root, shadow, request["stage"])
            env = dict(request.get("env") or {})
            first = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [shadow, first]))
            request = dict(request, env=env, cwd=shadow, root=root)
        started = time.monotonic()
        try:
            detail = _prove_imports(request) or _prove_help(request)
        except record.Failure as failure:
            detail = failure.detail
        return {"ok": not detail, "detail": detail, "seconds": round(time.monotonic() - started, 3)}


def build_shadow(root: str, shadow: str, contents: dict[str, str | None]) -> str:
    """Make a folder that imports like the package with some files replaced: links for all the rest."""
    name = os.path.basename(root)
    top = os.path.join(shadow, name)
    real = {""} | {parent for path in contents for parent in _parents(path)}
    for folder in sorted(real, key=len):
        here = os.path.join(top, folder) if folder else top
        os.mkdir(here)
        source = os.path.join(root, folder) if folder else root
        for child in os.listdir(source) if os.path.isdir(source) else ():
            inner = os.path.join(folder, child)
            if inner not in real and inner not in contents and child != "__pycache__":
                os.symlink(os.path.join(source, child), os.path.join(here, child))
    for path, packed in contents.items():
        if packed is not None:
            with open(os.path.join(top, path), "wb") as file:
                file.write(record.unpack(packed))
    return top


def _parents(path: str) -> Iterator[str]:
    folder = os.path.dirname(path)
    while folder:
        yield folder
        folder = os.path.dirname(folder)


def _prove_imports(request: Data) -> str:
    if not request.get("imports"):
        return ""
    seen = ask(request, IMPORT, [json.dumps(request["imports"])], request["timeout_s"])
    root = request["root"]
    for name, path in seen.items():
        if not (path and (_inside(path, root) or _inside(os.path.realpath(path), root))):
            return f"the launch interpreter imports {name} from {path}, not from {root}"
    return ""


def _inside(path: str, root: str) -> bool:
    return path.startswith(root + os.sep)


def _prove_help(request: Data) -> str:
    for one in request.get("help") or ():
        argv = [request["interpreter"], *one["run"]]
        done = _run(argv, request, request["timeout_s"])
        missing = [word for word in one["shows"] if word.encode() not in done.stdout]
        if done.returncode != 0 or missing:
            without = ", ".join(missing)
            return (
                f"{' '.join(argv)}: exit {done.returncode}, without {without}: {_tail(done.stderr)}"
            )
    return ""


def ask(request: Data, script: str, arguments: list[str], timeout_s: float) -> Data:
    """Run a script of ours in the launch interpreter and return the JSON that it prints after its mark."""
    argv = [request["interpreter"], "-c", script, *arguments]
    done = _run(argv, request, timeout_s)
    for line in done.stdout.decode("utf-8", "replace").split("\n"):
        if line.startswith("opsctl:"):
            answer: Data = json.loads(line[7:])
            return answer
    raise record.Failure(
        "interpreter-failed", f"{argv[0]}: exit {done.returncode}: {_tail(done.stderr)}"
    )


def _run(argv: list[str], request: Data, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run one command in its own session, in the launch's folder and environment, and end all of it."""
    env = {**os.environ, **(request.get("env") or {}), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=request.get("cwd") or "/",
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        text = f"{error.filename or argv[0]}: {error.strerror}"
        raise record.Failure("no-interpreter", text) from error
    try:
        stdout, stderr = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        text = f"no answer from {argv[0]} in {timeout_s:.0f} s"
        raise record.Failure("timeout", text) from error
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return subprocess.CompletedProcess(argv, child.returncode, stdout, stderr)


def _tail(stderr: bytes) -> str:
    lines = [line for line in stderr.decode("utf-8", "replace").split("\n") if line.strip()]
    return " | ".join(lines[-3:])[-600:]
