"""`opsctl patch test`: every shipped patch on the wheel of every version that it names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.errors import ConfigError
from opsctl.patch_library import load_library
from opsctl.patch_trial import download, exact_versions, try_patch

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.timeout(600)]
LIBRARY = load_library()
TRIALS = [(one, version) for one in sorted(LIBRARY) for version in exact_versions(LIBRARY[one])]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep downloaded wheels for the session, or for longer where OPSCTL_WHEELS says so."""
    kept = os.environ.get("OPSCTL_WHEELS")
    return Path(kept) if kept else tmp_path_factory.mktemp("wheels")


@pytest.mark.parametrize(("one", "version"), TRIALS)
def test_a_shipped_patch_goes_there_and_back_on_a_fresh_wheel(
    one: str, version: str, wheels: Path
) -> None:
    """Apply, compile, import what can be imported here, revert: every byte and mode as shipped."""
    trial = try_patch(LIBRARY, LIBRARY[one], version, wheels)

    assert trial.problem == ""
    assert trial.files >= 2


@pytest.mark.parametrize("version", ["0.5.8", "0.5.10", "0.5.13"])
def test_a_version_that_nobody_tried_is_refused(version: str, wheels: Path) -> None:
    """Between and beside the tried versions the patch does not apply, whatever its hunks would do."""
    try:
        download("sglang", version, wheels)
    except ConfigError:
        pytest.skip(f"the index has no wheel of {version}")

    trial = try_patch(LIBRARY, LIBRARY["spec-disable-v2"], version, wheels)

    assert "made for sglang" in trial.problem
