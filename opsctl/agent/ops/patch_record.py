"""What a host remembers of patching: the record, the journal of a running transaction, durable writes.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import functools
import getpass
import hashlib
import json
import os
import zlib
from typing import Any, Callable, Dict

Data = Dict[str, Any]  # what JSON carries; `dict[...]` at run time is Python 3.9
Operation = Callable[[Data, Any], Data]
JOURNAL = ".opsctl-patch.json"
RECORD_KEYS = {"tx", "root", "outcome", "patches", "files"}
KINDS = {
    errno.ENOSPC: "no-space",
    errno.EDQUOT: "no-space",
    errno.EACCES: "not-permitted",
    errno.EPERM: "not-permitted",
    errno.EROFS: "not-permitted",
}


class Failure(Exception):
    """A named failure; ``kind`` is for machines."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


def state_dir(given: str | None = None) -> str:
    """Return the folder of records and backups: the host's for root, else the user's."""
    if given:
        return given
    if os.geteuid() == 0:
        return "/var/lib/opsctl/patches"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "opsctl", "patches")


def sha256_of(path: str) -> str | None:
    """Return the SHA-256 of a file's content in hex, None when there is no such file."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return None


def pack(content: bytes) -> str:
    """Return bytes as text for a JSON frame."""
    return base64.b64encode(zlib.compress(content, 6)).decode()


def unpack(text: str) -> bytes:
    """Return the bytes of ``pack``."""
    return zlib.decompress(base64.b64decode(text))


def who() -> str:
    """Return the name of the user that runs this, for records."""
    name = os.environ.get("SUDO_USER")
    if name:
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def read_journal(root: str) -> Data | None:
    """Return the journal of a transaction that runs or was cut, None when there is none."""
    try:
        with open(os.path.join(root, JOURNAL)) as file:
            journal = json.load(file)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        journal = None
    if not isinstance(journal, dict) or not isinstance(journal.get("files"), list):
        path = os.path.join(root, JOURNAL)
        text = (
            "%s is damaged, so what a change that was cut had done is not known: move it away, and"
            % path
        )
        text += " look at the patches' state, which is told by the files' content"
        raise Failure("journal-damaged", text)
    return journal


def has_torn_journal(root: str) -> bool:
    """Say whether a transaction was cut while it wrote its journal, before it changed anything."""
    return os.path.exists(os.path.join(root, JOURNAL + ".tmp"))


def sync_folder(path: str) -> None:
    """Make the entries of a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_durably(path: str, data: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def append_record(state: str, record: Data) -> None:
    """Append one line to the host's record, durably."""
    os.makedirs(state, mode=0o700, exist_ok=True)
    path = os.path.join(state, "log.jsonl")
    line = json.dumps(record, sort_keys=True).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(
            fd, fcntl.LOCK_EX
        )  # another package's line must not be what a full disk cuts off
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # the line before was cut by a kill
        if os.write(fd, line) != len(line):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, "no space left for the record")
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(state)


def read_records(state: str) -> list[Data]:
    """Return the lines of the host's record that are whole, oldest first."""
    try:
        with open(os.path.join(state, "log.jsonl"), encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and record.keys() >= RECORD_KEYS:
                records.append(record)
    return records


def origins(state: str, root: str) -> dict[str, Data]:
    """Return, per path that stands as opsctl wrote it last, what stood there before opsctl first wrote it.

    Entries: ``after`` (the hash that was written last), ``before`` (the origin's; None: no file), ``backup``.
    """
    found: dict[str, Data] = {}
    for record in read_records(state):
        if record.get("root") != root or record.get("outcome") != "done":
            continue
        for number, entry in enumerate(record["files"]):
            known = found.pop(entry["path"], None)
            if known is None or known["after"] != entry["before"]:
                backup = os.path.join(record["backups"], f"{number}.orig")
                known = {"before": entry["before"], "backup": backup}
            if entry["after"] != known["before"]:
                found[entry["path"]] = dict(known, after=entry["after"])
    return found


def read_origin(origin: Data) -> bytes | None:
    """Return the bytes of an origin, None for no file. Raises OSError when its backup is gone or damaged."""
    if origin["before"] is None:
        return None
    with open(origin["backup"], "rb") as file:
        content = file.read()
    if hashlib.sha256(content).hexdigest() != origin["before"]:
        raise OSError(errno.EIO, "the backup is damaged", origin["backup"])
    return content


def named(operation: Operation) -> Operation:
    """Turn failures, and what the file system says, into the agent's named errors."""

    @functools.wraps(operation)
    def call(request: Data, context: Any) -> Data:
        try:
            return operation(request, context)
        except Failure as failure:
            raise context.Error(failure.kind, failure.detail) from failure
        except OSError as error:
            where = error.filename or request.get("root") or "the host"
            text = f"{where}: {error.strerror or error}"
            raise context.Error(KINDS.get(error.errno or 0, "io"), text) from error

    return call
