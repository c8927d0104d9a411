"""The library that ships: every patch is sound, and says what it is for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("one", "last", "first"),
    [
        ("spec-disable-v2", "0.5.13", "0.5.14"),
        ("spec-disable-v1", "0.5.12.post1", "0.5.13"),
        ("spec-disable-v1-clear-spec-info", "0.5.12.post1", "0.5.13"),
        ("spec-v2-logprobs", "0.5.9", "0.5.10"),
    ],
)
def test_a_superseded_patch_ends_just_where_upstream_begins(
    one: str, last: str, first: str
) -> None:
    """The bounds of the ranges that need it no more, as read in the wheels."""
    assert LIBRARY[one].superseded_by(last) is None
    assert LIBRARY[one].superseded_by(first)


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


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a folder with copies of two shipped patches."""
    from opsctl.resources import folder

    for one in ("spec-v2-logprobs", "sm120-allreduce-fusion"):
        shutil.copytree(folder("patches") / one, tmp_path / "patches" / one)
    return tmp_path / "patches"


def the_copies(cache: Path) -> list[Path]:
    return sorted((cache / "opsctl" / "patches").iterdir())


def test_a_library_that_was_checked_needs_no_pydantic_and_is_the_same(library: Path) -> None:
    """The second command of a night starts a tenth of a second sooner, with the very same patches."""
    code = (
        "import sys; from pathlib import Path; from opsctl.patch_library import load_library; "
        f"patches = load_library(Path({str(library)!r})); "
        "print(sorted({'pydantic', 'yaml'} & set(sys.modules)), hash(repr(patches)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=environment,
        ).stdout.split("] ")
        for _ in range(2)
    )

    assert first[0] == "['pydantic', 'yaml'"
    assert second[0] == "["
    assert first[1] == second[1]
    assert load_library(library) == load_library(library, anew=True)


def test_an_edited_patch_file_is_checked_again(library: Path) -> None:
    """One byte more, and the copy is of another file: the mistake is told with its line."""
    load_library(library)
    file = library / "spec-v2-logprobs" / "patch.yaml"
    file.write_text(file.read_text().replace("symptom:", "symptoms:"))

    with pytest.raises(ConfigError, match=r"patch\.yaml:\d+: unknown key .*'symptom'"):
        load_library(library)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("opsctl_spec_logprobs.py", r"patch\.yaml:\d+: .* not the pinned one"),
        ("0.5.9.diff", r"0\.5\.9\.diff: "),
    ],
)
def test_what_a_checked_patch_pins_is_compared_every_time(
    library: Path, name: str, says: str
) -> None:
    """The copy holds patch.yaml alone: an edited file beside it is noticed as if there were no copy."""
    load_library(library)
    file = library / "spec-v2-logprobs" / name
    file.write_bytes(file.read_bytes()[:-40])

    with pytest.raises(ConfigError, match=says):
        load_library(library)


def test_a_file_that_is_gone_is_told_with_its_line(library: Path) -> None:
    """Also where patch.yaml itself has been checked before."""
    load_library(library)
    (library / "spec-v2-logprobs" / "0.5.9.diff").unlink()

    with pytest.raises(ConfigError, match=r"patch\.yaml:\d+: 0\.5\.9\.diff: No such file"):
        load_library(library)


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b'{"spec-v2-logprobs": {}}', b'{"x": 1}'])
def test_a_damaged_copy_of_a_library_is_made_anew(
    library: Path, own_cache: Path, content: bytes
) -> None:
    """A full disk, a crash in the middle: the patches are checked as if there were no copy."""
    wanted = load_library(library)
    for copy in the_copies(own_cache):
        copy.write_bytes(content)

    assert load_library(library) == wanted
    assert all(copy.read_bytes() != content for copy in the_copies(own_cache))


def test_a_copy_that_others_can_write_decides_nothing(library: Path, own_cache: Path) -> None:
    """It says what goes into a package on the hosts."""
    load_library(library)
    for copy in the_copies(own_cache):
        text = copy.read_text().replace("spec_logprobs is", "x").replace("log prob", "LOG PROB")
        copy.write_text(text)
        copy.chmod(0o622)

    assert "log prob" in load_library(library)["spec-v2-logprobs"].title


def test_a_patch_that_is_not_sound_is_never_kept(library: Path, own_cache: Path) -> None:
    """Each command checks it again, and says what is wrong."""
    (library / "spec-v2-logprobs" / "opsctl_spec_logprobs.py").write_bytes(b"# edited\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="not the pinned one"):
            load_library(library)

    assert not (own_cache / "opsctl" / "patches").exists()
