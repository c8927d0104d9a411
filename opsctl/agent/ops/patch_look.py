"""Find an installed package, hash its files, say what the host remembers of them. Changes nothing by itself.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import base64
import csv
import glob
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Dict

from opsctl.agent.ops import patch_files as files
from opsctl.agent.ops import patch_proof as proof
from opsctl.agent.ops import patch_record
from opsctl.agent.ops.patch_record import named
from opsctl.agent.ops.patch_users import running

HASHERS = 4  # threads that hash a whole package
Data = Dict[str, Any]  # what JSON carries; `dict[...]` at run time is Python 3.9

# Runs in the launch interpreter, in the launch's folder and environment: what `-m MODULE` would import.
FIND = r"""
import importlib.util, json, os, sys
from importlib import metadata
name, module = sys.argv[1:3]
spec = importlib.util.find_spec(module)
places = list(spec.submodule_search_locations or []) if spec else []
found = []
for one in metadata.Distribution.discover(name=name):
    try: direct = json.loads(one.read_text("direct_url.json") or "{}")
    except ValueError: direct = {}
    found.append({"info": os.path.abspath(str(getattr(one, "_path", ""))), "version": one.version,
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


@named
def locate(request: Data, context: Any) -> Data:
    """Ask the launch interpreter which package it would import; name every other one that is seen."""
    reply = proof.ask(request, FIND, [request["distribution"], request["module"]], 20.0)
    roots = [os.path.realpath(place) for place in reply["places"]]
    root = roots[0] if roots else None
    if root is not None and not os.path.isdir(root):
        raise patch_record.Failure(
            "package-zipped", f"{root} is in an archive: nothing in it is patched"
        )
    places = {os.path.dirname(os.path.abspath(place)) for place in reply["places"]}
    info = _info_of(root, places, reply["found"])
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


@named
def look(request: Data, context: Any) -> Data:
    """Hash files of a package; send content where the hash is none that the caller knows.

    A transaction that was cut is finished or undone first, unless ``recover`` is false.
    """
    root, state = request["root"], patch_record.state_dir(request.get("state_dir"))
    recovered = busy = None
    journal = patch_record.read_journal(root)
    if journal or patch_record.has_torn_journal(root):
        try:
            with files.lock(root):
                if request.get("recover", True):
                    recovered = files.recover(root, state)
        except patch_record.Failure as failure:
            busy = failure.detail
        except OSError as error:
            raise patch_record.Failure(
                "interrupted", f"a change of {root} was cut: {error}"
            ) from error
    shipped = _read_record(root, request.get("info"))
    origins = patch_record.origins(state, root)
    seen = [
        _look_at(root, path, known, shipped) for path, known in sorted(request["files"].items())
    ]
    return {
        "files": [_with_origin(one, origins.get(one["path"])) for one in seen],
        "recovered": recovered,
        "interrupted": journal if journal and not recovered and not busy else None,
        "busy": busy,
        "records": _applied_ids(root, state),
        "running": running(request.get("interpreter"), request.get("module"), root),
        "package": _verify_all(root, shipped) if request.get("verify_all") else None,
    }


def _info_of(root: str | None, places: set[str], found: list[Data]) -> Data | None:
    """Return the distribution that is imported: the one beside the files, else an editable one.

    The package's folder may be a symbolic link; then it is the one beside the link.
    """
    beside = {os.path.realpath(place) for place in places} if root else set()
    beside |= {os.path.dirname(root)} if root else set()
    for one in found:
        if os.path.realpath(os.path.dirname(one["info"])) in beside:
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
        seen["content"] = patch_record.pack(content)
    return seen


def _with_origin(seen: Data, origin: Data | None) -> Data:
    """Add what stood there before opsctl wrote the file, if it still is as written, and the backup whole."""
    if origin is None or seen["sha256"] != origin["after"]:
        return seen
    try:
        content = patch_record.read_origin(origin)
    except OSError:
        return seen
    packed = None if content is None else patch_record.pack(content)
    return dict(seen, origin={"sha256": origin["before"], "content": packed})


def _read_record(root: str, info: str | None) -> dict[str, str]:
    """Return SHA-256 in hex by path, from the distribution's RECORD; empty when there is none.

    Paths are relative to the package's folder; those beside it begin with ``../``. What an installer put
    elsewhere (scripts) and rewrites is left out.
    """
    shipped: dict[str, str] = {}
    if not info:
        return shipped
    base = os.path.realpath(os.path.dirname(info))
    prefix = os.path.basename(root) + "/" if base == os.path.dirname(root) else None
    try:
        with open(
            os.path.join(info, "RECORD"), newline="", encoding="utf-8", errors="replace"
        ) as file:
            for row in csv.reader(file):
                if (
                    len(row) < 2
                    or not row[1].startswith("sha256=")
                    or row[0].startswith(("..", "/"))
                ):
                    continue
                inside = prefix is not None and row[0].startswith(prefix)
                path = row[0][len(prefix or "") :] if inside else _beside(root, base, row[0])
                shipped[path] = base64.urlsafe_b64decode(row[1][7:] + "==").hex()
    except (OSError, ValueError, csv.Error):  # gone or damaged: what was shipped is not known
        return {}
    return shipped


def _beside(root: str, base: str, path: str) -> str:
    return os.path.relpath(os.path.join(base, path), root)


def _verify_all(root: str, shipped: dict[str, str]) -> Data:
    """Compare every file of the distribution with its RECORD.

    A share per thread, and no Python file objects: a release has thousands of small files.
    """
    files = list(shipped.items())
    with ThreadPoolExecutor(max_workers=HASHERS) as pool:
        shares = [files[first::HASHERS] for first in range(HASHERS)]
        changed = [path for found in pool.map(partial(_changed, root), shares) for path in found]
    return {"files": len(files), "changed": sorted(changed)}


def _changed(root: str, files: list[tuple[str, str]]) -> list[str]:
    """Return the paths of those files that have another content, or cannot be read."""
    found = []
    for path, wanted in files:
        try:
            same = _digest(os.path.join(root, path)) == wanted
        except OSError:
            same = False
        if not same:
            found.append(path)
    return found


def _digest(path: str) -> str:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        digest = hashlib.sha256()
        while True:
            block = os.read(file, 1 << 20)
            if not block:
                return digest.hexdigest()
            digest.update(block)
    finally:
        os.close(file)


def _applied_ids(root: str, state: str) -> Data:
    """Return the record's last word per patch in this package: {id: {action, at, who, tx, version}}."""
    last = {}
    for record in patch_record.read_records(state):
        if record.get("root") == root and record.get("outcome") == "done":
            about = {key: record.get(key) for key in ("action", "at", "who", "tx", "version")}
            gone = dict(about, action="revert")
            for ids, said in ((record["patches"], about), (record.get("removed", ()), gone)):
                for one in ids:
                    last[one] = said
    return last
