"""`opsctl patch` end to end on this machine: real agent, real interpreter, a small installed package."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.cli import run
from tests.schemas import read_document
from tests.wire.patch_place import Place
from tests.wire.patch_site import FILES, install, sha, snapshot

pytestmark = pytest.mark.wire

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    made = Place(tmp_path)
    made.make_patch("one", b"return 1", b"return 10")
    made.make_patch("two", b"return 2", b"return 20")
    bad = {"status": "known-bad", "reason": "it answers 99"}
    made.make_patch("bad", b"other():", b"other(x=99):", **bad)
    made.make_patch("broken", b"return 2", b"return = 2")
    made.write_site("one", "two")
    capsys.readouterr()
    return made


@pytest.fixture
def opsctl(place: Place, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, dict[str, Any]]:
        site = ["--site", str(place.folder / "opsctl.yaml")]
        capsys.readouterr()  # what making patches has said
        code = run([*argv, *site, "--patches", str(place.library), "--json"])
        document: dict[str, Any] = read_document(capsys.readouterr().out)
        assert document["exit_code"] == code
        return code, document

    return call


def states(document: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["state"] for one in document["data"]["patches"]}


def test_a_series_is_applied_proven_and_taken_back(place: Place, opsctl: Run) -> None:
    """Status 20 before, 0 after; a second apply changes nothing; the revert restores every byte."""
    before = snapshot(place.root)

    first, _ = opsctl("patch", "status", "demo-server")
    applied, document = opsctl("patch", "apply", "demo-server", "--yes")
    between = snapshot(place.root)
    again, unchanged = opsctl("patch", "apply", "demo-server", "--yes")
    second, _ = opsctl("patch", "status", "demo-server")
    proven, _ = opsctl("patch", "verify", "demo-server")
    reverted, _ = opsctl("patch", "revert", "demo-server", "--yes")

    assert (first, applied, again, second, proven, reverted) == (20, 0, 0, 0, 0, 0)
    assert states(document) == {"one": "applied", "two": "applied"}
    assert document["data"]["transactions"][0]["proof"]["ok"]
    assert b"return 10" in between["core.py"][0]
    assert b"return 20" in between["core.py"][0]
    assert unchanged["outcome"] == "unchanged"
    assert snapshot(place.root) == before


def test_one_of_two_patches_of_a_file_is_taken_back(place: Place, opsctl: Run) -> None:
    """Reverting one patch leaves the other one standing in the same file."""
    opsctl("patch", "apply", "demo-server", "--yes")

    code, document = opsctl("patch", "revert", "demo-server", "one", "--yes")

    assert code == 0
    assert states(document) == {"one": "absent", "two": "applied"}
    assert (place.root / "core.py").read_bytes() == FILES["core.py"].replace(
        b"return 2", b"return 20"
    )


def test_a_dry_run_changes_nothing_and_names_every_file(place: Place, opsctl: Run) -> None:
    """The plan is exact: the same files that an apply then changes."""
    before = snapshot(place.root)

    code, document = opsctl("patch", "apply", "demo-server", "--dry-run")

    assert code == 0
    assert {c["path"] for c in document["data"]["changes"]} == {"core.py", "one.py", "two.py"}
    assert snapshot(place.root) == before


def test_without_yes_and_terminal_nothing_is_changed(place: Place, opsctl: Run) -> None:
    """No terminal and no --yes: exit 50."""
    before = snapshot(place.root)

    code, document = opsctl("patch", "apply", "demo-server")

    assert code == 50
    assert document["findings"][0]["code"] == "not-confirmed"
    assert snapshot(place.root) == before


def test_a_known_bad_patch_needs_the_explicit_word(place: Place, opsctl: Run) -> None:
    """Refused with its reason; with --allow-known-bad it goes in, to reproduce the failure."""
    refused, document = opsctl("patch", "apply", "demo-server", "bad", "--yes")
    allowed, _ = opsctl("patch", "apply", "demo-server", "bad", "--yes", "--allow-known-bad")

    assert (refused, allowed) == (50, 0)
    assert "it answers 99" in document["findings"][0]["text"]


def test_a_series_with_one_bad_member_changes_nothing(place: Place, opsctl: Run) -> None:
    """The second patch breaks the import: the first one is not left behind either."""
    before = snapshot(place.root)

    code, document = opsctl("patch", "apply", "demo-server", "one", "broken", "--yes")

    assert code == 20
    assert document["findings"][0]["code"] == "proof-failed"
    assert "SyntaxError" in document["findings"][0]["text"]
    assert snapshot(place.root) == before


def test_a_series_with_one_changed_file_changes_nothing(place: Place, opsctl: Run) -> None:
    """Somebody edited the file: conflict, exit 20, and the file is left as it is."""
    (place.root / "core.py").write_bytes(FILES["core.py"] + b"# edited by hand\n")
    before = snapshot(place.root)

    code, document = opsctl("patch", "apply", "demo-server", "--yes")
    status, seen = opsctl("patch", "status", "demo-server")

    assert (code, status) == (20, 20)
    assert document["findings"][0]["code"] == "patch-conflict"
    assert states(seen) == {"one": "conflict", "two": "conflict"}
    assert snapshot(place.root) == before


def test_an_upgrade_and_a_reinstallation_show_as_drift(place: Place, opsctl: Run) -> None:
    """`pip install -U` drops the edit without a word: status says so, and apply puts it back."""
    opsctl("patch", "apply", "demo-server", "--yes")
    install(place.root.parent)

    code, document = opsctl("patch", "status", "demo-server", "--all-files")
    again, _ = opsctl("patch", "apply", "demo-server", "--yes")

    assert code == 20
    assert states(document) == {"one": "drifted", "two": "drifted"}
    assert again == 0

    shutil.rmtree(place.root.parent / "demo-1.0.dist-info")
    install(place.root.parent, "1.1")
    code, document = opsctl("patch", "status", "demo-server")

    assert code == 20
    assert states(document) == {"one": "conflict", "two": "conflict"}
    assert "1.1 is installed" in document["data"]["patches"][0]["detail"]


def newer_form(place: Place, one: str, old: bytes, new: bytes) -> None:
    """Put another form of a patch into the library, as a newer opsctl has it."""
    shutil.rmtree(place.library / one)
    shutil.rmtree(place.folder / f"new-{one}")
    place.make_patch(one, old, new)
    added = place.library / one / f"{one}.py"
    added.write_bytes(added.read_bytes() + b"NEWER = True\n")
    file = place.library / one / "patch.yaml"
    data = yaml.safe_load(file.read_text())
    data["variants"][0]["added"][f"{one}.py"]["sha256"] = sha(added.read_bytes())
    file.write_text(yaml.safe_dump(data, sort_keys=False))


def test_an_earlier_form_of_a_patch_gives_way_to_the_present_one(place: Place, opsctl: Run) -> None:
    """opsctl was upgraded, and its patch with it: the host's record knows the old form, it is replaced."""
    before = snapshot(place.root)
    opsctl("patch", "apply", "demo-server", "--yes")
    newer_form(place, "one", b"return 1", b"return 11")

    status, seen = opsctl("patch", "status", "demo-server")
    _, shown = opsctl("patch", "diff", "demo-server")
    applied, document = opsctl("patch", "apply", "demo-server", "--yes")
    between = snapshot(place.root)
    reverted, _ = opsctl("patch", "revert", "demo-server", "--yes")

    assert (status, applied, reverted) == (20, 0, 0)
    assert states(seen)["one"] == "drifted"
    assert "an earlier form of it stands in core.py" in seen["data"]["patches"][0]["detail"]
    assert "-    return 10\n" in shown["data"]["diff"]
    assert states(document) == {"one": "applied", "two": "applied"}
    assert b"return 11" in between["core.py"][0]
    assert b"return 20" in between["core.py"][0]
    assert between["one.py"][0].endswith(b"NEWER = True\n")
    assert snapshot(place.root) == before


def test_an_earlier_form_of_a_patch_is_taken_away_as_a_whole(place: Place, opsctl: Run) -> None:
    """Also when only the present form is at hand: the package's own bytes come from the record's backups."""
    before = snapshot(place.root)
    opsctl("patch", "apply", "demo-server", "--yes")
    newer_form(place, "one", b"return 1", b"return 11")

    reverted, _ = opsctl("patch", "revert", "demo-server", "--yes")

    assert reverted == 0
    assert snapshot(place.root) == before


def test_pip_leaves_the_earlier_form_s_own_file_and_an_apply_replaces_it(
    place: Place, opsctl: Run
) -> None:
    """A reinstallation restores the package's files and knows nothing of ours: that is no dead end."""
    opsctl("patch", "apply", "demo-server", "--yes")
    newer_form(place, "one", b"return 1", b"return 11")
    install(place.root.parent)

    applied, document = opsctl("patch", "apply", "demo-server", "--yes")

    assert applied == 0
    assert states(document) == {"one": "applied", "two": "applied"}
    assert b"NEWER" in (place.root / "one.py").read_bytes()


def test_without_its_backup_an_earlier_form_is_a_conflict(place: Place, opsctl: Run) -> None:
    """Nothing is guessed: without the bytes that stood there before, the file is not ours to touch."""
    opsctl("patch", "apply", "demo-server", "--yes")
    newer_form(place, "one", b"return 1", b"return 11")
    for backup in (place.folder / "state").rglob("*.orig"):
        backup.write_bytes(b"damaged")
    before = snapshot(place.root)

    refused, document = opsctl("patch", "apply", "demo-server", "--yes")

    assert refused == 20
    assert "neither the pinned file nor a known patch" in document["findings"][-1]["text"]
    assert snapshot(place.root) == before


def test_the_record_of_a_host_tells_who_did_what(place: Place, opsctl: Run) -> None:
    """Apply, a failed apply, revert: three lines, oldest first."""
    opsctl("patch", "apply", "demo-server", "one", "--yes")
    opsctl("patch", "apply", "demo-server", "broken", "--yes")
    opsctl("patch", "revert", "demo-server", "one", "--yes")

    _, document = opsctl("patch", "log", "demo-server")

    lines = [(one["action"], one["outcome"], one["patches"]) for one in document["data"]["records"]]
    assert lines == [
        ("apply", "done", ["one"]),
        ("apply", "rolled-back", ["broken"]),
        ("revert", "done", ["one"]),
    ]


def test_a_foreign_patch_that_stands_there_is_shown(place: Place, opsctl: Run) -> None:
    """A known-bad patch left by an earlier night is not in the series, and is shown all the same."""
    opsctl("patch", "apply", "demo-server", "bad", "--yes", "--allow-known-bad")

    _, document = opsctl("patch", "status", "demo-server")

    assert states(document)["bad"] == "applied"


def test_diff_shows_the_change_without_making_it(place: Place, opsctl: Run) -> None:
    """The diff is of the host's own file."""
    before = snapshot(place.root)

    _, document = opsctl("patch", "diff", "demo-server", "one")

    assert "-    return 1\n+    return 10\n" in document["data"]["diff"]
    assert snapshot(place.root) == before


def test_a_damaged_library_stops_before_any_host_is_touched(place: Place, opsctl: Run) -> None:
    """Hashes and diffs are checked when the library is read: exit 10 with the file (case 116)."""
    (place.library / "one" / "one.py").write_text("NAME = 'altered'\n")

    code, document = opsctl("patch", "apply", "demo-server", "two", "--yes")

    assert code == 10
    assert "not the pinned one" in document["findings"][0]["text"]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (("==1.0", "1.0 or so"), "no version range"),
        (("core.py", "../core.py"), "leads out of the package"),
        (("id: one", "id: other"), "the folder one"),
        (("status: experimental", "status: known-bad"), "reason go together"),
        (("needs: []", "needs: [nothing]"), "which is no patch"),
        (("title:", "titel:"), "did you mean 'title'"),
    ],
)
def test_a_wrong_patch_file_names_the_mistake(
    place: Place, opsctl: Run, edit: tuple[str, str], says: str
) -> None:
    """Every mistake in patch.yaml is exit 10 with file and line."""
    file = place.library / "one" / "patch.yaml"
    file.write_text(file.read_text().replace(*edit))

    code, document = opsctl("patch", "list")

    assert code == 10
    assert says in document["findings"][0]["text"]
