"""Documents of the site file and of the schemas themselves."""

from __future__ import annotations

from opsctl.schemas.build import TEXT, WHOLE, Schema, listing, mapping, maybe, record, say


def config_check() -> Schema:
    data = record({"path": TEXT, "hosts": listing(TEXT), "servers": listing(TEXT)})
    return {**data, "outcomes": ["ok", "bad"]}


def config_show() -> Schema:
    site = mapping(description="As `opsctl config schema` describes it, with defaults filled in.")
    return {**record({"path": TEXT, "site": site}), "outcomes": ["ok"]}


def config_example() -> Schema:
    return {**record({"text": say(TEXT, "The file, with comments.")}), "outcomes": ["shown"]}


def config_schema() -> Schema:
    schema = mapping(description="The JSON Schema of the site file.")
    return {**record({"schema": schema}), "outcomes": ["shown"]}


def completion() -> Schema:
    data = record({"shell": TEXT, "script": say(TEXT, "What the shell is to read.")})
    return {**data, "outcomes": ["shown"]}


def schema_list() -> Schema:
    schema = mapping(description="The JSON Schema that was asked for.")
    names = say(listing(TEXT), "The document that was asked for, or all.")
    return {**record({"names": names, "schema": maybe(schema)}), "outcomes": ["shown"]}


EVIDENCE = say(listing(TEXT), "What proves that it is a server, in sentences.")


def adopt() -> Schema:
    """A running server that became an entry of the site file."""
    data = record(
        {
            "site": TEXT,
            "name": TEXT,
            "pid": WHOLE,
            "ns_pid": maybe(WHOLE),
            "evidence": EVIDENCE,
            "hosts": mapping(description="Host entries that were added with it."),
            "entry": mapping(description="The server's entry, secrets as references."),
        }
    )
    return {**data, "outcomes": ["planned", "adopted", "already-adopted"]}


def init() -> Schema:
    """A new site file."""
    container = record({"vmid": WHOLE, "name": maybe(TEXT), "status": maybe(TEXT)})
    host = record(
        {
            "name": TEXT,
            "hostname": TEXT,
            "gpus": say(listing(TEXT), "UUIDs."),
            "driver": maybe(TEXT),
            "containers": say(maybe(listing(container)), "null: not a Proxmox node."),
        }
    )
    server = record(
        {
            "name": TEXT,
            "host": TEXT,
            "pid": WHOLE,
            "ns_pid": maybe(WHOLE),
            "evidence": EVIDENCE,
        }
    )
    data = record(
        {
            "site": TEXT,
            "text": say(TEXT, "The file."),
            "hosts": listing(host),
            "servers": listing(server),
        }
    )
    return {**data, "outcomes": ["planned", "written"]}
