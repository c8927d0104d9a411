"""Where packages come from, and torch without CUDA libraries."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import pip_config
from tests.lab.sglang import cuda_stubs, installer

LISTING = """\
global.cert='/etc/ssl/own.crt'
global.extra-index-url='https://mirror.example/simple file:///srv/simple'
global.find-links='/srv/wheels'
install.find-links='/srv/one\\n/srv/two'
freeze.timeout='10'
:env:.index-url='https://user:pa%24s@mirror.example/simple'
"""


def test_uv_installs_from_where_pip_would() -> None:
    """Mirrors, wheels on the disk and certificates of pip's configuration reach uv; the last one wins."""
    assert pip_config.parse(LISTING) == {
        "UV_SYSTEM_CERTS": "1",
        "SSL_CERT_FILE": "/etc/ssl/own.crt",
        "UV_INDEX": "https://mirror.example/simple file:///srv/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/srv/one,/srv/two",
        "UV_DEFAULT_INDEX": "https://user:pa%24s@mirror.example/simple",
    }


def test_pip_installs_where_uv_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A uv that fails is told, and pip is asked; when pip fails as well, its words are the error."""
    (tmp_path / "uv").write_text("#!/bin/sh\necho 'no such index' >&2\nexit 2\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setattr(installer, "find_uv", lambda: str(tmp_path / "uv"))
    said: list[str] = []

    missing = [str(tmp_path / "nowhere-1.0-py3-none-any.whl")]

    with pytest.raises(installer.BuildError, match="No such file"):
        installer.install(Path(sys.executable), missing, tmp_path / "cache", said.append)

    assert said == ["uv could not install (no such index): trying pip, which takes minutes longer"]


def test_a_library_that_needs_cuda_loads_with_the_stand_in(tmp_path: Path) -> None:
    """Every function that torch's libraries import is there under its version, and returns an error."""
    lib, vendor = tmp_path / "torch" / "lib", tmp_path / "vendor"
    lib.mkdir(parents=True)
    vendor.mkdir()
    (vendor / "v.c").write_text("int cublasCreate(void) { return 0; }\n")
    (vendor / "n.c").write_text("int ncclSend(void) { return 0; }\n")
    (vendor / "v.map").write_text("libcublas.so.13 { global: cublasCreate; };\n")
    (lib / "t.c").write_text(
        "int cublasCreate(void); int ncclSend(void);\n"
        "int both(void) { return 10 * cublasCreate() + ncclSend(); }\n"
    )
    linked = ["-Wl,-rpath,$ORIGIN", f"-L{vendor}", "-lcublas", "-lnccl"]
    shared = ["gcc", "-shared", "-fPIC"]
    version = f"-Wl,-soname,libcublas.so.13,--version-script,{vendor / 'v.map'}"
    for argv in (
        [*shared, version, "-o", str(vendor / "libcublas.so"), str(vendor / "v.c")],
        [*shared, "-Wl,-soname,libnccl.so.2", "-o", f"{vendor}/libnccl.so", f"{vendor}/n.c"],
        [*shared, "-o", f"{lib}/libtorch_cuda.so", f"{lib}/t.c", *linked],
    ):
        subprocess.run(argv, check=True, timeout=60)

    assert cuda_stubs.install(lib) == ["libcublas.so.13", "libnccl.so.2"]
    assert ctypes.CDLL(str(lib / "libtorch_cuda.so")).both() == 11
