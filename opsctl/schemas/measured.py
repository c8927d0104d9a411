"""Documents of what was measured and read: smoke, compare, diagnose, logs, speculation."""

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
    of_dataclass,
    of_type,
    one_of,
    record,
    say,
)


def bracket() -> Schema:
    """Where it breaks, in requests in flight."""
    return record({"last_good": maybe(WHOLE), "first_bad": WHOLE})


def seen() -> Schema:
    """A run that ended so before, and the last one of the same server that passed."""
    run: dict[str, Schema] = {
        "run": TEXT,
        "server": TEXT,
        "playbook": TEXT,
        "started_s": NUMBER,
        "patches": say(maybe(mapping(TEXT)), "Id to a short hash; null: not known."),
    }
    return record({**run, "passed": maybe(record(run))})


def diagnosis() -> Schema:
    """The verdict on a log; ``category`` null: nothing abnormal."""
    from opsctl.domain.crash.model import FirstRecord, Sizes

    return record(
        {
            "category": say(maybe(TEXT), "One of docs/diagnosis.md; null: healthy."),
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            "signature": say(maybe(TEXT), "The same for the same fault on another machine."),
            "first_record": maybe(TEXT),
            "sizes": maybe(of_dataclass(Sizes)),
            "explanation": TEXT,
            "next": listing(TEXT),
        },
        sometimes={
            "severity": one_of("healthy", "notice", "fault", "unknown"),
            "line": maybe(WHOLE),
            "rank": maybe(TEXT),
            "time": maybe(TEXT),
            "noticed_in": maybe(TEXT),
            "normalised": maybe(TEXT),
            "ranks": listing(of_dataclass(FirstRecord)),
            "also": listing(TEXT),
            "last_batch": maybe(TEXT),
            "basis": say(one_of("log", "outside"), "outside: no log was at hand."),
            "launch": say(mapping(), "Facts of the launch that the log told."),
            "seen": say(listing(seen()), "Runs of the ledger with this signature, newest first."),
        },
    )


def diagnose() -> Schema:
    data = diagnosis()
    data["properties"]["run"] = say(maybe(TEXT), "The run that kept this log; null: another log.")
    return data


def logs() -> Schema:
    data = record(
        {
            "path": TEXT,
            "state": say(TEXT, "Of the launch that wrote it."),
            "lines": listing(TEXT),
            "first_abnormal": say(maybe(WHOLE), "Number of the first abnormal line, from 1."),
            "diagnosis": maybe(diagnosis()),
        }
    )
    return {**data, "outcomes": ["done"]}


def smoke() -> Schema:
    """The measurement; a dry run has what would be sent instead, told by its key ``bisect``."""
    from opsctl.smoke.schema import DATA, LEVEL, SPREAD

    level = record({"concurrency": WHOLE, "requests": WHOLE})
    planned = record(
        {
            "url": TEXT,
            "api": TEXT,
            "profile": TEXT,
            "tokens": WHOLE,
            "levels": listing(level),
            "down": FLAG,
            "mixed": FLAG,
            "bisect": FLAG,
        }
    )
    return {
        "if": {"required": ["bisect"]},
        "then": planned,
        "else": DATA,
        "$defs": {"level": LEVEL, "spread": SPREAD},
    }


def compare() -> Schema:
    ratio = record({"ratio": NUMBER, "noise": NUMBER, "verdict": one_of("better", "worse", "same")})
    level = record(
        {
            "concurrency": WHOLE,
            "values": say(listing(maybe(NUMBER)), "One a side, in the order of labels."),
            "ratios": say(listing(maybe(ratio)), "Against the first side; more than 1 is good."),
            "outcomes": listing(maybe(TEXT)),
        }
    )
    crossing = record({"from": TEXT, "to": TEXT, "last": WHOLE, "first": WHOLE, "estimate": NUMBER})
    against = record({"label": TEXT, "verdict": TEXT, "crossings": listing(crossing)})
    return record(
        {
            "metric": TEXT,
            "labels": listing(TEXT),
            "levels": listing(level),
            "against_first": listing(against),
        }
    )


def speculation_explain() -> Schema:
    from opsctl.domain.speculation import Means

    data = record(
        {
            "server": TEXT,
            "version": maybe(TEXT),
            "disable_above": maybe(WHOLE),
            "margin": maybe(WHOLE),
            "means": of_type(Means),
            "reason": TEXT,
            "args": mapping(),
            "env": mapping(TEXT),
            "patches": listing(TEXT),
            "config": ANY,
        }
    )
    return {**data, "outcomes": [item.value for item in Means]}


def speculation_tune() -> Schema:
    """A proposal; a dry run has the server alone."""
    data = record(
        {"server": maybe(TEXT)},
        sometimes={
            "action": one_of("set", "keep-on", "switch-off", "unknown"),
            "disable_above": maybe(WHOLE),
            "reason": TEXT,
            "runs": mapping(listing(TEXT)),
            "comparison": compare(),
        },
    )
    return {**data, "outcomes": ["set", "keep-on", "switch-off", "unknown", "planned"]}
