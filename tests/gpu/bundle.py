"""Pack what a GPU machine without a package registry needs: ``python -m tests.gpu.bundle``.

The target is Python 3.12 on x86-64 with torch 2.11.0+cu130, triton, numpy, aiohttp and the like
installed. Left out of the wheels: what a text server on Hopper with Triton attention never loads
(``sgl_kernel/flash_ops`` alone has 1 GB).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 26, 24, 17, 12, 5)] + [
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
]
SGLANG = ["sglang==0.5.12.post1", "sglang-kernel==0.4.2.post2"]
SERVER = ["-r", str(Path(__file__).parent / "server.txt")]
OPSCTL = ["tenacity", "SQLAlchemy", "httptools", "greenlet"]
LEFT_OUT = (
    "sglang/multimodal_gen/",
    "sglang/test/",
    "sglang/srt/grpc/",
    "sglang/benchmark/",
    "sglang/eval/",
)
STATIC_LIBRARY = ".a"
KERNELS_LEFT_OUT = ("flash_ops.abi3.so", "flashmla_ops.abi3.so")


def main() -> int:
    """Build the bundle and print its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the bundle, NAME.tar.xz")
    parser.add_argument("--work", type=Path, default=Path("build/gpu"), help="kept between calls")
    options = parser.parse_args()
    work: Path = options.work
    tree = work / "tree"
    for name, requirements in (("sg", SGLANG), ("server", SERVER), ("opsctl", OPSCTL)):
        _download(work / name, requirements)
    for wheel in (work / "sg").glob("*.whl"):
        _unpack(wheel, tree / "site", _is_wanted)
    for folder in ("server", "opsctl"):
        for wheel in (work / folder).glob("*.whl"):
            _unpack(wheel, tree / "pysite", lambda name: not name.endswith(STATIC_LIBRARY))
    _strip(tree / "pysite" / "xgrammar")
    with tarfile.open(options.out, "w:xz", preset=5) as archive:
        for part in ("site", "pysite"):
            archive.add(tree / part, part)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
    return 0


def _download(folder: Path, requirements: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *requirements], check=True, timeout=1200)


def _strip(folder: Path) -> None:
    """Drop debugging symbols: 51 of 53 MB of xgrammar's library."""
    for library in folder.glob("*.so"):
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True, timeout=60)


def _is_wanted(name: str) -> bool:
    if name.startswith("sglang/"):
        return not name.startswith(LEFT_OUT)
    return (
        "sm100" not in name and not name.startswith("lib/") and not name.endswith(KERNELS_LEFT_OUT)
    )


def _unpack(wheel: Path, into: Path, is_wanted: object) -> None:
    assert callable(is_wanted)
    into.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if is_wanted(name):
                archive.extract(name, into)


if __name__ == "__main__":
    sys.exit(main())
