"""How ``speculation.disable_above: N`` is fulfilled: by nothing, a flag with a file, a patch, or not at all.

What upstream offers was read in the wheels 0.5.8 to 0.5.23; the patch's range comes from its own folder.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from packaging.version import Version

from opsctl.domain.patch import Patch, PatchStatus
from opsctl.domain.patch_way_out import better_than
from opsctl.records import dataclass

PATCH = "spec-disable-v2"
OLD_WORKER_PATCHES = ("spec-disable-v1", "spec-disable-v1-clear-spec-info")  # of EAGLEWorker
FLAG = "speculative-disable-batch-threshold"
SPEC_V2 = "SGLANG_ENABLE_SPEC_V2"  # environment: whether the overlap worker runs
MARGIN_FLAG = "speculative-disable-batch-margin"
ADAPTIVE_SINCE = Version("0.5.14")  # the first that takes step 0 by batch size
OVERLAP_SINCE = Version("0.5.11")  # the first that runs the overlap worker unless told otherwise
_EAGLE = ("EAGLE", "EAGLE3", "NEXTN")


class Means(StrEnum):
    """By what the wish is fulfilled."""

    NOTHING = "nothing"  # no speculation, or no wish
    FLAG = "flag"
    PATCH = "patch"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The way from the wish to launch arguments, with the reason that a person reads."""

    means: Means
    reason: str
    args: Mapping[str, Any]  # to add to the launch arguments; {config} stands for the placed file
    env: Mapping[str, str]
    patches: tuple[str, ...] = ()
    config: str | None = None  # content of the adaptive configuration file
    way_out: str | None = None  # for a refusal


def resolve(
    version: str,
    args: Mapping[str, Any],
    env: Mapping[str, str],
    disable_above: int | None,
    margin: int,
    patch_fits: bool,
) -> Resolution:
    """Decide how a server drafts nothing while more than ``disable_above`` requests run.

    Args:
        version: installed SGLang.
        args: launch flags without their dashes, as in the site file.
        env: the launch's environment.
        disable_above: the wish, in running requests; None: there is none.
        margin: hysteresis, in requests: off above N + margin, on again at N or fewer.
        patch_fits: whether the library's patch has a variant for this version.
    """
    algorithm = str(args.get("speculative-algorithm") or "")
    if disable_above is None or not algorithm:
        reason = (
            "no speculation.disable_above is set" if algorithm else "the server does not speculate"
        )
        return Resolution(Means.NOTHING, reason, {}, {})
    refusal = _unfit(algorithm, args)
    if refusal is not None:
        return refusal
    installed = Version(version)
    if installed >= ADAPTIVE_SINCE:
        return _adaptive(version, args, disable_above, margin)
    if patch_fits:
        return _patched(version, args, env, disable_above, margin)
    return _refused(
        f"{version} has no flag for it, and {PATCH} was not made for that version",
        "install a version that `opsctl patch list` names for it, or 0.5.14 and later",
    )


def without_a_wish(
    library: Mapping[str, Patch],
    applied: Collection[str],
    listed: Collection[str],
    version: str,
    args: Mapping[str, Any],
) -> tuple[str, str] | None:
    """Say which patch of this kind a server has without ``disable_above``, and what to set instead.

    Args:
        library: every known patch.
        applied: ids of the patches in place.
        listed: ids in the site file.
        version: installed SGLang.
        args: launch flags without their dashes; a threshold there is the number that is meant.
    """
    kind = {PATCH, *OLD_WORKER_PATCHES}
    found = [one for one in dict.fromkeys([*applied, *listed]) if one in kind and one in library]
    if not found:
        return None
    words, bad = [], []
    for one in found:
        where = "in place" if one in applied else "in the site file, not yet in place"
        words.append(f"{one} is {where}")
        patch = library[one]
        if patch.status is PatchStatus.KNOWN_BAD:
            words[-1] += f" and known to be bad: {patch.reason}"
            bad.append(one)
    number = args.get(FLAG)
    wish = f"speculation: {{disable_above: {'N' if number is None else number}}}"
    steps = [f"set `{wish}` in the site file"]
    better = better_than(library, library[bad[0]], version) if bad else None
    if bad:
        instead = f"`patches: [{better.id}]` instead of {bad[0]}" if better else f"no {bad[0]}"
        steps.append(instead)
    gone = [flag for flag in (FLAG, "disable-overlap-schedule") if args.get(flag) is not None]
    if gone:
        steps.append(f"take {' and '.join(gone)} out of its args")
    return "; ".join(words), ", ".join(steps)


def _unfit(algorithm: str, args: Mapping[str, Any]) -> Resolution | None:
    """Refuse set-ups that neither upstream's switch nor the patch can turn off."""
    if algorithm.upper() not in _EAGLE:
        return _refused(
            f"{algorithm} drafts in another way; only EAGLE and EAGLE3 can be turned off by batch size",
            "use EAGLE3, or choose its draft length for the load that matters",
        )
    if _number(args, "speculative-eagle-topk", 1) > 1:
        return _refused(
            "speculative-eagle-topk above 1 drafts trees, which need the old worker or static steps",
            "set speculative-eagle-topk: 1 (a chain), which is what the overlap worker takes",
        )
    for flag, why in (
        ("enable-dp-attention", "with DP attention each rank has a batch of its own"),
        ("enable-multi-layer-eagle", "multi-layer EAGLE keeps state per draft layer"),
        ("enable-two-batch-overlap", "two-batch overlap splits the batch that is counted"),
        ("enable-pdmux", "PD multiplexing has its own batches"),
    ):
        if args.get(flag):
            return _refused(f"{flag}: {why}", f"take {flag} or speculation.disable_above away")
    return None


def _number(args: Mapping[str, Any], name: str, default: int) -> int:
    value = args.get(name)
    return default if value is None else int(value)


def _adaptive(version: str, args: Mapping[str, Any], disable_above: int, margin: int) -> Resolution:
    if args.get("speculative-adaptive"):
        return _refused(
            "speculative-adaptive is on already, with rules of its own",
            "take speculative-adaptive and its config away, or speculation.disable_above",
        )
    steps = _number(args, "speculative-num-steps", 3)
    config = {"1": {"candidate_steps": [steps]}, str(disable_above + 1): {"candidate_steps": [0]}}
    note = f"; the margin of {margin} has no counterpart there" if margin else ""
    return Resolution(
        Means.FLAG,
        f"{version} turns drafting off by batch size itself (--speculative-adaptive, since "
        f"{ADAPTIVE_SINCE}); the batch is padded to the next graph size first{note}",
        {"speculative-adaptive": True, "speculative-adaptive-config": "{config}"},
        {},
        config=json.dumps(config),
    )


def _patched(
    version: str,
    args: Mapping[str, Any],
    env: Mapping[str, str],
    disable_above: int,
    margin: int,
) -> Resolution:
    if args.get("speculative-adaptive"):
        return _refused(
            "speculative-adaptive changes the number of steps under the patch's feet",
            "take speculative-adaptive away; the patch turns drafting off by itself",
        )
    if args.get("disable-overlap-schedule"):
        return _refused(
            "disable-overlap-schedule selects the old worker, which cannot decode without drafts",
            "take disable-overlap-schedule away",
        )
    early = Version(version) < OVERLAP_SINCE
    if _spec_v2(env) is False:
        return _refused(
            f"{SPEC_V2}=0 selects the old worker, which cannot decode without drafts",
            "take it away or set it to 1",
        )
    return Resolution(
        Means.PATCH,
        f"{version} has no flag for it; {PATCH} adds --{FLAG} to the overlap worker"
        + (" (SGLANG_ENABLE_SPEC_V2=1 selects that worker)" if early else ""),
        {FLAG: disable_above, MARGIN_FLAG: margin},
        {SPEC_V2: "1"} if early else {},
        (PATCH,),
    )


def unused_old_worker_patch(
    version: str, args: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[str, str] | None:
    """Say why a patch of EAGLEWorker would not be in play in this launch, and the way out; None: it would.

    A server in which it is not in play passes every test, and says nothing about the patch.
    """
    algorithm = str(args.get("speculative-algorithm") or "none").upper()
    if algorithm not in _EAGLE or args.get("enable-multi-layer-eagle"):
        return (
            f"it changes EAGLEWorker, which does not run with this speculation ({algorithm})",
            "set speculative-algorithm: EAGLE3",
        )
    if args.get(FLAG) is None:
        return f"without --{FLAG} it does nothing", f"set {FLAG}: N in the server's args"
    if Version(version) < OVERLAP_SINCE:
        overlap = _spec_v2(env) is True
    else:
        topk = _number(args, "speculative-eagle-topk", 1)
        off = _spec_v2(env) is False or args.get("disable-overlap-schedule") or topk > 1
        overlap = not off
    if overlap:
        return (
            f"it changes EAGLEWorker, and {version} runs the overlap worker in this set-up",
            f'set {SPEC_V2}: "0" in env and disable-overlap-schedule: true in args',
        )
    return None


def _spec_v2(env: Mapping[str, str]) -> bool | None:
    """Return what the environment says of the overlap worker; None: nothing, or nothing that SGLang reads."""
    words = {"true": True, "1": True, "yes": True, "y": True}
    words |= {"false": False, "0": False, "no": False, "n": False}
    return words.get(env.get(SPEC_V2, "").lower())


def _refused(reason: str, way_out: str) -> Resolution:
    return Resolution(Means.REFUSED, reason, {}, {}, way_out=way_out)
