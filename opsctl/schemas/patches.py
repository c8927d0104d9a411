"""Documents of patches."""

from __future__ import annotations

from opsctl.schemas.build import (
    ANY,
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    listing,
    mapping,
    maybe,
    of_type,
    one_of,
    record,
    say,
)

HASH = say(maybe(TEXT), "sha256; null: there is no such file.")


def patch_row() -> Schema:
    """A patch, as the files of the host tell it."""
    from opsctl.domain.patch import FileState, PatchState, PatchStatus

    file = record({"path": TEXT, "state": of_type(FileState), "detail": TEXT})
    return record(
        {
            "id": TEXT,
            "state": of_type(PatchState),
            "status": say(of_type(PatchStatus), "What its author says of it."),
            "detail": TEXT,
            "files": listing(file),
        }
    )


def package() -> Schema:
    return record(
        {
            "name": TEXT,
            "version": maybe(TEXT),
            "location": maybe(TEXT),
            "editable": maybe(FLAG),
            "others": say(listing(TEXT), "Further installations that were seen."),
            "record": say(ANY, "With --all-files: what the package's RECORD says."),
        }
    )


def status() -> Schema:
    data = record({"server": TEXT, "patches": listing(patch_row()), "packages": listing(package())})
    return {**data, "outcomes": ["as-asked", "not-as-asked"]}


def diff() -> Schema:
    change = record({"path": TEXT, "before": HASH, "after": HASH})
    return {**record({"changes": listing(change), "diff": TEXT}), "outcomes": ["shown"]}


def proof() -> Schema:
    """A proof in a fresh process."""
    return mapping(
        ANY, "What was imported and asked, in how many seconds, and whether it is right."
    )


def change() -> Schema:
    """apply, revert."""
    row = record({"root": TEXT, "path": TEXT, "before": HASH, "after": HASH})
    data = record(
        {
            "server": TEXT,
            "changes": listing(row),
            "transactions": listing(mapping()),
            "patches": listing(patch_row()),
            "packages": listing(package()),
        }
    )
    return {**data, "outcomes": ["applied", "reverted", "unchanged", "planned"]}


def verify() -> Schema:
    data = record({"server": TEXT, "patches": listing(patch_row()), "proofs": listing(proof())})
    return {**data, "outcomes": ["proven", "failed"]}


def log() -> Schema:
    row = record(
        {
            "at": NUMBER,
            "action": TEXT,
            "outcome": TEXT,
            "patches": listing(TEXT),
            "who": TEXT,
            "root": TEXT,
        }
    )
    return {
        **record({"records": listing({**row, "additionalProperties": True})}),
        "outcomes": ["shown"],
    }


def list_() -> Schema:
    from opsctl.domain.patch import PatchStatus

    row = record(
        {
            "id": TEXT,
            "title": TEXT,
            "status": of_type(PatchStatus),
            "reason": maybe(TEXT),
            "package": TEXT,
            "versions": listing(TEXT),
            "superseded": listing(record({"versions": TEXT, "by": TEXT})),
            "upstream": listing(TEXT),
        }
    )
    return {**record({"patches": listing(row)}), "outcomes": ["shown"]}


def check() -> Schema:
    return {**record({"patches": listing(TEXT)}), "outcomes": ["sound", "unsound"]}


def new() -> Schema:
    return {**record({"folder": TEXT, "variant": mapping()}), "outcomes": ["written", "variant"]}


def test() -> Schema:
    row = record(
        {
            "version": TEXT,
            "outcome": one_of("passed", "failed"),
            "files": WHOLE,
            "imports": TEXT,
            "problem": maybe(TEXT),
        }
    )
    return {**record({"results": listing(row)}), "outcomes": ["passed", "failed"]}
