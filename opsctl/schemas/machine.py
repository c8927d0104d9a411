"""Documents of machines: stop, kill, gpu, status."""

from __future__ import annotations

from opsctl.schemas.build import (
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    listing,
    maybe,
    of_dataclass,
    of_type,
    one_of,
    record,
    say,
)

BYTES = say(maybe(WHOLE), "Bytes; null: could not be read.")
CLASS = one_of("member", "foreign", "protected")
SERVER = say(maybe(TEXT), "Of a foreign one: the other server of the site that it is of.")


def holder() -> Schema:
    return record(
        {
            "pid": say(WHOLE, "On the GPU's host."),
            "class": maybe(TEXT),
            "used_bytes": BYTES,
            "what": TEXT,
            "server": SERVER,
        }
    )


def card() -> Schema:
    """One GPU with its verdict."""
    from opsctl.domain.gpu import MemoryState

    return record(
        {
            "uuid": TEXT,
            "index": maybe(WHOLE),
            "name": maybe(TEXT),
            "state": of_type(MemoryState),
            "used_bytes": BYTES,
            "reserved_bytes": BYTES,
            "total_bytes": BYTES,
            "baseline_bytes": say(maybe(WHOLE), "What it uses when idle; null: not learned."),
            "limit_bytes": say(maybe(WHOLE), "At most this much counts as free."),
            "holders": listing(holder()),
        },
        sometimes={
            "before_bytes": say(maybe(WHOLE), "Before the stop, or the wait."),
            "free_after_s": say(maybe(NUMBER), "Seconds after the begin until it was seen free."),
        },
    )


def one_or_two() -> dict[str, Schema]:
    """Whether processes and GPUs were looked at on one machine; of a server, not of a bare host."""
    return {
        "machine": say(maybe(TEXT), "One machine or two, and how that is known."),
        "one_machine": say(maybe(FLAG), "The same for programs; null where it could not be told."),
    }


def gpu_verify() -> Schema:
    data = record({"gpus": listing(card())}, sometimes=one_or_two())
    return {**data, "outcomes": ["free", "busy", "unknown"]}


def gpu_wait() -> Schema:
    data = record({"gpus": listing(card())}, sometimes={"waited_s": NUMBER, **one_or_two()})
    return {**data, "outcomes": ["free", "busy", "unknown"]}


def gpu_status() -> Schema:
    health = record({"code": TEXT, "subject": TEXT, "text": TEXT, "next": TEXT, "refuses": FLAG})
    data = record(
        {
            "gpus": listing(card()),
            "health": say(
                listing(health), "ECC, remapping, Xid, recovery; refuses: not launched on."
            ),
            "learned": say(listing(TEXT), "UUIDs whose idle baseline was recorded now."),
            "driver_version": maybe(TEXT),
        }
    )
    return {**data, "outcomes": ["free", "busy", "unknown"]}


def gpu_probe() -> Schema:
    from opsctl.domain.gpu_compute import Card

    copy = record({"from": TEXT, "to": TEXT, "error": maybe(TEXT)})
    data = record({"gpus": listing(of_dataclass(Card)), "copies": listing(copy)})
    return {**data, "outcomes": ["computes", "does-not-compute", "unknown"]}


def process() -> Schema:
    """One process of a stop."""
    from opsctl.domain.stop_plan import Outcome

    return record(
        {
            "pid": say(WHOLE, "Where its pid namespace is owned."),
            "ns_pid": say(maybe(WHOLE), "Inside its container."),
            "start_ticks": maybe(WHOLE),
            "class": CLASS,
            "reason": say(TEXT, "Why it is of this class."),
            "outcome": of_type(Outcome),
            "user": maybe(TEXT),
            "argv": say(maybe(listing(TEXT)), "With secrets masked."),
            "held_bytes": BYTES,
            "server": SERVER,
        }
    )


def leftover() -> Schema:
    """A leftover with what was decided about it."""
    from opsctl.facts import Leftover

    found = of_dataclass(Leftover)["properties"]
    return record({**found, "reason": TEXT, "removed": FLAG})


def stop() -> Schema:
    """A stop; a dry run has ``plan`` instead of the rest."""
    seconds = record(
        {
            "ending": say(maybe(NUMBER), "First signal to last exit."),
            "last_exit_at": say(maybe(NUMBER), "Seconds since the epoch, on the host's clock."),
            "proven_at": maybe(NUMBER),
            "proven_after_last_exit": maybe(NUMBER),
            "total": NUMBER,
        }
    )
    data = record(
        {"processes": listing(process())},
        sometimes={
            "gpus": listing(card()),
            "leftovers": listing(leftover()),
            "seconds": seconds,
            **one_or_two(),
            "plan": say(listing(TEXT), "Of a dry run: what would be done."),
        },
    )
    words = (
        "stopped",
        "already-stopped",
        "not-stopped",
        "port-held",
        "memory-busy",
        "memory-unknown",
    )
    return {**data, "outcomes": [*words, "planned"]}


def stop_step() -> Schema:
    """What the step ``stop`` of a playbook keeps."""
    return record(
        {"processes": listing(process())},
        sometimes={
            "summary": TEXT,
            "first_signal_s": maybe(NUMBER),
            "last_exit_s": maybe(NUMBER),
            "ending_s": maybe(NUMBER),
            **one_or_two(),
        },
    )


def gpu_step() -> Schema:
    """What the step ``gpu-memory`` of a playbook keeps."""
    return record(
        {"gpus": listing(card())},
        sometimes={
            "summary": TEXT,
            "proven_at": maybe(NUMBER),
            "proven_after_exit_s": maybe(NUMBER),
            "learned": say(listing(TEXT), "UUIDs whose idle baseline was recorded."),
        },
    )


def doctor() -> Schema:
    """Every precondition with its state."""
    state = one_of("ok", "warn", "bad", "unknown")
    check = record(
        {
            "name": say(TEXT, "Stable name of the check."),
            "state": say(state, "unknown: it could not be looked at."),
            "text": say(TEXT, "The reason, one sentence."),
            "subject": say(TEXT, "A host or a server."),
            "next": say(TEXT, "The mend; may be empty."),
        }
    )
    counts = record({"ok": WHOLE, "warn": WHOLE, "bad": WHOLE, "unknown": WHOLE})
    data = record({"checks": listing(check), "counts": counts})
    return {**data, "outcomes": ["ok", "warn", "bad", "unknown"]}


def status() -> Schema:
    from opsctl.facts import GpuReport, Host, Leftover, Package
    from opsctl.last_run import FailedRun
    from opsctl.status import ContainerView

    seen = record(
        {
            "pid": WHOLE,
            "ns_pid": maybe(WHOLE),
            "start_ticks": maybe(WHOLE),
            "class": CLASS,
            "role": maybe(TEXT),
            "held_bytes": BYTES,
            "reason": TEXT,
            "server": SERVER,
        }
    )
    held = record({"pid": WHOLE, "class": maybe(TEXT), "used_bytes": BYTES, "server": SERVER})
    gpu = record(
        {
            "uuid": TEXT,
            "index": maybe(WHOLE),
            "state": one_of("free", "busy", "unknown", "lost"),
            "used_bytes": BYTES,
            "total_bytes": BYTES,
            "holders": listing(held),
        }
    )
    server = record(
        {
            "name": TEXT,
            "host": TEXT,
            "port": WHOLE,
            "state": TEXT,
            "why": TEXT,
            **one_or_two(),
            "gpu_host": TEXT,
            "processes": listing(seen),
            "gpus": listing(gpu),
            "package": maybe(of_dataclass(Package)),
            "leftovers": listing(of_dataclass(Leftover)),
            "last_failed_run": say(
                maybe(of_dataclass(FailedRun)),
                "The newest run of a server that is down, if it failed; null too without a ledger.",
            ),
        }
    )
    host = record(
        {
            "name": TEXT,
            "way": say(TEXT, "How it is reached."),
            "error": maybe(TEXT),
            "host": maybe(of_dataclass(Host)),
            "gpus": maybe(of_dataclass(GpuReport)),
            "container": maybe(of_dataclass(ContainerView)),
        }
    )
    data = record({"hosts": listing(host), "servers": listing(server)})
    return {**data, "outcomes": ["ok", "incomplete"]}
