"""The library that ships: every patch is sound, and says what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.domain.patch import PatchStatus
from opsctl.errors import ConfigError
from opsctl.patch_library import check_patch, load_library, load_patch

LIBRARY = load_library()


@pytest.mark.parametrize("one", sorted(LIBRARY))
def test_every_shipped_patch_is_sound(one: str) -> None:
    """Format, pinned hashes, diffs, references, code that compiles, something that proves it."""
    patch = LIBRARY[one]

    assert check_patch(patch) == []
    assert patch.why
    assert patch.symptom
    assert all(variant.proof.imports for variant in patch.variants)


def test_the_patches_of_the_incident_are_there_and_marked() -> None:
    """The one that works is recommended for both versions; the two failed attempts are known-bad."""
    good = LIBRARY["spec-disable-v2"]

    assert good.status is PatchStatus.RECOMMENDED
    assert good.variant("0.5.9")
    assert good.variant("0.5.12.post1")
    assert good.superseded_by("0.5.15")
    for one in ("spec-disable-v1", "spec-disable-v1-clear-spec-info"):
        assert LIBRARY[one].status is PatchStatus.KNOWN_BAD
        assert LIBRARY[one].reason


def test_patches_that_change_the_same_lines_exclude_each_other() -> None:
    """Two patches that bring the same flag can never be asked for together by accident."""
    bringers = [p for p in LIBRARY.values() if p.id.startswith("spec-disable")]

    for first in bringers:
        for second in bringers:
            assert first is second or second.id in first.conflicts


def test_hooks_in_upstream_files_stay_small() -> None:
    """Our code stands in files of our own: a variant changes at most a dozen lines of upstream's."""
    for patch in LIBRARY.values():
        for variant in patch.variants:
            added = sum(
                hunk.new.count(b"\n") - hunk.old.count(b"\n")
                for file in variant.files
                for hunk in file.hunks
            )
            assert added <= 14, (patch.id, variant.versions, added)


def test_an_altered_file_of_a_patch_is_noticed(tmp_path: Path) -> None:
    """A patch whose file was edited on this machine is refused before any host is looked at."""
    from opsctl.resources import folder

    place = tmp_path / "spec-disable-v2"
    place.mkdir()
    for file in (folder("patches") / "spec-disable-v2").iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    (place / "opsctl_spec_args.py").write_bytes(b"# edited\n")

    with pytest.raises(ConfigError, match="not the pinned one"):
        load_patch(place)
