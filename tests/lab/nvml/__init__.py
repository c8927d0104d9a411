"""The lab's NVML library: C, compiled on first use and kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tests.lab.enter import must
from tests.lab.errors import LabError
from tests.lab.instance import Instance

SOURCES = [Path(__file__).with_name(name) for name in ("state.c", "nvml.c")]
HEADER = Path(__file__).with_name("lab.h")


def compiled_library(instance: Instance) -> Path:
    """Return the path of libnvidia-ml.so.1, compiled from the sources beside this file."""
    content = b"".join(path.read_bytes() for path in [HEADER, *SOURCES])
    folder = instance.cache / f"nvml-{hashlib.sha256(content).hexdigest()[:12]}"
    library = folder / "libnvidia-ml.so.1"
    if library.exists():
        return library
    compiler = next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), None)
    if compiler is None:
        raise LabError("the lab's NVML library needs a C compiler: apt-get install gcc libc6-dev")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"build-{os.getpid()}.so"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    link = ["-fvisibility=hidden", "-pthread", "-Wl,-soname,libnvidia-ml.so.1"]
    must([compiler, *flags, *link, "-o", str(temporary), *map(str, SOURCES)])
    temporary.replace(library)
    return library
