"""Build the Python environments that run real SGLang without a GPU, once, and keep them.

One base environment holds torch and everything that both SGLang versions share; each version gets
an environment of its own, with a real ``python`` and an installed ``sglang`` (RECORD and all), and
sees the base through a ``.pth`` file. Everything is pinned and installed without dependencies: torch's
and SGLang's own would pull several GB of CUDA libraries (see ``cuda_stubs.py``). What a server imports
is compiled once, here: the lab's hosts see the environments read only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.lab import packages
from tests.lab.sglang import cuda_stubs
from tests.lab.sglang.installer import BuildError
from tests.lab.sglang.installer import install as install_packages

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements"
SHIM = HERE / "shim"
TORCH = "torch==2.13.0"
TORCHVISION = "torchvision==0.28.0"  # imported by transformers; its CUDA operators are never called
VERSIONS = ("0.5.12.post1", "0.5.9")
STAMP = "opsctl-lab.json"
IMPORT_TIMEOUT_S = 600.0
KEPT_LINES, LONGEST = 12, 400  # of a traceback, from each end
MISSING_LIBRARY = re.compile(r"(?:cannot load library '|\b)(lib[\w+-][\w.+-]*?\.so[.\d]*)")
LIBRARIES = {
    "libsndfile": "libsndfile1",
    "libGL.": "libgl1",
    "libgomp": "libgomp1",
    "libnuma": "libnuma1",
    "libglib-2": "libglib2.0-0",
    "libstdc++": "libstdc++6",
    "libopenblas": "libopenblas0",
}
# what a server has imported when it is ready; importing it writes the bytecode of those modules
IMPORTED = """
import sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.server_args
import sglang.srt.managers.scheduler, sglang.srt.managers.detokenizer_manager
"""


def default_prefix() -> Path:
    """Return the folder that keeps the environments: root's is shared by all checkouts."""
    if os.environ.get("OPSCTL_LAB_CACHE"):
        return Path(os.environ["OPSCTL_LAB_CACHE"]) / "sglang"
    if os.geteuid() == 0:
        return Path("/var/cache/opsctl-lab/sglang")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "opsctl-lab" / "sglang"


def interpreter(prefix: Path, version: str) -> Path:
    """Return the Python that runs this version of SGLang."""
    return prefix / version / "bin" / "python"


def is_built(prefix: Path, version: str) -> bool:
    """Return whether both environments are there and were made by this recipe."""
    return _stamp_matches(prefix / "base", _recipe("base")) and _stamp_matches(
        prefix / version, _recipe(version)
    )


def build(prefix: Path, version: str, say: Callable[[str], None]) -> Path:
    """Make what is missing and return the interpreter.

    Raises:
        BuildError: if a package cannot be installed; what was done is kept for the next try.
    """
    prefix.mkdir(parents=True, exist_ok=True)
    with _locked(prefix / "build.lock", say):
        base = _make(prefix / "base", _recipe("base"), _install_base, say)

        def install(python: Path, say: Callable[[str], None]) -> None:
            _install_version(python, version, base, say)

        home = _make(prefix / version, _recipe(version), install, say)
        _install_shim(home)
    return interpreter(prefix, version)


def site_packages(home: Path) -> Path:
    """Return the one site-packages folder of an environment."""
    return next(home.glob("lib/python3*/site-packages"))


def _make(
    home: Path,
    recipe: str,
    install: Callable[[Path, Callable[[str], None]], None],
    say: Callable[[str], None],
) -> Path:
    """Build ``home`` beside its place and rename it in; a half-made one is taken up again."""
    if _stamp_matches(home, recipe):
        return home
    partial = home.with_name(home.name + ".partial")
    if not _stamp_matches(partial, recipe, done=False):
        shutil.rmtree(partial, ignore_errors=True)
        venv.EnvBuilder(symlinks=True).create(partial)
        _write_stamp(partial, recipe, done=False)
    started = time.monotonic()
    say(f"building {home}")
    install(partial / "bin" / "python", say)
    _move_scripts(partial, home)
    _write_stamp(partial, recipe, done=True)
    if home.exists():
        old = home.with_name(home.name + f".old-{os.getpid()}")
        home.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    partial.rename(home)
    say(f"built {home} in {time.monotonic() - started:.0f} s")
    return home


def _install_base(python: Path, say: Callable[[str], None]) -> None:
    say(
        "installing torch, triton and about 120 packages that SGLang imports (0.7 to 1 GB to fetch)"
    )
    cache = python.parents[2] / "uv"
    install_packages(python, [TORCH, TORCHVISION, "-r", str(REQUIREMENTS / "base.txt")], cache, say)
    libraries = site_packages(python.parents[1]) / "torch" / "lib"
    if not (libraries / "libtorch_cuda.so").exists():
        return
    say("torch's ordinary build (no CPU build is offered here): stand-ins for its CUDA libraries")
    install_packages(python, list(cuda_stubs.REAL), cache, say)
    packages.install(packages.COMPILER)
    try:
        cuda_stubs.install(libraries)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"gcc: {error.stderr.strip()[-500:]}") from error


def _install_version(python: Path, version: str, base: Path, say: Callable[[str], None]) -> None:
    say(f"installing sglang {version} (about 10 MB, and 20 MB of what only it needs)")
    install_packages(
        python, ["-r", str(REQUIREMENTS / f"{version}.txt")], python.parents[2] / "uv", say
    )
    home = python.parents[1]
    (site_packages(home) / "opsctl-lab-base.pth").write_text(f"{site_packages(base)}\n")
    _install_shim(home)
    say("compiling what a server imports")
    _compile_imported(python, version)


def _compile_imported(python: Path, version: str) -> None:
    from tests.lab.sglang.launch import server_environment

    environment = {**os.environ, **server_environment(eagle=True)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", str(python.parents[2] / "inductor")
    )  # not /tmp
    done = subprocess.run(
        [str(python), "-c", IMPORTED],
        capture_output=True,
        text=True,
        timeout=IMPORT_TIMEOUT_S,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"sglang {version} does not import:\n{_import_words(done.stderr)}")


def _import_words(said: str) -> str:
    """Return both ends of a traceback and, where a shared library is missing, what brings it."""
    lines = said.strip().splitlines()
    if len(lines) > 2 * KEPT_LINES:
        cut = f"  ... ({len(lines) - 2 * KEPT_LINES} lines)"
        lines = [*lines[:KEPT_LINES], cut, *lines[-KEPT_LINES:]]
    if found := MISSING_LIBRARY.search(said):
        name = found[1]
        package = next((LIBRARIES[stem] for stem in LIBRARIES if name.startswith(stem)), None)
        how = f"apt-get install {package}" if package else f"install the package that has {name}"
        lines.append(f"  next: {how}, then run this again (what was installed is kept)")
    return "\n".join(line[:LONGEST] for line in lines)


def _install_shim(home: Path) -> None:
    """Put this checkout's CPU stand-ins into the environment, also into one built before."""
    site = site_packages(home)
    target = site / "opsctl_lab_cpu"
    target.mkdir(exist_ok=True)
    wanted = {path.name: path.read_bytes() for path in SHIM.glob("*.py")}
    for name, content in wanted.items():
        _replace(target / name, content)
    for stale in target.glob("*.py"):
        if stale.name not in wanted:
            stale.unlink()
    _replace(site / "opsctl-lab-cpu.pth", b"import opsctl_lab_cpu\n")


def _replace(path: Path, content: bytes) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _move_scripts(partial: Path, home: Path) -> None:
    """Rewrite the interpreter line of every script to where the environment will lie."""
    for script in (partial / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if str(partial).encode() in content:
            script.write_bytes(content.replace(str(partial).encode(), str(home).encode()))


def _recipe(name: str) -> str:
    """Return what decides the environment's content, as one hash."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {TORCH} {TORCHVISION}\n".encode())
    digest.update((REQUIREMENTS / "base.txt").read_bytes())
    if name != "base":
        digest.update((REQUIREMENTS / f"{name}.txt").read_bytes())
    return digest.hexdigest()


def _stamp_matches(home: Path, recipe: str, *, done: bool = True) -> bool:
    try:
        stamp = json.loads((home / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return stamp.get("recipe") == recipe and stamp.get("done") in (done, True)


def _write_stamp(home: Path, recipe: str, *, done: bool) -> None:
    _replace(home / STAMP, json.dumps({"recipe": recipe, "done": done}).encode())


@contextlib.contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the build lock: two checkouts that build at once wait for each other."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another build runs in the same folder: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
