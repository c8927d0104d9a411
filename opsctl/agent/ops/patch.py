"""Operations on an installed package: find it, hash files, replace them all or none, prove, look back.

Nothing is decided here: the caller says which file must have which content before and after. Standard
library only, Python 3.8.
"""

from __future__ import annotations

import base64
import csv
import errno
import functools
import glob
import hashlib
import os
import stat
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict

from opsctl.agent.ops import patch_files as files
from opsctl.agent.ops import patch_proof as proof

Data = Dict[str, Any]  # what JSON carries; `dict[...]` at run time is Python 3.9
Operation = Callable[[Data, Any], Data]

# Runs in the launch interpreter, in the launch's folder and environment: what `-m MODULE` would import.
FIND = r"""
import importlib.util, json, os, sys
from importlib import metadata
name, module = sys.argv[1:3]
spec = importlib.util.find_spec(module)
places = list(spec.submodule_search_locations or []) if spec else []
found = []
for one in metadata.Distribution.discover(name=name):
    direct = json.loads(one.read_text("direct_url.json") or "{}")
    found.append({"info": str(getattr(one, "_path", "")), "version": one.version,
                  "editable": bool(direct.get("dir_info", {}).get("editable"))})
print("opsctl:" + json.dumps({"places": places, "origin": spec.origin if spec else None, "found": found,
      "python": sys.version.split()[0], "executable": sys.executable, "path": sys.path}))
"""

OTHER_PLACES = (
    "/usr/lib/python3*/*-packages",
    "/usr/local/lib/python3*/*-packages",
    "/opt/*/lib/python3*/site-packages",
    "/opt/*/*/lib/python3*/site-packages",
    "/root/*/lib/python3*/site-packages",
    "/home/*/*/lib/python3*/site-packages",
    "/root/.local/lib/python3*/site-packages",
    "/home/*/.local/lib/python3*/site-packages",
)


def named(operation: Operation) -> Operation:
    """Turn this module's failures into the agent's named errors."""

    @functools.wraps(operation)
    def call(request: Data, context: Any) -> Data:
        try:
            return operation(request, context)
        except files.Failure as failure:
            raise context.Error(failure.kind, failure.detail) from failure

    return call


@named
def locate(request: Data, context: Any) -> Data:
    """Ask the launch interpreter which package it would import; name every other one that is seen."""
    reply = proof.ask(request, FIND, [request["distribution"], request["module"]], 20.0)
    roots = [os.path.realpath(place) for place in reply["places"]]
    root = roots[0] if roots else None
    info = _info_of(root, reply["found"])
    return {
        "root": root,
        "version": info["version"] if info else None,
        "info": info["info"] if info else None,
        "editable": bool(info and info["editable"]),
        "namespace": root is not None and reply["origin"] is None,
        "interpreter": reply["executable"],
        "python": reply["python"],
        "others": _others(request["module"], root, reply),
    }


def _info_of(root: str | None, found: list[Data]) -> Data | None:
    """Return the distribution that is imported: the one beside the files, else an editable one."""
    for one in found:
        if root and os.path.realpath(os.path.dirname(one["info"])) == os.path.dirname(root):
            return one
    return next((one for one in found if one["editable"]), None)


def _others(module: str, root: str | None, reply: Data) -> list[str]:
    places = list(reply["path"])
    for pattern in OTHER_PLACES:
        places += glob.glob(pattern)
    seen = []
    for place in places:
        path = os.path.realpath(os.path.join(place or ".", module))
        if path != root and path not in seen and os.path.isfile(os.path.join(path, "__init__.py")):
            seen.append(path)
    return seen


@named
def look(request: Data, context: Any) -> Data:
    """Hash files of a package; send content where the hash is none that the caller knows.

    A transaction that was cut is finished or undone first, unless ``recover`` is false.
    """
    root, state = request["root"], files.state_dir(request.get("state_dir"))
    recovered = busy = None
    journal = files.read_journal(root)
    if journal or files.has_torn_journal(root):
        try:
            with files.lock(root):
                if request.get("recover", True):
                    recovered = files.recover(root, state)
        except files.Failure as failure:
            busy = failure.detail
        except OSError as error:
            raise files.Failure("interrupted", f"a change of {root} was cut: {error}") from error
    shipped = _read_record(root, request.get("info"))
    return {
        "files": [
            _look_at(root, path, known, shipped) for path, known in sorted(request["files"].items())
        ],
        "recovered": recovered,
        "interrupted": journal if journal and not recovered and not busy else None,
        "busy": busy,
        "records": _applied_ids(root, state),
        "running": _running(request.get("interpreter"), request.get("module")),
        "package": _verify_all(root, shipped) if request.get("verify_all") else None,
    }


def _look_at(root: str, path: str, known: list[str], shipped: dict[str, str]) -> Data:
    full = os.path.join(root, path)
    seen: Data = {"path": path, "sha256": None, "shipped": shipped.get(path)}
    try:
        with open(full, "rb") as file:
            content = file.read()
            about = os.fstat(file.fileno())
    except FileNotFoundError:
        return seen
    seen["sha256"] = hashlib.sha256(content).hexdigest()
    seen.update(mode=stat.S_IMODE(about.st_mode), links=about.st_nlink, mtime=about.st_mtime)
    if os.path.islink(full):
        seen["link"] = os.readlink(full)
    if seen["sha256"] not in known:
        seen["content"] = files.pack(content)
    return seen


def _read_record(root: str, info: str | None) -> dict[str, str]:
    """Return SHA-256 in hex by path inside the package, from the wheel's RECORD; empty when there is none."""
    shipped: dict[str, str] = {}
    if not info:
        return shipped
    prefix = os.path.basename(root) + "/"
    try:
        with open(os.path.join(info, "RECORD"), newline="") as file:
            for row in csv.reader(file):
                if len(row) > 1 and row[0].startswith(prefix) and row[1].startswith("sha256="):
                    raw = base64.urlsafe_b64decode(row[1][7:] + "==")
                    shipped[row[0][len(prefix) :]] = raw.hex()
    except OSError:
        return {}
    return shipped


def _verify_all(root: str, shipped: dict[str, str]) -> Data:
    """Compare every file of the package with its RECORD."""

    def differs(path: str) -> bool:
        try:
            return files.sha256_of(os.path.join(root, path)) != shipped[path]
        except OSError:
            return True

    with ThreadPoolExecutor(max_workers=4) as pool:
        differ = list(pool.map(differs, shipped))
    changed = [path for path, bad in zip(shipped, differ) if bad]
    return {"files": len(shipped), "changed": sorted(changed)}


def _applied_ids(root: str, state: str) -> Data:
    """Return the record's last word per patch in this package: {id: {action, at, who, tx, version}}."""
    last = {}
    for record in files.read_records(state):
        if record.get("root") == root and record.get("outcome") == "done":
            about = {key: record.get(key) for key in ("action", "at", "who", "tx", "version")}
            gone = dict(about, action="revert")
            for ids, said in ((record["patches"], about), (record.get("removed", ()), gone)):
                for one in ids:
                    last[one] = said
    return last


def _running(interpreter: str | None, module: str | None) -> list[Data]:
    """Return processes of this interpreter that name the module; they run the files of their start."""
    if not interpreter or not module:
        return []
    running = []
    wanted = os.path.realpath(interpreter)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                argv = file.read()
            if module.encode() not in argv or int(pid) == os.getpid():
                continue
            if os.readlink(f"/proc/{pid}/exe") == wanted:
                running.append({"pid": int(pid), "started": os.stat(f"/proc/{pid}").st_mtime})
        except OSError:
            continue
    return running


@named
def apply(request: Data, context: Any) -> Data:
    """Replace files, all or none: temporary files, journal, backups, one rename each, proof, record.

    ``files`` entries: path, before, after, content (packed), the hashes None for "no file". A failed proof,
    a full disk or a file that changed meanwhile leave everything as it was.
    """
    root, state = request["root"], files.state_dir(request.get("state_dir"))
    contents = {
        one["path"]: files.unpack(one["content"]) for one in request["files"] if one["content"]
    }
    for one in request["files"]:
        content = contents.get(one["path"])
        if (hashlib.sha256(content).hexdigest() if content is not None else None) != one["after"]:
            raise files.Failure("bad-request", f"{one['path']} arrived damaged")
    try:
        with files.lock(root, request.get("wait_s", 0.0)):
            return _apply_locked(root, state, request, contents, context)
    except OSError as error:
        kinds = {errno.ENOSPC: "no-space", errno.EDQUOT: "no-space"}
        denied = (errno.EACCES, errno.EPERM, errno.EROFS)
        kind = kinds.get(error.errno or 0, "not-permitted" if error.errno in denied else "io")
        raise files.Failure(kind, f"{error.filename or root}: {error.strerror or error}") from error


def _apply_locked(
    root: str, state: str, request: Data, contents: dict[str, bytes], context: Any
) -> Data:
    files.recover(root, state)
    journal = _new_journal(root, state, request)
    try:
        files.begin(root, journal, contents, state)
        context.emit({"event": "staged"})
        files.swap(root, journal)
        context.emit({"event": "swapped"})
        proven = proof.prove(dict(request["proof"], root=root)) if request.get("proof") else None
        if proven and not proven["ok"]:
            raise files.Failure("proof-failed", proven["detail"])
        files.commit(root, journal, state)
    except BaseException:
        files.undo(root, journal, state)
        raise
    return {"tx": journal["tx"], "proof": proven, "backups": journal["backups"]}


def _new_journal(root: str, state: str, request: Data) -> Data:
    links, own_folders = _earlier(root, state)
    entries = []
    for one in request["files"]:
        target = os.path.join(root, one["path"])
        entry = {key: one[key] for key in ("path", "before", "after")}
        entry["like"] = None
        if one["before"] is not None:
            about = os.stat(target)
            entry["like"] = {
                "mode": stat.S_IMODE(about.st_mode),
                "uid": about.st_uid,
                "gid": about.st_gid,
            }
            if os.path.islink(target):
                entry["was_link"] = os.readlink(target)
        link = links.get(one["path"])
        if link and one["after"] and _reads_as(root, one["path"], link) == one["after"]:
            entry["link"] = link
        entries.append(entry)
    return {
        "tx": time.strftime("%Y%m%dT%H%M%S-") + uuid.uuid4().hex[:6],
        "action": request["action"],
        "patches": request["patches"],
        "removed": request.get("removed", []),
        "version": request.get("version"),
        "run": request.get("run"),
        "files": entries,
        "own_folders": own_folders,
        "pid": os.getpid(),
        "who": files.who(),
        "at": time.time(),
    }


def _reads_as(root: str, path: str, link: str) -> str | None:
    return files.sha256_of(os.path.join(os.path.dirname(os.path.join(root, path)), link))


def _earlier(root: str, state: str) -> tuple[dict[str, str], list[str]]:
    """Return what earlier transactions replaced or made here: symbolic links by path, folders."""
    links, folders = {}, []
    for record in files.read_records(state):
        if record.get("root") == root and record.get("outcome") == "done":
            folders += record.get("made_folders", [])
            for entry in record["files"]:
                if entry.get("was_link"):
                    links[entry["path"]] = entry["was_link"]
    return links, folders


def log(request: Data, context: Any) -> Data:
    """Return the record of one package, oldest first."""
    records = files.read_records(files.state_dir(request.get("state_dir")))
    root = request.get("root")
    return {"records": [one for one in records if root is None or one.get("root") == root]}


@named
def prove(request: Data, context: Any) -> Data:
    """Prove a package as it stands, or as it would be with ``stage``; see `patch_proof.prove`."""
    return proof.prove(request)


OPERATIONS = {"locate": locate, "look": look, "apply": apply, "prove": prove, "log": log}
