"""A known-bad patch that stands in a package: what to do instead of launching it once more; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opsctl.domain.patch import Patch, PatchStatus


def known_bad(library: Mapping[str, Patch], standing: Collection[str]) -> list[Patch]:
    """Return the patches in place that are known to break the server."""
    found = [library[one] for one in standing if one in library]
    return [patch for patch in found if patch.status is PatchStatus.KNOWN_BAD]


def better_than(library: Mapping[str, Patch], bad: Patch, version: str | None) -> Patch | None:
    """Return the recommended patch for what a bad one is for: the same flag, or they exclude each other.

    Args:
        library: every known patch.
        bad: the patch that is known to be bad.
        version: the installed version that it must fit; None, which is not known, fits nothing.
    """
    if version is None:
        return None
    for other in library.values():
        if other.status is not PatchStatus.RECOMMENDED or other.variant(version) is None:
            continue
        if other.package != bad.package or other.superseded_by(version) is not None:
            continue
        exclude = bad.id in other.conflicts or other.id in bad.conflicts
        if exclude or _flags(bad, version) & _flags(other, version):
            return other
    return None


def way_out(
    library: Mapping[str, Patch],
    standing: Collection[str],
    version: str | None,
    server: str | None = None,
    last_passed: str | None = None,
) -> str | None:
    """Name the known-bad patches in place and what goes in their stead; None where there is none.

    Args:
        library: every known patch.
        standing: ids of the patches in place.
        version: the installed version.
        server: its name in the site.
        last_passed: the last run of this server that passed, and has other patches.
    """
    name = server or "SERVER"
    words = []
    for bad in known_bad(library, standing):
        better = better_than(library, bad, version)
        said = f"{bad.id} is in place and known to be bad ({bad.reason}): in the site file "
        if better is not None:
            said += f"write {better.id} in its place, which is recommended for {version}"
            if any(flag.startswith("--speculative") for flag in _flags(better, version or "")):
                said += f" (`opsctl speculation explain {name}` says what goes with it)"
        else:
            said += f"take {bad.id} out of the server's patches"
        words.append(said)
    if not words:
        return None
    back = (
        f" (run {last_passed} passed without it: `opsctl show {last_passed}`)"
        if last_passed
        else ""
    )
    return f"{'; '.join(words)}, then `opsctl restart {name}`{back}"


def _flags(patch: Patch, version: str) -> set[str]:
    variant = patch.variant(version)
    return set(variant.proof.help_shows) if variant is not None else set()
