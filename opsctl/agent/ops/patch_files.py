"""Put a set of files in place, all or none: journal, backup, replace, prove, commit, or back again.

The journal stands in the package's own folder while a transaction runs, so whoever looks next finds it, as
any user. The commit point is the line in the host's record: a transaction without it is undone by the next
look, one with it is finished. Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from typing import Any, Dict

from opsctl.agent.ops.patch_record import (
    JOURNAL,
    Failure,
    append_record,
    read_journal,
    read_records,
    sha256_of,
    sync_folder,
    write_durably,
)

Data = Dict[str, Any]  # what JSON carries; `dict[...]` at run time is Python 3.9


@contextlib.contextmanager
def lock(root: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the package's folder: a flock on the folder itself, which leaves nothing behind."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if time.monotonic() >= end:
                    raise Failure("locked", _owner_text(root)) from error
                time.sleep(0.05)
        yield
    finally:
        os.close(folder)


def _owner_text(root: str) -> str:
    journal = read_journal(root)
    if not journal:
        return f"another opsctl is changing {root}"
    since = time.strftime("%H:%M:%S", time.gmtime(journal["at"]))
    owner = f"{journal['who']} (pid {journal['pid']})"
    return f"{owner} is changing {root} since {since} UTC: {journal['action']}"


def names_of(target: str, transaction: str) -> tuple[str, str]:
    """Return the names beside a target: of its new content before the swap, of its old inode after."""
    folder, name = os.path.split(target)
    stem = os.path.join(folder, f".{name}.opsctl-{transaction}")
    return stem + ".new", stem + ".old"


def insist(root: str, files: list[Data]) -> None:
    """Raise unless every file is as it was planned: only then may a journal speak of them.

    A transaction is taken back by the journal's word of what stood there before it.
    """
    for entry in files:
        target = os.path.join(root, entry["path"])
        if sha256_of(target) != entry["before"]:
            raise Failure("changed-meanwhile", f"{target} changed while it was being patched")


def begin(root: str, journal: Data, contents: dict[str, bytes], state: str) -> None:
    """Write the journal, the backups, and the new files beside their targets; no target changes yet.

    ``journal["files"]`` entries hold path, before, after, link; ``contents`` the new bytes by path.
    """
    backups = os.path.join(state, journal["tx"])
    journal["backups"] = backups
    journal["made_folders"] = _missing_folders(root, journal["files"])
    write_durably(os.path.join(root, JOURNAL), json.dumps(journal).encode())
    os.makedirs(backups, mode=0o700, exist_ok=True)
    for number, entry in enumerate(journal["files"]):
        target = os.path.join(root, entry["path"])
        if entry["before"] is not None:
            _copy_durably(target, os.path.join(backups, f"{number}.orig"))
        if entry["after"] is not None:
            for folder in journal["made_folders"]:
                _make_like_parent(os.path.join(root, folder))
            _write_new(target, names_of(target, journal["tx"])[0], contents[entry["path"]], entry)
    write_durably(os.path.join(backups, "journal.json"), json.dumps(journal).encode())


def _missing_folders(root: str, files: list[Data]) -> list[str]:
    missing = []
    for entry in files:
        folder = os.path.dirname(entry["path"])
        chain: list[str] = []
        while folder and not os.path.isdir(os.path.join(root, folder)):
            chain.insert(0, folder)
            folder = os.path.dirname(folder)
        missing += [one for one in chain if one not in missing]
    return missing


def _make_like_parent(folder: str) -> None:
    if os.path.isdir(folder):
        return
    parent = os.stat(os.path.dirname(folder))
    os.mkdir(folder, stat.S_IMODE(parent.st_mode))
    os.chmod(folder, stat.S_IMODE(parent.st_mode))
    _give_to(folder, parent)


def _give_to(path: str, like: os.stat_result) -> None:
    now = os.lstat(path)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        os.chown(path, like.st_uid, like.st_gid, follow_symlinks=False)


def _copy_durably(source: str, target: str) -> None:
    with open(source, "rb") as file, open(target, "wb") as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _write_new(target: str, temporary: str, content: bytes, entry: Data) -> None:
    if entry.get("link"):
        os.symlink(entry["link"], temporary)
        return
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        like = os.stat(target) if entry["before"] is not None else None
        os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode) if like else 0o644)
        _give_to(temporary, like or os.stat(os.path.dirname(target)))
        os.fsync(file.fileno())
    if like:
        _copy_attributes(target, temporary)


def _copy_attributes(source: str, target: str) -> None:
    """Copy extended attributes (ACLs, labels); what the system will not copy, it sets by itself."""
    for name in os.listxattr(source):
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError:
            continue


def swap(root: str, journal: Data) -> None:
    """Put every new file in the place of its old one, each by one rename, if none has changed since."""
    for entry in journal["files"]:
        target = os.path.join(root, entry["path"])
        new, old = names_of(target, journal["tx"])
        insist(root, [entry])
        if entry["before"] is not None:
            _keep_inode(target, old)
        if entry["after"] is None:
            os.unlink(target)
        else:
            os.replace(new, target)
        sync_folder(os.path.dirname(target))
    drop_bytecode(root, journal["files"])


def _keep_inode(target: str, old: str) -> None:
    """Give the old file a second name, so that going back needs no space and brings the very inode back."""
    try:
        os.link(target, old, follow_symlinks=False)
    except OSError as error:
        # no hard links here, or not ours to link: the backup must do
        if error.errno == errno.EEXIST:
            raise


def drop_bytecode(root: str, files: list[Data]) -> None:
    """Remove compiled code of the files: same size and second, and Python would go on running the old one."""
    for entry in files:
        folder, name = os.path.split(os.path.join(root, entry["path"]))
        stem = os.path.splitext(name)[0]
        pattern = os.path.join(glob.escape(folder), "__pycache__", glob.escape(stem) + ".*.pyc")
        for compiled in glob.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(compiled)


def commit(root: str, journal: Data, state: str) -> None:
    """Write the record's line, which makes the change final, then take the leftovers away."""
    append_record(state, dict(journal, root=root, outcome="done"))
    finish(root, journal)


def finish(root: str, journal: Data) -> None:
    """Take away the second names and the journal of a transaction that is final."""
    for entry in journal["files"]:
        for name in names_of(os.path.join(root, entry["path"]), journal["tx"]):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    drop_bytecode(root, journal["files"])
    _remove_emptied_folders(root, journal)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(root, JOURNAL))
    sync_folder(root)


def _remove_emptied_folders(root: str, journal: Data) -> None:
    """Remove folders that hold nothing more than bytecode: those made for our files, now gone."""
    folders = set(journal.get("made_folders", ())) | set(journal.get("own_folders", ()))
    for folder in sorted(folders, key=len, reverse=True):
        path = os.path.join(root, folder)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(path, "__pycache__"))
        with contextlib.suppress(OSError):
            os.rmdir(path)


def roll_back(root: str, journal: Data) -> list[str]:
    """Bring every file back to its old content; return the paths that are neither old nor new."""
    foreign = []
    for number, entry in reversed(list(enumerate(journal["files"]))):
        target = os.path.join(root, entry["path"])
        _, old = names_of(target, journal["tx"])
        now = sha256_of(target)
        if now == entry["before"]:
            continue
        if now != entry["after"]:
            foreign.append(entry["path"])
            continue
        if entry["before"] is None:
            os.unlink(target)
        elif os.path.lexists(old):
            os.replace(old, target)
        else:
            _restore_backup(target, journal, number, entry)
        sync_folder(os.path.dirname(target))
    return foreign


def _restore_backup(target: str, journal: Data, number: int, entry: Data) -> None:
    backup = os.path.join(journal["backups"], f"{number}.orig")
    temporary, _ = names_of(target, journal["tx"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    with open(backup, "rb") as file:
        content = file.read()
    like = entry["like"]
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), like["mode"])
        if (like["uid"], like["gid"]) != (os.geteuid(), os.getegid()):
            os.chown(temporary, like["uid"], like["gid"])
        os.fsync(file.fileno())
    os.replace(temporary, target)


def recover(root: str, state: str) -> Data | None:
    """Finish or undo a transaction that was cut, under the lock; return what was done, if anything."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(root, JOURNAL + ".tmp"))
    journal = read_journal(root)
    if journal is None:
        return None
    own_state = os.path.dirname(journal["backups"])
    done = any(
        one["tx"] == journal["tx"] and one["outcome"] == "done" for one in read_records(own_state)
    )
    if done:
        finish(root, journal)
        return {
            "tx": journal["tx"],
            "action": journal["action"],
            "outcome": "finished",
            "foreign": [],
        }
    foreign = undo(root, journal, state)
    return {
        "tx": journal["tx"],
        "action": journal["action"],
        "outcome": "undone",
        "foreign": foreign,
    }


def undo(root: str, journal: Data, state: str) -> list[str]:
    """Take a transaction back as a whole, and note it if there is space to."""
    foreign = roll_back(root, journal)
    with contextlib.suppress(OSError):
        append_record(state, dict(journal, root=root, outcome="rolled-back", foreign=foreign))
    finish(root, journal)
    return foreign
