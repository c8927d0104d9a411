"""An installed distribution, as the interpreter that launches the server sees it, without importing it."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

TIMEOUT_S = 20.0
MARK = "opsctl-package:"
PLACES = (
    "/usr/lib/python3*/dist-packages",
    "/usr/lib/python3*/site-packages",
    "/usr/local/lib/python3*/dist-packages",
    "/usr/local/lib/python3*/site-packages",
    "/opt/*/lib/python3*/site-packages",
    "~/.local/lib/python3*/site-packages",
)

# Runs in the server's interpreter: find_spec of a top-level name imports nothing, and what is installed is
# read from its folder's name and files, for importlib.metadata alone would cost more than all the rest.
PROBE = """\
import importlib.util as u, json, os, sys
name = sys.argv[1]
wanted = name.replace("-", "_").lower()
out = {"version": None, "location": None, "editable": None, "record": None, "others": []}
def field(path, key):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            for line in f:
                if not line.strip(): return None
                if line.startswith(key + ":"): return line.partition(":")[2].strip()
    except OSError: return None
try:
    spec = u.find_spec(name.replace("-", "_"))
except (ImportError, ValueError):
    spec = None
if spec is not None:
    places = list(spec.submodule_search_locations or [])
    out["location"] = places[0] if places else os.path.dirname(spec.origin or "")
seen = []
for place in sys.path:
    try:
        entries = sorted(os.listdir(place or "."))
    except OSError:
        continue
    for entry in entries:
        stem, kind = os.path.splitext(entry)
        if kind not in (".dist-info", ".egg-info"): continue
        if stem.split("-")[0].replace(".", "_").lower() != wanted: continue
        path = os.path.realpath(os.path.join(place, entry))
        if path not in seen: seen.append(path)
for number, path in enumerate(seen):
    if number:
        out["others"].append(path)
        continue
    meta = os.path.join(path, "METADATA" if path.endswith(".dist-info") else "PKG-INFO")
    out["version"] = field(meta, "Version")
    out["record"] = os.path.join(path, "RECORD")
    out["editable"] = path.endswith(".egg-info")
    try:
        with open(os.path.join(path, "direct_url.json")) as f:
            out["editable"] = bool(json.load(f).get("dir_info", {}).get("editable"))
    except (OSError, ValueError):
        pass
out["executable"] = sys.executable
out["python"] = "%d.%d.%d" % sys.version_info[:3]
out["prefix"] = sys.prefix
print("\\nopsctl-package:" + json.dumps(out))
"""


def read(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the fields of facts.Package.

    Request: ``interpreter`` (an argv, e.g. ["/opt/sglang/bin/python"]), ``name``, ``cwd``, ``env``,
    ``timeout_s``.
    """
    argv = list(request["interpreter"])
    facts = {
        "name": request["name"],
        "interpreter": argv[0],
        "version": None,
        "location": None,
        "editable": None,
        "record": None,
        "others": [],
        "error": None,
    }
    try:
        output = run([*argv, "-c", PROBE, request["name"]], request)
    except OSError as error:
        return dict(facts, error="cannot run %s: %s" % (argv[0], error.strerror))
    except subprocess.TimeoutExpired as error:
        return dict(facts, error="%s did not answer within %.0f s" % (argv[0], error.timeout))
    text = output.stdout.decode("utf-8", "replace")
    if MARK not in text:
        last = output.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        why = last[0] if last else "exit %d" % output.returncode
        return dict(facts, error="%s could not look: %s" % (argv[0], why))
    found = json.loads(text.rpartition(MARK)[2].splitlines()[0])
    facts.update({key: found[key] for key in ("version", "location", "editable", "record")})
    facts["interpreter"] = found["executable"] or argv[0]
    facts["others"] = sorted({*found["others"], *elsewhere(request["name"], found["record"])})
    if found["version"] is None and found["location"] is None:
        facts["error"] = "%s is not installed for %s" % (request["name"], argv[0])
    return facts


def run(argv: list[str], request: dict[str, Any]) -> subprocess.CompletedProcess[bytes]:
    """Run the probe in a group of its own, so that a wrapper and its child end together."""
    timeout_s = request.get("timeout_s", TIMEOUT_S)
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=request.get("cwd") or "/",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(request.get("env") or {})},
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


def elsewhere(name: str, record: str | None) -> list[str]:
    """Return the installations in usual places of this host that the interpreter does not use."""
    mine = os.path.dirname(record) if record else None
    found = []
    for place in PLACES:
        stem = os.path.join(os.path.expanduser(place), name.replace("-", "_"))
        for path in glob.glob(stem + "-*.dist-info"):
            real = os.path.realpath(path)
            if real != mine:
                found.append(real)
    return found


OPERATIONS = {"read": read}
