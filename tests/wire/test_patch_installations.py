"""Patching what real installers leave: uv's hard links, pip's upgrades, editable and user installations."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import run
from tests.schemas import read_document
from tests.wire.patch_place import Place
from tests.wire.patch_site import FILES, install, record_digest, snapshot

pytestmark = pytest.mark.wire
Run = Callable[..., tuple[int, dict[str, Any]]]
SAY = "import demo; print(demo.answer())"


def make_wheel(folder: Path, version: str = "1.0") -> Path:
    """Build the package as a wheel that real installers take."""
    info = f"demo-{version}.dist-info"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"demo/{name}": content for name, content in FILES.items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = tag.encode()
    record = []
    for name, content in files.items():
        record.append(f"{name},sha256={record_digest(content)},{len(content)}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"demo-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def call(*words: str | Path, **env: str) -> str:
    """Run a program to its end and return what it said."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Uv:
    """The real uv, offline, with a cache of its own whose files it links into every environment."""

    def __init__(self, folder: Path) -> None:
        from uv import find_uv_bin

        self.program = find_uv_bin()
        self.folder = folder
        self.cache = folder / "uv-cache"
        self.env = {
            "UV_CACHE_DIR": str(self.cache),
            "UV_LINK_MODE": "hardlink",
            "UV_OFFLINE": "1",
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def environment(self, name: str, wheel: Path) -> Path:
        """Return the interpreter of a new environment with the wheel in it."""
        home = self.folder / name
        call(self.program, "venv", "--python", sys.executable, home, **self.env)
        python = home / "bin" / "python"
        call(self.program, "pip", "install", "--no-index", "--python", python, wheel, **self.env)
        return python


def package_of(python: Path) -> Path:
    """Return the package's folder in an environment."""
    return next(python.parent.parent.glob("lib/python3*/site-packages")) / "demo"


def in_cache(uv: Uv) -> dict[str, bytes]:
    return {
        str(path.relative_to(uv.cache)): path.read_bytes()
        for path in sorted(uv.cache.rglob("demo/**/*.py"))
    }


@pytest.fixture
def opsctl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call_it(*argv: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run([*argv, *where(tmp_path), "--json"])
        return code, read_document(capsys.readouterr().out)

    return call_it


def where(folder: Path) -> list[str]:
    return ["--site", str(folder / "opsctl.yaml")]


def place_of(folder: Path, python: str | Path, root: Path, **env: str) -> Place:
    """Return a site whose server is launched by this interpreter."""
    place = Place(folder, root, str(python))
    place.env = env
    place.make_patch("one", b"return 1", b"return 10")
    place.write_site("one")
    return place


def states(document: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["state"] for one in document["data"]["patches"]}


def codes(document: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in document["findings"]]


def test_uv_environments_that_share_a_cache_stay_apart(tmp_path: Path, opsctl: Run) -> None:
    """uv links one file into all environments: the patch is in one of them, and not in its cache."""
    uv = Uv(tmp_path)
    wheel = make_wheel(tmp_path / "wheels")
    one, two = uv.environment("one", wheel), uv.environment("two", wheel)
    first, second = package_of(one), package_of(two)
    assert os.path.samefile(first / "core.py", second / "core.py"), "uv made no hard links"
    assert (first / "core.py").stat().st_nlink >= 3
    before, cache = snapshot(first), in_cache(uv)
    place_of(tmp_path, one, first)

    applied, document = opsctl("patch", "apply", "demo-server", "--yes")
    answers = call(one, "-c", SAY), call(two, "-c", SAY)
    three = uv.environment("three", wheel)

    assert applied == 0
    assert states(document) == {"one": "applied"}
    assert answers == ("10", "1")
    assert snapshot(second) == before
    assert in_cache(uv) == cache
    assert snapshot(package_of(three)) == before
    assert os.path.samefile(package_of(three) / "core.py", second / "core.py")

    reverted, _ = opsctl("patch", "revert", "demo-server", "--yes")

    assert reverted == 0
    assert snapshot(first) == snapshot(second) == before
    assert in_cache(uv) == cache
    assert call(one, "-c", SAY) == "1"


def test_what_pip_does_to_a_patched_package_is_seen_by_status_and_doctor(
    tmp_path: Path, opsctl: Run
) -> None:
    """A forced reinstallation and an upgrade by the real pip drop the patch without a word (case 117)."""
    python = Uv(tmp_path).environment("one", make_wheel(tmp_path / "wheels"))
    root = package_of(python)
    place_of(tmp_path, python, root)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--quiet"]
    opsctl("patch", "apply", "demo-server", "--yes")
    _, good = opsctl("doctor", "demo-server")

    call(*pip, "--force-reinstall", "--no-deps", make_wheel(tmp_path / "wheels"))
    drifted, status = opsctl("patch", "status", "demo-server")
    _, doctor = opsctl("doctor", "demo-server")
    again, _ = opsctl("patch", "apply", "demo-server", "--yes")
    make_wheel(tmp_path / "wheels", "1.1")
    call(*pip, "--upgrade", "--find-links", tmp_path / "wheels", "demo")
    upgraded, newer = opsctl("patch", "status", "demo-server")
    refused, _ = opsctl("patch", "apply", "demo-server", "--yes")
    _, newer_doctor = opsctl("doctor", "demo-server")

    assert (drifted, again, upgraded, refused) == (20, 0, 20, 20)
    assert states(status) == {"one": "drifted"}
    assert states(newer) == {"one": "conflict"}
    assert "1.1 is installed" in newer["data"]["patches"][0]["detail"]
    assert [checks(document) for document in (good, doctor, newer_doctor)] == [
        ["ok"],
        ["bad"],
        ["bad"],
    ]
    assert call(python, "-c", SAY) == "1"


def checks(document: dict[str, Any]) -> list[str]:
    """Return what doctor said of the server's patches."""
    found = [one for one in document["data"]["checks"] if one["name"] == "patches"]
    return [str(one["state"]) for one in found]


def test_an_editable_installation_is_patched_in_its_checkout(tmp_path: Path, opsctl: Run) -> None:
    """The launch imports a checkout through a .pth file: that is patched, said, and given back (case 120)."""
    uv = Uv(tmp_path)
    python = uv.environment("one", make_wheel(tmp_path / "wheels", "0.9"))
    installed = package_of(python)
    shutil.rmtree(installed)
    shutil.rmtree(installed.parent / "demo-0.9.dist-info")
    checkout = install(tmp_path / "checkout")
    shutil.rmtree(checkout.parent / "demo-1.0.dist-info")
    info = installed.parent / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(
        json.dumps({"url": checkout.parent.as_uri(), "dir_info": {"editable": True}})
    )
    (installed.parent / "__editable__.demo-1.0.pth").write_text(f"{checkout.parent}\n")
    before = snapshot(checkout)
    place_of(tmp_path, python, checkout)

    applied, document = opsctl("patch", "apply", "demo-server", "--yes")
    answer = call(python, "-c", SAY)
    reverted, _ = opsctl("patch", "revert", "demo-server", "--yes")

    assert (applied, answer, reverted) == (0, "10", 0)
    assert document["data"]["packages"][0]["location"] == str(checkout)
    assert document["data"]["packages"][0]["editable"] is True
    assert "package-editable" in codes(document)
    assert snapshot(checkout) == before


def test_the_user_s_own_installation_wins_where_the_launch_takes_it(
    tmp_path: Path, opsctl: Run
) -> None:
    """The user site's and one in the launch's folder: each is patched only where it runs (case 120)."""
    base = os.path.realpath(sys.executable)
    env = {"PYTHONUSERBASE": str(tmp_path / "home")}
    users = call(base, "-c", "import site; print(site.getusersitepackages())", **env)
    if not site.check_enableusersite() and "True" not in call(
        base, "-c", "import site; print(site.ENABLE_USER_SITE)", **env
    ):
        pytest.skip("this interpreter has no user site")
    mine = install(Path(users))
    clone = install(tmp_path / "clone")
    before = snapshot(mine)
    place = place_of(tmp_path, base, mine, **env)

    applied, document = opsctl("patch", "apply", "demo-server", "--yes")
    place.cwd = str(clone.parent)
    place.write_site("one")
    other, status = opsctl("patch", "status", "demo-server")
    reverted, _ = opsctl("patch", "revert", "demo-server", "--yes")
    standing = snapshot(mine) != before
    place.cwd = "/"
    place.write_site("one")
    back, _ = opsctl("patch", "revert", "demo-server", "--yes")

    assert (applied, other, reverted, back) == (0, 20, 0, 0)
    assert document["data"]["packages"][0]["location"] == str(mine)
    assert status["data"]["packages"][0]["location"] == str(clone)
    assert states(status) == {"one": "absent"}
    assert str(mine) in status["data"]["packages"][0]["others"]
    assert "package-others" in codes(status)
    assert standing, "a revert in one installation changed the other"
    assert snapshot(mine) == before


def test_a_file_with_windows_line_ends_is_a_conflict_and_stays(tmp_path: Path, opsctl: Run) -> None:
    """An editor made CRLF of it: nothing is applied over that, and the reason is said (case 115)."""
    root = install(tmp_path / "site")
    (root / "core.py").write_bytes(FILES["core.py"].replace(b"\n", b"\r\n"))
    before = snapshot(root)
    place_of(tmp_path, sys.executable, root, PYTHONPATH=str(root.parent))

    refused, document = opsctl("patch", "apply", "demo-server", "--yes")

    assert refused == 20
    assert "Windows line ends" in document["findings"][-1]["text"]
    assert snapshot(root) == before


@pytest.mark.parametrize("mode", [0o444, 0o640])
def test_a_read_only_file_without_a_last_newline_comes_back_as_it_was(
    tmp_path: Path, opsctl: Run, mode: int
) -> None:
    """The whole way, from `patch new` over such a file to its revert: bytes and mode."""
    root, pristine = install(tmp_path / "site"), install(tmp_path / "pristine")
    for folder in (root, pristine):
        (folder / "core.py").write_bytes(FILES["core.py"].rstrip(b"\n"))
    (root / "core.py").chmod(mode)
    before = snapshot(root)
    place = Place(tmp_path, root)
    (place.pristine / "core.py").write_bytes(FILES["core.py"].rstrip(b"\n"))
    place.make_patch("one", b"return 2", b"return 20")
    place.write_site("one")

    applied, _ = opsctl("patch", "apply", "demo-server", "--yes")
    between = snapshot(root)
    reverted, _ = opsctl("patch", "revert", "demo-server", "--yes")

    assert (applied, reverted) == (0, 0)
    assert between["core.py"] == (b"".join([FILES["core.py"].rstrip(b"\n"), b"0"]), mode)
    assert snapshot(root) == before


def test_two_that_apply_at_the_same_moment_do_it_once(tmp_path: Path, opsctl: Run) -> None:
    """Two processes of opsctl race: one applies, the other has nothing to do or is told who holds it."""
    root = install(tmp_path / "site")
    place_of(tmp_path, sys.executable, root, PYTHONPATH=str(root.parent))
    argv = [sys.executable, "-m", "opsctl", "patch", "apply", "demo-server", "--yes", "--json"]

    racing = [
        subprocess.Popen([*argv, *where(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    ended = [(one.communicate(timeout=60)[0], one.returncode) for one in racing]
    documents = [json.loads(text) for text, _ in ended]
    _, status = opsctl("patch", "status", "demo-server")
    _, log = opsctl("patch", "log", "demo-server")

    assert [document["outcome"] for document in documents].count("applied") == 1
    for document, (_, code) in zip(documents, ended, strict=True):
        lost = {"patch-locked", "changed-meanwhile"} & set(codes(document))
        assert document["outcome"] in ("applied", "unchanged") or (lost and code in (20, 50))
    assert states(status) == {"one": "applied"}
    done = [one for one in log["data"]["records"] if one["outcome"] == "done"]
    assert len(done) == 1
    assert not list(root.rglob(".*opsctl*"))
