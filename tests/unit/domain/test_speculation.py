"""What fulfils `speculation.disable_above`: per version and set-up, or a refusal with a way out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opsctl.domain.speculation import (
    FLAG,
    Means,
    Resolution,
    resolve,
    unused_old_worker_patch,
    without_a_wish,
)
from opsctl.patch_library import load_library

EAGLE3 = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 7}


def asked(
    version: str,
    args: dict[str, Any] | None = None,
    *,
    env: dict[str, str] | None = None,
    above: int | None = 5,
    margin: int = 1,
    patch_fits: bool = True,
) -> Resolution:
    return resolve(
        version, args if args is not None else EAGLE3, env or {}, above, margin, patch_fits
    )


def test_from_0_5_14_a_flag_with_a_file_does_it() -> None:
    """Upstream's switch: the static steps up to N, none from N + 1."""
    found = asked("0.5.15")

    assert found.means is Means.FLAG
    assert json.loads(found.config or "") == {
        "1": {"candidate_steps": [7]},
        "6": {"candidate_steps": [0]},
    }
    assert found.args["speculative-adaptive"] is True


def test_before_it_the_patch_does_it_and_selects_the_overlap_worker() -> None:
    """0.5.9 runs the old worker by default: the environment picks the one that can be patched."""
    old, later = asked("0.5.9"), asked("0.5.12.post1")

    assert old.patches == later.patches == ("spec-disable-v2",)
    assert old.env == {"SGLANG_ENABLE_SPEC_V2": "1"}
    assert later.env == {}
    assert old.args["speculative-disable-batch-threshold"] == 5


def test_the_margin_is_handed_on() -> None:
    """Off above N + margin, on again at N: both numbers reach the launch."""
    found = asked("0.5.9", above=5, margin=3)

    assert found.args == {
        "speculative-disable-batch-threshold": 5,
        "speculative-disable-batch-margin": 3,
    }


@pytest.mark.parametrize(
    ("version", "args", "env", "says"),
    [
        ("0.5.9", {**EAGLE3, "speculative-eagle-topk": 4}, {}, "topk"),
        ("0.5.15", {**EAGLE3, "enable-dp-attention": True}, {}, "DP attention"),
        ("0.5.9", {**EAGLE3, "enable-multi-layer-eagle": True}, {}, "multi-layer"),
        ("0.5.15", {**EAGLE3, "speculative-adaptive": True}, {}, "on already"),
        ("0.5.12.post1", {**EAGLE3, "speculative-adaptive": True}, {}, "number of steps"),
        ("0.5.9", {"speculative-algorithm": "NGRAM"}, {}, "NGRAM"),
        ("0.5.12.post1", EAGLE3, {"SGLANG_ENABLE_SPEC_V2": "0"}, "old worker"),
        ("0.5.12.post1", {**EAGLE3, "disable-overlap-schedule": True}, {}, "old worker"),
    ],
)
def test_set_ups_that_nothing_can_turn_off_are_refused_with_a_way_out(
    version: str, args: dict[str, Any], env: dict[str, str], says: str
) -> None:
    """A refusal says why and what to change; it is never silently static."""
    found = asked(version, args, env=env)

    assert found.means is Means.REFUSED
    assert says in found.reason
    assert found.way_out


def test_a_version_without_flag_and_without_patch_is_refused() -> None:
    """0.5.13 has neither: said, not tried."""
    assert asked("0.5.13", patch_fits=False).means is Means.REFUSED


def test_without_a_wish_or_without_drafting_nothing_is_done() -> None:
    """No wish, or a server that does not speculate: no argument is added."""
    assert asked("0.5.9", above=None).means is Means.NOTHING
    assert asked("0.5.9", {}).means is Means.NOTHING


V1 = {**EAGLE3, FLAG: 5}


@pytest.mark.parametrize(
    ("version", "args", "env", "says"),
    [
        ("0.5.9", V1, {"SGLANG_ENABLE_SPEC_V2": "1"}, "runs the overlap worker"),
        ("0.5.9", V1, {"SGLANG_ENABLE_SPEC_V2": "TRUE"}, "runs the overlap worker"),
        # 0.5.9 takes --disable-overlap-schedule back where the environment selects the overlap worker
        (
            "0.5.9",
            {**V1, "disable-overlap-schedule": True},
            {"SGLANG_ENABLE_SPEC_V2": "1"},
            "runs the overlap worker",
        ),
        ("0.5.12.post1", V1, {}, "runs the overlap worker"),
        ("0.5.12.post1", V1, {"SGLANG_ENABLE_SPEC_V2": "yes"}, "runs the overlap worker"),
        ("0.5.12.post1", EAGLE3, {"SGLANG_ENABLE_SPEC_V2": "0"}, "it does nothing"),
        ("0.5.12.post1", {FLAG: 5}, {"SGLANG_ENABLE_SPEC_V2": "0"}, "NONE"),
        (
            "0.5.12.post1",
            {**V1, "enable-multi-layer-eagle": True},
            {"SGLANG_ENABLE_SPEC_V2": "0"},
            "EAGLEWorker, which does not run",
        ),
    ],
)
def test_a_patch_of_the_old_worker_that_would_not_be_in_play_is_named(
    version: str, args: dict[str, Any], env: dict[str, str], says: str
) -> None:
    """A server that runs another worker passes every level, and says nothing about the patch (case 118)."""
    found = unused_old_worker_patch(version, args, env)

    assert found is not None
    assert says in found[0]
    assert found[1]


@pytest.mark.parametrize(
    ("version", "args", "env"),
    [
        ("0.5.9", V1, {}),
        ("0.5.9", V1, {"SGLANG_ENABLE_SPEC_V2": "0"}),
        ("0.5.12.post1", V1, {"SGLANG_ENABLE_SPEC_V2": "false"}),
        ("0.5.12.post1", {**V1, "disable-overlap-schedule": True}, {}),
        ("0.5.12.post1", {**V1, "speculative-eagle-topk": 4}, {}),
    ],
)
def test_a_patch_of_the_old_worker_goes_where_that_worker_runs(
    version: str, args: dict[str, Any], env: dict[str, str]
) -> None:
    """These are the ways to run EAGLEWorker, as the two versions read them."""
    assert unused_old_worker_patch(version, args, env) is None


def test_a_patch_of_this_kind_without_a_wish_is_told_with_what_to_set_instead() -> None:
    """The known-bad one by name and fault; the recommended one and the number in its stead."""
    library = load_library()
    args = {"speculative-algorithm": "EAGLE", "speculative-disable-batch-threshold": 2}

    said = without_a_wish(library, ["spec-disable-v1"], [], "0.5.12.post1", args)

    assert said is not None
    text, step = said
    assert "spec-disable-v1 is in place and known to be bad: above the threshold" in text
    assert "`speculation: {disable_above: 2}`" in step
    assert "`patches: [spec-disable-v2]` instead of spec-disable-v1" in step
    listed = without_a_wish(library, [], ["spec-disable-v1"], "0.5.12.post1", {})
    assert listed is not None
    assert "not yet in place" in listed[0]
    assert without_a_wish(library, ["sm120-allreduce-fusion"], [], "0.5.12.post1", args) is None
