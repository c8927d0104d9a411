"""The steps of a run that move a package from one series of patches to another."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.domain.hunks import make_diff, parse_diff
from opsctl.domain.patch import FilePatch, Patch, PatchStatus, Proof, Superseded, Variant, digest
from opsctl.errors import CheckFailed, SafetyRefusal
from opsctl.patch_trial import HereAgent
from opsctl.steps import swap
from opsctl.steps.patch import execute, execute_all, look, prove
from opsctl.steps.patch_plan import Look, PatchPlan, Target, plan_apply, plan_exactly, plan_revert
from opsctl.steps.swap import Swap, is_proven
from tests.wire.patch_site import FILES, install, snapshot

pytestmark = pytest.mark.wire
CORE = FILES["core.py"]


def make(one: str, old: bytes, new: bytes, status: str = "recommended", **more: Any) -> Patch:
    """Make a patch of core.py with one file of its own."""
    changed = CORE.replace(old, new)
    hunks = parse_diff(make_diff("core.py", CORE, changed))["core.py"]
    hook = FilePatch("core.py", digest(CORE), digest(changed), hunks)
    body = f"NAME = {one!r}\n".encode()
    own = FilePatch(f"{one}.py", None, digest(body), content=body)
    variant = Variant("==1.0", (hook, own), Proof(imports=("demo.core", f"demo.{one}")))
    return Patch(one, one, PatchStatus(status), "demo", "demo", (variant,), **more)


LIBRARY = {
    "good": make("good", b"return 1", b"return 10"),
    "bad": make("bad", b"return 1", b"return 99", "known-bad", reason="99", conflicts=("good",)),
    "broken": make("broken", b"return 2", b"return = 2"),
    "top": make("top", b"return 2", b"return 20", needs=("good",)),
    "modern": make("modern", b"return 2", b"return 30", needs=("fix",)),
    "fix": replace(
        make("fix", b"return 1", b"return 11"),
        variants=(Variant("<1.0", ()),),
        superseded=(Superseded(">=1.0", "the fix itself"),),
    ),
}


@dataclass
class Place:
    """An installed package, and the agent beside it."""

    root: Path
    agent: HereAgent

    def look(self) -> Look:
        target = Target(sys.executable, "/", {"PYTHONPATH": str(self.root.parent)})
        return look(self.agent, target, LIBRARY, ("demo", "demo"))

    def bring_to(self, *wanted: str, **more: Any) -> PatchPlan:
        plan = plan_exactly(self.look(), LIBRARY, wanted, **more)
        execute(self.agent, plan)
        return plan


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(install(tmp_path / "site"), HereAgent(tmp_path / "state"))


def test_a_known_bad_patch_gives_way_to_the_good_one_in_one_transaction(place: Place) -> None:
    """The incident's way out: both touch the same line, and there is no moment without either."""
    place.bring_to("bad", allow_known_bad=True)

    plan = place.bring_to("good")

    assert plan.summary() == "apply good and revert bad"
    assert place.look().applied == ("good",)
    assert not (place.root / "bad.py").exists()


def test_a_known_bad_patch_in_place_needs_the_explicit_word_each_time(place: Place) -> None:
    """No file changes, and all the same a launch would run it: refused, with the good one named."""
    place.bring_to("bad", allow_known_bad=True)

    with pytest.raises(SafetyRefusal, match="bad is known to be bad and in place: 99") as refused:
        place.bring_to("bad")

    step = refused.value.next_step or ""
    assert "write good in its place" in step
    assert "--allow-known-bad" in step
    assert not place.bring_to("bad", allow_known_bad=True).changes


def test_a_launch_that_leaves_the_patches_alone_refuses_a_known_bad_one_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--no-patch` is no way round the word that it needs."""
    place.bring_to("bad", allow_known_bad=True)
    monkeypatch.setattr(swap, "load_library", lambda folder: LIBRARY)
    monkeypatch.setattr(swap, "target_of", lambda server, name: None)
    monkeypatch.setattr(swap, "look", lambda *_: place.look())
    session = SimpleNamespace(agent=place.agent)
    common = {"server": SimpleNamespace(python="p"), "server_name": "s", "session": session}
    ctx: Any = SimpleNamespace(**common, patch_folder=None, values={})

    with pytest.raises(SafetyRefusal, match="bad is known to be bad and in place"):
        swap.standing_contents(ctx)

    ctx.values = {"allow_known_bad": True}
    assert list(swap.standing_contents(ctx)) == ["bad"]


def test_the_way_back_of_a_mixed_transaction_is_exact(place: Place) -> None:
    """Undoing an apply that also took a patch away brings that patch back."""
    place.bring_to("bad", allow_known_bad=True)
    before = snapshot(place.root)
    plan = place.bring_to("good")

    execute(place.agent, plan.reversed())

    assert snapshot(place.root) == before
    assert place.look().raw["records"]["good"]["action"] == "revert"


def test_an_empty_series_restores_the_package(place: Place) -> None:
    """A site that wants no patches gets the distributor's bytes."""
    before = snapshot(place.root)
    place.bring_to("good", "top")

    plan = place.bring_to()

    assert plan.action == "revert"
    assert snapshot(place.root) == before


def test_what_a_patch_needs_comes_and_stays(place: Place) -> None:
    """Needs come along, and cannot be pulled away from under a patch that stands."""
    place.bring_to("top")
    seen = place.look()

    with pytest.raises(SafetyRefusal, match="top needs good"):
        plan_revert(seen, ["good"])
    assert set(seen.applied) == {"good", "top"}


def test_a_need_that_the_version_has_by_itself_is_met(place: Place) -> None:
    """A patch for old and new versions may need a fix that only the old ones lack."""
    place.bring_to("modern")

    assert place.look().applied == ("modern",)
    with pytest.raises(CheckFailed, match="fix is not needed"):
        plan_apply(place.look(), LIBRARY, ["fix"])


def test_an_excluded_patch_names_what_is_in_the_way(place: Place) -> None:
    """Adding a patch beside its opposite is refused, with the one to revert."""
    place.bring_to("good")

    with pytest.raises(SafetyRefusal, match="exclude each other") as refused:
        plan_apply(place.look(), LIBRARY, ["bad"], allow_known_bad=True)
    assert "good stands there" in (refused.value.next_step or "")


def test_a_staged_proof_fails_before_anything_is_stopped(place: Place) -> None:
    """A patch that breaks the import is found on a shadow; the package is not touched."""
    before = snapshot(place.root)
    seen = place.look()

    good = prove(place.agent, plan_exactly(seen, LIBRARY, ["good"]), staged=True)
    bad = prove(place.agent, plan_exactly(seen, LIBRARY, ["broken"]), staged=True)

    assert good["ok"]
    assert not bad["ok"]
    assert "SyntaxError" in bad["detail"]
    assert snapshot(place.root) == before


def test_a_second_package_that_fails_takes_the_first_one_back(tmp_path: Path) -> None:
    """A series over two packages is all or none as well."""
    first = Place(install(tmp_path / "one"), HereAgent(tmp_path / "state"))
    second = Place(install(tmp_path / "two"), first.agent)
    before = snapshot(first.root), snapshot(second.root)
    plans = [
        plan_exactly(first.look(), LIBRARY, ["good"]),
        plan_exactly(second.look(), LIBRARY, ["broken"]),
    ]

    with pytest.raises(CheckFailed, match="SyntaxError"):
        execute_all(first.agent, plans)

    assert (snapshot(first.root), snapshot(second.root)) == before


def test_a_missing_package_is_said_with_where_it_is_instead(tmp_path: Path) -> None:
    """The launch interpreter imports nothing of that name: exit 20, before any file is looked at."""
    place = Place(install(tmp_path / "site"), HereAgent(tmp_path / "state"))
    target = Target(sys.executable, "/", {})

    with pytest.raises(CheckFailed) as failed:
        look(place.agent, target, LIBRARY, ("demo", "demo"))

    assert failed.value.code == "package-missing"


def test_only_what_the_stage_proved_is_swapped_in_without_a_second_proof(place: Place) -> None:
    """The import takes half a minute of downtime; any other content, or a failed proof, is proven again."""
    plan = plan_exactly(place.look(), LIBRARY, ("good",))
    swap = Swap(LIBRARY, plan.look, (plan,), ("good",))
    staged = {
        "contents": swap.contents(),
        "transactions": [plan.lines()],
        "proofs": [{"ok": True, "detail": ""}],
    }

    assert is_proven(swap, staged)

    assert not is_proven(swap, {**staged, "proofs": []})
    assert not is_proven(swap, {**staged, "proofs": [{"ok": False, "detail": "x"}]})
    assert not is_proven(swap, {**staged, "contents": {"good": "other"}})
    assert not is_proven(swap, {**staged, "transactions": []})
