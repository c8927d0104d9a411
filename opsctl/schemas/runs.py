"""Documents of runs: restart and every other playbook, history, show, resume, playbooks."""

from __future__ import annotations

from opsctl.schemas import machine, measured
from opsctl.schemas.build import (
    ANY,
    FLAG,
    NUMBER,
    TEXT,
    Schema,
    listing,
    mapping,
    maybe,
    of_dataclass,
    one_of,
    record,
    say,
)

ENDED = ("done", "failed", "refused", "interrupted", "cut")
SECONDS = say(NUMBER, "Seconds.")


def run_row() -> Schema:
    """One run, as lists show it."""
    from opsctl.domain.runs import RunRow

    return of_dataclass(RunRow)


def history() -> Schema:
    why = say(maybe(TEXT), "What stopped a run that did not end well: its step, and its words.")
    row = record({**run_row()["properties"], "why": why})
    return {
        **record({"runs": listing(row)}, sometimes={"html": say(TEXT, "File that was written.")}),
        "outcomes": ["done"],
    }


def resume() -> Schema:
    """Without a run: what is open. With one: the document of that run."""
    return {**record({"runs": listing(run_row())}), "outcomes": ["done"]}


def show() -> Schema:
    from opsctl.domain.runs import RunDetail

    return record(
        {
            "run": of_dataclass(RunDetail),
            "document": say(
                maybe({"type": "object"}), "What the run's command printed at its end."
            ),
        }
    )


def downtime() -> Schema:
    """The time without a server, in seconds."""
    parts = ("stop_s", "between_s", "start_s", "proof_s", "total_s", "overhead_s")
    return record(
        dict.fromkeys(parts, NUMBER), about="Seconds without a server, and whose they are."
    )


def playbook_run() -> Schema:
    """A playbook's run; a dry run has ``plan`` and no ``state``."""
    step = record(
        {
            "name": TEXT,
            "outcome": one_of(
                "done", "unchanged", "failed", "refused", "unknown", "skipped", "interrupted"
            ),
            "seconds": NUMBER,
        }
    )
    preview = record({"step": TEXT, "lines": listing(TEXT)})
    data = record(
        {"server": TEXT, "steps": listing(step)},
        sometimes={
            "state": say(TEXT, "In which state things are now, in one sentence."),
            "downtime": maybe(downtime()),
            "bracket": maybe(measured.bracket()),
            "diagnosis": maybe(measured.diagnosis()),
            "plan": say(listing(preview), "Of a dry run: what would be done."),
            "stop": say(step_data(machine.stop_step()), "What the step stop said."),
            "gpu verify": say(step_data(machine.gpu_step()), "What the step gpu-memory said."),
            "smoke": say(mapping(), "What the step smoke said: see opsctl.smoke/1."),
        },
    )
    return {**data, "outcomes": [*ENDED, "planned"]}


def step_data(schema: Schema) -> Schema:
    """A step's data is there whole, or is what an error left: ``{}`` or ``{"cut": true}``."""
    return {"if": {"anyOf": [{"maxProperties": 0}, {"required": ["cut"]}]}, "else": schema}


def playbook_list() -> Schema:
    books = listing(record({"name": TEXT, "about": TEXT}))
    return {**record({"playbooks": books, "steps": listing(TEXT)}), "outcomes": ["done"]}


def playbook_show() -> Schema:
    entry = record(
        {
            "step": TEXT,
            "with": mapping(),
            "when": maybe(TEXT),
            "always": FLAG,
            "retry": maybe(mapping()),
            "on_failure": one_of("fail", "continue"),
        }
    )
    value = record({"type": TEXT, "default": ANY, "about": TEXT})
    book = record({"name": TEXT, "about": TEXT, "inputs": mapping(value), "steps": listing(entry)})
    return {**record({"playbook": book}), "outcomes": ["done"]}


def playbook_check() -> Schema:
    return {**record({"checked": listing(TEXT)}), "outcomes": ["done"]}
