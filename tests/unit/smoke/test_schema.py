"""The published schema, and the documents that must fit it."""

from __future__ import annotations

import json

import jsonschema
import pytest
from click.testing import CliRunner

from opsctl.cli.smoke import smoke
from opsctl.domain.report import LevelReport, Outcome, delivered, spread
from opsctl.schemas import schema_of
from opsctl.sglang.endpoint import Endpoint
from opsctl.sglang.info import ServerInfo
from opsctl.smoke.report import smoke_document
from opsctl.smoke.result import Options, SmokeReport

SCHEMA = schema_of("smoke")


def report(outcome: Outcome) -> SmokeReport:
    made = SmokeReport(Options(Endpoint("127.0.0.1", 1)), ServerInfo("generate"), wanted=(1, 4))
    level = LevelReport(1, Outcome.PASSED, requests=3, ok=3, tokens=96, output_tok_s=100.0)
    level.ttft_ms = spread([1.0, 2.0, 3.0])
    level.in_flight = delivered([(0.0, 1.0)], 1)
    made.levels = [level, LevelReport(4, outcome, "why")]
    return made


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_kind_of_result_fits_the_schema(outcome: Outcome) -> None:
    """Passed, failed, crashed, hung and not measured are all documents of the promise."""
    body = json.loads(smoke_document(report(outcome), "run").to_json())

    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(body, SCHEMA)


def test_schema_refuses_another_outcome() -> None:
    """The schema is no rubber stamp."""
    body = json.loads(smoke_document(report(Outcome.PASSED), "run").to_json())
    body["data"]["levels"][0]["outcome"] = "fine"

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, SCHEMA)


def test_schema_is_printed_without_a_server() -> None:
    """`opsctl smoke --schema` needs nothing else."""
    done = CliRunner().invoke(smoke, ["--schema"])

    assert done.exit_code == 0
    assert json.loads(done.output)["title"] == "opsctl.smoke/1"
