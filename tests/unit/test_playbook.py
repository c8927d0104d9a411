"""Playbooks are checked whole, with file and line, before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import ConfigError, UsageError
from opsctl.playbook import filled, holds, load

GOOD = """\
name: probe
about: look at a server
inputs:
  deep: {type: bool, default: false}
  reason: {type: str, default: ""}
steps:
  - step: lock
  - step: known-failure
    when: deep
    with: {again: $reason}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "probe.yaml"
    path.write_text(text)
    return path


def test_a_good_playbook_is_read(tmp_path: Path) -> None:
    """Steps in order, inputs with types and defaults."""
    playbook = load(write(tmp_path, GOOD))

    assert [item.step for item in playbook.steps] == ["lock", "known-failure"]
    assert playbook.values({}) == {"deep": False, "reason": ""}
    assert playbook.values({"deep": "yes"}) == {"deep": True, "reason": ""}


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("step: lock", "step: lockk", 7, "unknown step 'lockk'; did you mean 'lock'?"),
        ("    when: deep", "    wen: deep", 9, "unknown key 'steps.1.wen'"),
        ("when: deep", "when: depe", 9, "there is no input 'depe'; did you mean 'deep'?"),
        ("when: deep", "when: reason", 9, "input 'reason' is str, not bool"),
        ("again: $reason", "agian: x", 10, "no option 'agian'; did you mean 'again'?"),
        ("again: $reason", "again: $raeson", 10, "there is no input 'raeson'"),
        ("default: false", "default: 3", 4, "default 3 is no bool"),
        ("name: probe", "name: other", 1, "'other' is not the file's name"),
        ("about: look at a server\n", "", 1, "'about' is missing"),
    ],
)
def test_a_mistake_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    """Unknown steps, keys, inputs and options: file, line, and the nearest name."""
    path = write(tmp_path, GOOD.replace(old, new))

    with pytest.raises(ConfigError) as caught:
        load(path)

    assert f"{path}:{line}: " in caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("given", "words"),
    [({"dep": "1"}, "no input 'dep'"), ({"deep": "perhaps"}, "'perhaps' is no bool")],
)
def test_a_wrong_value_is_a_usage_error(tmp_path: Path, given: dict[str, str], words: str) -> None:
    """--set names an input and gives a value of its type."""
    playbook = load(write(tmp_path, GOOD))

    with pytest.raises(UsageError, match=words):
        playbook.values(given)


def test_an_input_without_a_default_must_be_given(tmp_path: Path) -> None:
    """Nothing is guessed."""
    playbook = load(write(tmp_path, GOOD.replace(', default: ""', "")))

    with pytest.raises(UsageError, match="needs a value for 'reason'"):
        playbook.values({})


def test_conditions_and_references() -> None:
    """`not NAME` turns a condition round; $NAME takes an input with its type."""
    assert holds(None, {})
    assert holds("deep", {"deep": True})
    assert not holds("not deep", {"deep": True})
    assert filled({"a": "$n", "b": "x"}, {"n": 3}) == {"a": 3, "b": "x"}
