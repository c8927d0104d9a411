"""Adding entries to a site file: everything that was there stays, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.errors import ConfigError, SafetyRefusal
from opsctl.site_edit import add_entry, flow, scalar, write_atomically
from opsctl.yaml_lines import parse_yaml

VALUES = {"host": "here", "port": 30000, "python": "/opt/p", "model": "/m", "args": {"tp": 8}}

TIDY = """\
# my site
hosts:
  here: {local: true}   # this one
  # a comment at the end of hosts

# the servers of the team
servers:
  one:
    host: here          # and why
    command: [/bin/true]

# defaults follow
defaults:
  log_dir: /var/log/x
"""


@pytest.mark.parametrize(
    "text",
    [
        TIDY,
        TIDY.replace("\n", "\r\n"),
        TIDY.rstrip("\n"),
        "hosts:\n  here: {local: true}\nservers:\n",
        "hosts:\n  here: {local: true}\nservers: {}   # none yet\n",
        "hosts:\n  here: {local: true}\nservers: null\ndefaults: {}\n",
        "servers:   # later\n\n# hosts below\nhosts:\n  here: {local: true}\n",
        "hosts: {here: {local: true}}\nservers: {a: {host: here, command: [/bin/true]}}\n",
        "hosts: {here: {local: true}}\nservers: {\n  a: {host: here, command: [/bin/true]},\n}\n",
        "hosts:\n    here: {local: true}\nservers:\n    a:\n        host: here\n        command: [/x]\n",
        "hosts:\n  here: {local: true}\n",
        "---\nhosts:\n  here: {local: true}\n\n\n",
        "",
        "# only a comment\n",
    ],
)
def test_an_entry_is_added_and_nothing_else_changes(text: str) -> None:
    """Every line that was there is there still, in its order; the data is the old data and the entry."""
    before = parse_yaml(text, "x").data or {}

    made = add_entry(text, "servers", "new", VALUES, ["adopted"])

    after = parse_yaml(made, "x").data
    assert after["servers"].pop("new") == VALUES
    assert after == {**before, "servers": before.get("servers") or {}}
    comments = [part for line in text.splitlines() for part in line.split("#")[1:]]
    assert [
        part for line in made.splitlines() for part in line.split("#")[1:] if part in comments
    ] == comments
    assert ("\r\n" in made) == ("\r\n" in text)


def test_an_entry_goes_to_the_end_of_its_section_before_the_comment_of_the_next() -> None:
    """`# defaults follow` still stands above `defaults`."""
    made = add_entry(TIDY, "servers", "new", VALUES)

    lines = made.splitlines()
    assert lines.index("  one:") < next(i for i, line in enumerate(lines) if "new:" in line)
    assert lines[lines.index("defaults:") - 1] == "# defaults follow"


@pytest.mark.parametrize(
    "text", ["{hosts: {here: {local: true}}}\n", "a: &x {b: 1}\nservers: *x\n"]
)
def test_a_file_that_cannot_be_extended_is_refused_with_the_entry(text: str) -> None:
    """What cannot be added without rewriting is handed to the person."""
    with pytest.raises(ConfigError) as caught:
        add_entry(text, "servers", "new", VALUES)

    assert "new" in (caught.value.next_step or "")


def test_a_taken_name_is_refused() -> None:
    """An entry is never replaced."""
    with pytest.raises(SafetyRefusal, match="there already"):
        add_entry(TIDY, "servers", "one", VALUES)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "true",
            "yes",
            "8",
            "0.90",
            "1e3",
            "",
            "a b",
            "a: b",
            "#x",
            "ja\tnein",
            "é",
            "{}",
            "~",
            "null",
        ),
        *("@x", "0x1f", "12:30:00", "2026-01-01", "=", "<<", '{"a": 1}', "\u2028", "-x"),
    ],
)
def test_text_stays_text(value: str) -> None:
    """A word that YAML would take for something else is quoted."""
    assert parse_yaml(f"a: {scalar(value)}\nb: {flow({'k': [value]})}\n", "x").data == {
        "a": value,
        "b": {"k": [value]},
    }


def test_a_file_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    """Another editor's work is never lost."""
    path = tmp_path / "opsctl.yaml"
    path.write_text("hosts: {}\n")

    with pytest.raises(SafetyRefusal, match="changed while"):
        write_atomically(path, "x", b"old")

    assert path.read_text() == "hosts: {}\n"
    assert os.listdir(tmp_path) == ["opsctl.yaml"]


def test_a_file_that_was_made_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """init never overwrites, also when somebody was faster."""
    path = tmp_path / "opsctl.yaml"
    path.write_text("mine\n")

    with pytest.raises(SafetyRefusal, match="never overwritten"):
        write_atomically(path, "x", None)

    assert path.read_text() == "mine\n"
    assert os.listdir(tmp_path) == ["opsctl.yaml"]


def test_rights_and_links_stay(tmp_path: Path) -> None:
    """A linked site file stays a link, and a private one private."""
    real = tmp_path / "real.yaml"
    real.write_text("a\n")
    real.chmod(0o600)
    link = tmp_path / "opsctl.yaml"
    link.symlink_to(real)

    write_atomically(link, "b\n", b"a\n")

    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("b\n", 0o600)
