"""Operations on an installed package: find it, hash files, replace them all or none, prove, look back.

Nothing is decided here: the caller says which file must have which content before and after. Standard
library only, Python 3.8.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import uuid
from typing import Any, Callable, Dict

from opsctl.agent.ops import patch_files as files
from opsctl.agent.ops import patch_proof as proof
from opsctl.agent.ops import patch_record
from opsctl.agent.ops.patch_look import locate, look
from opsctl.agent.ops.patch_record import named

Data = Dict[str, Any]  # what JSON carries; `dict[...]` at run time is Python 3.9
Operation = Callable[[Data, Any], Data]


@named
def apply(request: Data, context: Any) -> Data:
    """Replace files, all or none: temporary files, journal, backups, one rename each, proof, record.

    ``files`` entries: path, before, after, content (packed), the hashes None for "no file". A failed proof,
    a full disk or a file that changed meanwhile leave everything as it was.
    """
    root, state = request["root"], patch_record.state_dir(request.get("state_dir"))
    contents = {
        one["path"]: patch_record.unpack(one["content"])
        for one in request["files"]
        if one["content"]
    }
    for one in request["files"]:
        content = contents.get(one["path"])
        if (hashlib.sha256(content).hexdigest() if content is not None else None) != one["after"]:
            raise patch_record.Failure("bad-request", f"{one['path']} arrived damaged")
    with files.lock(root, request.get("wait_s", 0.0)):
        return _apply_locked(root, state, request, contents, context)


def _apply_locked(
    root: str, state: str, request: Data, contents: dict[str, bytes], context: Any
) -> Data:
    files.recover(root, state)
    files.insist(root, request["files"])
    journal = _new_journal(root, state, request)
    try:
        files.begin(root, journal, contents, state)
        context.emit({"event": "staged"})
        files.swap(root, journal)
        context.emit({"event": "swapped"})
        proven = proof.prove(dict(request["proof"], root=root)) if request.get("proof") else None
        if proven and not proven["ok"]:
            raise patch_record.Failure("proof-failed", proven["detail"])
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
        "who": patch_record.who(),
        "at": time.time(),
    }


def _reads_as(root: str, path: str, link: str) -> str | None:
    return patch_record.sha256_of(os.path.join(os.path.dirname(os.path.join(root, path)), link))


def _earlier(root: str, state: str) -> tuple[dict[str, str], list[str]]:
    """Return what earlier transactions replaced or made here: symbolic links by path, folders."""
    links, folders = {}, []
    for record in patch_record.read_records(state):
        if record.get("root") == root and record.get("outcome") == "done":
            folders += record.get("made_folders", [])
            for entry in record["files"]:
                if entry.get("was_link"):
                    links[entry["path"]] = entry["was_link"]
    return links, folders


def log(request: Data, context: Any) -> Data:
    """Return the record of one package, oldest first."""
    records = patch_record.read_records(patch_record.state_dir(request.get("state_dir")))
    root = request.get("root")
    return {"records": [one for one in records if root is None or one.get("root") == root]}


@named
def prove(request: Data, context: Any) -> Data:
    """Prove a package as it stands, or as it would be with ``stage``; see `patch_proof.prove`."""
    return proof.prove(request)


OPERATIONS = {"locate": locate, "look": look, "apply": apply, "prove": prove, "log": log}
