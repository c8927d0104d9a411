"""Argument lists from templates: no value can add an element, and nothing undefined passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.errors import ConfigError
from opsctl.templates import quote, render_list

UNIT = {
    "unit": "opsctl-s-r1.service",
    "server": "s",
    "run": "r1",
    "log": "/l",
    "nofile": 1,
    "cwd": "/",
    "user": None,
}


@settings(deadline=None)  # a loaded machine is no finding
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_quoted_value_is_one_yaml_string_again(value: str) -> None:
    """Quotes, newlines, colons, emoji, next-line characters: the element is the value."""
    assert yaml.safe_load(f"- {quote(value)}") == [value]


def test_sglang_argv_has_one_element_per_value() -> None:
    """A model path with blanks, quotes and a newline stays one element."""
    ugly = "a b\"c'd\n- --evil: $X"

    argv = render_list(
        "sglang", {"python": "/p", "model": ugly, "port": 1, "flags": ["--tp", "8"], "address": "x"}
    )

    assert argv == [
        "/p",
        "-m",
        "sglang.launch_server",
        "--model-path",
        ugly,
        "--port",
        "1",
        "--tp",
        "8",
    ]


def test_systemd_run_doubles_dollars_in_the_command_only() -> None:
    """systemd expands $NAME in a command line; doubled it is itself again."""
    argv = render_list("systemd-run", {**UNIT, "argv": ["/bin/x", "$HOME", "a$$b"]})

    assert argv[argv.index("--") + 1 :] == ["/bin/x", "$$HOME", "a$$$$b"]
    assert "--remain-after-exit" in argv
    assert "--service-type=exec" in argv
    assert not [item for item in argv if item.startswith("--property=User=")]


def test_systemd_run_names_the_user() -> None:
    """A server with a user runs as that user."""
    argv = render_list("systemd-run", {**UNIT, "user": "llm", "argv": ["/bin/x"]})

    assert "--property=User=llm" in argv


def test_a_value_that_was_not_given_is_an_error() -> None:
    """StrictUndefined: a typo in a template never becomes an empty argument."""
    with pytest.raises(ConfigError, match="'port' is undefined"):
        render_list("sglang", {"python": "/p", "model": "m", "flags": []})


@pytest.mark.parametrize("text", ["a: 1", "- [1]", "- 5", "- {"])
def test_a_template_that_gives_no_list_of_strings_is_refused(tmp_path: Path, text: str) -> None:
    """A number, a mapping, broken YAML: not an argv."""
    (tmp_path / "x.argv.yaml.j2").write_text(text)

    with pytest.raises(ConfigError, match="template x"):
        render_list("x", {}, tmp_path)
