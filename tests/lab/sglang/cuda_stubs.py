"""Stand-ins for the CUDA libraries that torch's ordinary build is linked with, on a machine without a GPU.

PyPI has no CPU build of torch for Linux, and the ordinary one does not load without cuBLAS, cuDNN, NCCL
and their like: 2.5 GB to fetch, of which a CPU calls nothing. One small library answers to all those
names instead, with every function that torch imports from them; each returns an error. The CUDA
runtime is the real one, so ``torch.cuda.is_available()`` is false for the real reason: no driver.
"""

from __future__ import annotations

import mmap
import re
import struct
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REAL = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85")
LIBRARY = "libopsctl_lab_no_cuda.so"
VENDOR = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+")
VENDOR_FUNCTION = re.compile(r"(cu|nccl|nv)\w+")
DRIVER = "libcuda.so.1"  # the driver's own library
GCC_TIMEOUT_S = 120.0
SHT_DYNAMIC, SHT_DYNSYM, SHT_VERSYM, SHT_VERNEED = 6, 11, 0x6FFFFFFF, 0x6FFFFFFE
DT_NEEDED = 1


@dataclass(slots=True)
class Wanted:
    """What a shared object expects of others: libraries by name, functions by version and name."""

    libraries: set[str] = field(default_factory=set)
    functions: dict[str, set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )  # "": unversioned


def install(torch_lib: Path) -> list[str]:
    """Put the stand-in beside torch's own libraries and return the names it answers to.

    Raises:
        subprocess.CalledProcessError: gcc would not; its words are in ``stderr``.
        FileNotFoundError: there is no gcc.
    """
    wanted = Wanted()
    for library in sorted(torch_lib.glob("*.so")):
        needs = _read(library)
        if DRIVER in needs.libraries:
            continue  # loaded only where there is a GPU
        wanted.libraries |= needs.libraries
        for version, functions in needs.functions.items():
            wanted.functions[version] |= functions
    real = {path.name for path in torch_lib.parents[1].glob("nvidia/*/lib/*.so.*")}
    names = sorted(name for name in wanted.libraries - real if VENDOR.fullmatch(name))
    if names:
        _compile(torch_lib / LIBRARY, wanted.functions, names)
    for name in names:
        place = torch_lib / name
        place.unlink(missing_ok=True)
        place.symlink_to(LIBRARY)
    return names


def _compile(target: Path, functions: dict[str, set[str]], names: list[str]) -> None:
    nodes = {version: functions[version] for version in functions if version in names}
    nodes |= {v: f for v, f in functions.items() if v and not VENDOR.fullmatch(v)}
    loose = {name for name in functions[""] if VENDOR_FUNCTION.fullmatch(name)}
    every = sorted(loose.union(*nodes.values()))
    source = ['static const char *said = "the lab has no CUDA library";']
    for name in every:
        result = "const char *" if name.endswith("String") else "int "
        source.append(f"{result}{name}(void) {{ return {'said' if 'char' in result else 1}; }}")
    script = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(found))} }};"
        for version, found in sorted(nodes.items())
    ]
    with tempfile.TemporaryDirectory() as folder:
        code, versions = Path(folder, "stubs.c"), Path(folder, "versions")
        code.write_text("\n".join(source) + "\n")
        versions.write_text("\n".join(script) + "\n")
        command = ["gcc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-w", f"-Wl,-soname,{LIBRARY}"]
        subprocess.run(
            [*command, f"-Wl,--version-script,{versions}", "-o", str(target), str(code)],
            capture_output=True,
            text=True,
            timeout=GCC_TIMEOUT_S,
            check=True,
        )


def _read(library: Path) -> Wanted:
    """Return what one ELF file (64 bit, little endian) needs."""
    wanted = Wanted()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        sections = _sections(elf)
        found = {kind: (offset, size, link) for kind, offset, size, link in sections}
        if SHT_DYNAMIC in found:
            offset, size, link = found[SHT_DYNAMIC]
            for tag, value in struct.iter_unpack("<QQ", elf[offset : offset + size]):
                if tag == DT_NEEDED:
                    wanted.libraries.add(_text(elf, sections[link][1] + value))
        if SHT_DYNSYM in found:
            offset, size, link = found[SHT_DYNSYM]
            versions = _versions(elf, found, sections)
            numbers = found.get(SHT_VERSYM)
            for index in range(size // 24):
                name, _info, _other, section, _value, _size = struct.unpack_from(
                    "<IBBHQQ", elf, offset + 24 * index
                )
                if section or not name:
                    continue
                number = struct.unpack_from("<H", elf, numbers[0] + 2 * index)[0] if numbers else 0
                version = versions.get(number, ("", ""))
                if not version[1] or VENDOR.fullmatch(version[0]):
                    word = _text(elf, sections[link][1] + name)
                    wanted.functions[version[1]].add(word)
    return wanted


def _sections(elf: mmap.mmap) -> list[tuple[int, int, int, int]]:
    """Return (type, offset, size, link) of each section."""
    start, each, count = (
        struct.unpack_from("<Q", elf, 0x28)[0],
        *struct.unpack_from("<HH", elf, 0x3A),
    )
    found = []
    for index in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", elf, start + each * index)
        found.append((fields[1], fields[4], fields[5], fields[6]))
    return found


def _versions(
    elf: mmap.mmap,
    found: dict[int, tuple[int, int, int]],
    sections: list[tuple[int, int, int, int]],
) -> dict[int, tuple[str, str]]:
    """Return each version number's library and name."""
    if SHT_VERNEED not in found:
        return {}
    offset, _, link = found[SHT_VERNEED]
    strings = sections[link][1]
    return {
        number: (_text(elf, strings + file), _text(elf, strings + name))
        for file, name, number in _version_needs(elf, offset)
    }


def _version_needs(elf: mmap.mmap, offset: int) -> Iterator[tuple[int, int, int]]:
    while True:
        _, count, file, auxiliary, following = struct.unpack_from("<HHIII", elf, offset)
        inner = offset + auxiliary
        for _ in range(count):
            _, _, number, name, step = struct.unpack_from("<IHHII", elf, inner)
            yield file, name, number
            inner += step
        if not following:
            return
        offset += following


def _text(elf: mmap.mmap, offset: int) -> str:
    return elf[offset : elf.find(b"\0", offset)].decode()
