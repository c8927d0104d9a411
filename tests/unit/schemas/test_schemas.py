"""The published schemas: one for each command, sound, and closed enough to catch a mistake."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click
import jsonschema
import pytest

from opsctl.cli import COMMANDS, root, run
from opsctl.errors import CheckFailed, UsageError
from opsctl.output import Document, document_of_error
from opsctl.schemas import find, names, schema_of
from opsctl.schemas.build import of_dataclass, of_type
from tests import documents
from tests.schemas import check_document


def test_every_command_has_a_schema_and_no_schema_is_without_a_command() -> None:
    """Who adds a command adds its schema to opsctl/schemas."""
    found = set()
    for name in COMMANDS:
        command = documents.get(root, name)
        inner = list(command.commands) if isinstance(command, click.Group) else []
        found |= {f"{name} {one}" for one in inner} or {name}

    assert names() == sorted(Document(name, "").schema for name in found)


@pytest.mark.parametrize("name", names())
def test_each_schema_is_sound_and_takes_an_error(name: str) -> None:
    """It is a schema of draft 2020-12, plain JSON, and an error of that command fits it."""
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema
    command = name.removeprefix("opsctl.").removesuffix("/1")

    check_document(json.loads(document_of_error(command, CheckFailed("it is bad")).to_json()))


def test_a_document_with_a_wrong_or_an_unknown_key_is_seen() -> None:
    """The check of the tests is closed; the published schema is not."""
    good: dict[str, Any] = json.loads(
        Document("config check", "ok", data={"path": "x", "hosts": [], "servers": []}).to_json()
    )
    check_document(good)
    for data in (
        {"path": 1, "hosts": [], "servers": []},
        {"path": "x"},
        {**good["data"], "new": 1},
    ):
        with pytest.raises(AssertionError, match="config-check"):
            check_document({**good, "data": data})
    with pytest.raises(AssertionError, match="outcome"):
        check_document({**good, "outcome": "fine"})
    more = {**good, "data": {**good["data"], "new": 1}}
    jsonschema.validate(more, schema_of("config check"))


def test_a_name_is_found_as_people_write_it() -> None:
    """Command, command with a blank, document; a wrong one names the nearest."""
    assert {find("gpu verify"), find("gpu-verify/1"), find("opsctl.gpu-verify/1")} == {
        "opsctl.gpu-verify/1"
    }
    with pytest.raises(UsageError) as refused:
        find("restrat")
    assert refused.value.next_step == "did you mean 'restart'?"


def test_the_command_prints_a_schema_and_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    """`opsctl schema NAME` is the schema itself; without a name one name a line."""
    assert run(["schema", "gpu verify"]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of("gpu verify")
    assert run(["schema"]) == 0
    assert capsys.readouterr().out.split() == names()


def test_the_schema_of_a_dataclass_follows_its_types() -> None:
    """Optional is null, a tuple a list, a dataclass an object; an unknown type is a mistake."""

    @dataclass(frozen=True)
    class Inner:
        n: int | None

    made = of_dataclass(Inner)
    assert made["properties"]["n"]["type"] == ["integer", "null"]
    assert of_type(tuple[Inner, ...])["items"] == made
    assert of_type(dict[str, bool])["additionalProperties"] == {"type": "boolean"}
    with pytest.raises(TypeError):
        of_type(bytes)


@pytest.mark.parametrize("problem", ["", "it does not apply"])
def test_patch_test_prints_what_its_schema_says(
    problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its document, without the wheels that the trial itself fetches (tests/wire/test_patch_trial.py)."""
    from opsctl import patch_trial

    trial = patch_trial.Trial("0.5.9", files=3, imports="imported 2 modules", problem=problem)
    monkeypatch.setattr(patch_trial, "try_patch", lambda *given: trial)

    code = run(["patch", "test", "spec-disable-v2", "--version", "0.5.9", "--json"])
    document = json.loads(capsys.readouterr().out)

    assert code == document["exit_code"] == (20 if problem else 0)
    check_document(document)
