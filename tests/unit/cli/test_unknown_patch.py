"""A patch id of the site file that no library knows is found before anything is connected to."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli import run as opsctl

SITE = """\
hosts: {{gpu1: {{ssh: root@192.0.2.7}}}}
patches_dir: own
servers:
  glm5: {{host: gpu1, gpus: {{select: all}}, port: 30000, python: /p, model: /m, patches: [{patch}]}}
"""


def run(folder: Path, patch: str, *words: str) -> int:
    """Run opsctl with a site whose server names ``patch``; its host is never reached."""
    (folder / "own").mkdir(exist_ok=True)
    site = folder / "opsctl.yaml"
    site.write_text(SITE.format(patch=patch))
    return opsctl([*words, "--site", str(site)])


@pytest.mark.parametrize(
    "words",
    [
        ("config", "check"),
        ("restart", "glm5", "--dry-run"),
        ("restart", "glm5", "--yes"),
        ("launch", "glm5", "--yes"),
        ("patch", "apply", "glm5", "--yes"),
        ("patch", "status", "glm5"),
    ],
)
def test_an_unknown_patch_is_refused_at_once_with_the_nearest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    """Exit 10, which server and which id, and the one that was meant."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("opsctl.session.Hosts.begin", lambda *_: None)

    code = run(tmp_path, "spec-disable-v3", *words)

    told = capsys.readouterr()
    assert code == 10
    assert "servers.glm5.patches: no patch is called spec-disable-v3" in told.out + told.err
    assert "did you mean spec-disable-v" in told.out + told.err


def test_a_known_patch_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library that ships with opsctl counts beside the site's own folder."""
    assert run(tmp_path, "spec-disable-v2", "config", "check") == 0
    assert "all right" in capsys.readouterr().out
