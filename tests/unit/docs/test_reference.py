"""Pages and schemas that are generated from the code are those of the code."""

from __future__ import annotations

from docs.generate import reference
from docs.generate.models import models_of
from opsctl.site import Site
from opsctl.steps import STEPS


def test_generated_files_are_current() -> None:
    """Whoever changes a command, a model, a step or a schema runs `python -m docs.generate.reference`."""
    stale = [path for path, text in reference.generated() if not reference._is_current(path, text)]
    unwanted = list(reference._unwanted({path for path, _ in reference.generated()}))

    assert not stale + unwanted, "run: python -m docs.generate.reference"


def test_each_key_and_each_step_is_in_the_reference() -> None:
    """The generator leaves nothing out."""
    text = reference.configuration()

    for model, _ in models_of(Site):
        for name, field in model.model_fields.items():
            assert f"| `{field.alias or name}` |" in text
    for name in STEPS:
        assert f"| `{name}` |" in reference.playbooks()
