"""Do driver, CUDA, torch, SGLang and FlashInfer fit together and to the GPUs; pure.

The table with its sources is explained in docs/doctor.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from opsctl.domain.doctor import Check, State
from opsctl.records import dataclass

Capability = tuple[int, int]
RELEASE_NOTES = "CUDA Toolkit release notes"
METADATA = "the installed sglang's METADATA (Requires-Dist)"


@dataclass(frozen=True, slots=True)
class Fit:
    """One row of the table: ``subject`` works from ``least`` on."""

    subject: str
    needs: str
    least: str
    source: str


# Minimum drivers: table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
# Compatibility"; architectures: the release notes of the toolkit that first compiles for them.
DRIVER_FOR_CUDA = (
    Fit("CUDA 11.x", "driver", "450.80.02", RELEASE_NOTES),
    Fit("CUDA 12.x", "driver", "525.60.13", RELEASE_NOTES),
    Fit("CUDA 13.x", "driver", "580.65.06", RELEASE_NOTES),
)
CUDA_FOR_GPU = (
    Fit("SM80", "CUDA", "11.0", RELEASE_NOTES),
    Fit("SM86", "CUDA", "11.1", RELEASE_NOTES),
    Fit("SM89", "CUDA", "11.8", RELEASE_NOTES),
    Fit("SM90", "CUDA", "11.8", RELEASE_NOTES),
    Fit("SM100", "CUDA", "12.8", RELEASE_NOTES),
    Fit("SM120", "CUDA", "12.8", RELEASE_NOTES),
    Fit("SM103", "CUDA", "12.9", RELEASE_NOTES),
    Fit("SM121", "CUDA", "12.9", RELEASE_NOTES),
)
# Exact pins of two SGLang releases, read from their wheels; for the installed one its own METADATA counts.
PINS = (
    Fit("sglang 0.5.9", "torch, flashinfer, kernel", "2.9.1, 0.6.3, sgl-kernel 0.3.21", METADATA),
    Fit(
        "sglang 0.5.12.post1", "torch, flashinfer, kernel", "2.11.0, 0.6.11.post1, sglang-kernel 0.4.2.post2",
        METADATA,
    ),
)  # fmt: skip
TABLE = (*DRIVER_FOR_CUDA, *CUDA_FOR_GPU, *PINS)
NAMES = (
    "sglang", "torch", "torchvision", "torchaudio", "flashinfer-python", "flashinfer-cubin", "sgl-kernel",
    "sglang-kernel", "triton", "transformers", "xgrammar", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
)  # fmt: skip
GPU_CODE = ("sgl-kernel", "sglang-kernel", "flashinfer-python", "flashinfer-cubin")
COMPILED = ("torch", *GPU_CODE)
_RELEASE = re.compile(r"release (\d+\.\d+)")


def asks_torch(found: Mapping[str, Any]) -> bool:
    """Say whether the installed SGLang asks for torch at all, be it in an extra; it has always done."""
    if not found.get("versions"):
        return True  # the interpreter did not tell
    names = (re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0] for text in found["requires"])
    return "torch" in names or bool(found["versions"].get("torch"))


def judge_driver(driver: str | None, torch_cuda: str | None, *, asks_torch: bool = True) -> Check:
    """Compare the driver with the CUDA that torch was built for.

    Within one major version of CUDA an older driver serves a newer runtime ("minor version compatibility").

    Args:
        driver: the kernel module's version.
        torch_cuda: the CUDA of the installed torch; None where it has none, or is not installed.
        asks_torch: False where the installed package asks for no torch: then there is nothing to compare.
    """
    name = "driver-cuda"
    if torch_cuda is None and not asks_torch:
        return Check(name, State.OK, "this sglang asks for no torch: it brings no CUDA of its own")
    if torch_cuda is None:
        text = "torch is not installed for the launch interpreter, or was built without CUDA"
        return Check(
            name,
            State.UNKNOWN,
            text,
            "install a torch built for CUDA there, or name the right `python` in the site file; "
            "a server on the CPU says so with `args: {device: cpu}`",
        )
    if driver is None:
        return Check(
            name, State.UNKNOWN, f"the driver's version is not known; torch has CUDA {torch_cuda}"
        )
    major = torch_cuda.split(".")[0]
    row = next((one for one in DRIVER_FOR_CUDA if one.subject == f"CUDA {major}.x"), None)
    least = None if row is None else row.least
    if least is None:
        return Check(name, State.UNKNOWN, f"no entry of the table is for CUDA {torch_cuda}")
    if not _at_least(driver, least):
        text = f"driver {driver} is older than {least}, which CUDA {major}.x needs (torch: {torch_cuda})"
        return Check(
            name,
            State.BAD,
            text,
            f"update the driver to {least} or newer, or install another torch",
        )
    return Check(
        name, State.OK, f"driver {driver} serves torch's CUDA {torch_cuda} (needs {least})"
    )


def judge_architecture(
    capabilities: Sequence[Capability], torch_cuda: str | None, nvcc: str | None
) -> list[Check]:
    """Say whether torch's CUDA and the compiler for kernels built at start know the GPUs."""
    known = sorted(set(capabilities))
    checks = []
    for major, minor in known:
        row = next((one for one in CUDA_FOR_GPU if one.subject == f"SM{major}{minor}"), None)
        if row is None:
            text = f"no entry of the table is for SM{major}{minor}"
            checks.append(Check("gpu-architecture", State.UNKNOWN, text))
            continue
        if torch_cuda is not None:
            checks.append(_torch_knows(row, torch_cuda))
        if nvcc is not None:  # its absence is the preflight's finding (toolchain)
            checks.append(_compiler_knows(row, nvcc))
    return checks


def _torch_knows(row: Fit, torch_cuda: str) -> Check:
    if _at_least(torch_cuda, row.least):
        return Check(
            "gpu-architecture",
            State.OK,
            f"{row.subject}: torch's CUDA {torch_cuda} has code for it",
        )
    text = f"{row.subject} needs CUDA {row.least}, torch was built for {torch_cuda}: no kernel image for it"
    return Check(
        "gpu-architecture",
        State.BAD,
        text,
        f"install a torch that is built for CUDA {row.least} or newer",
    )


def _compiler_knows(row: Fit, nvcc: str) -> Check:
    name = "cuda-compiler"
    found = _RELEASE.search(nvcc)
    if found is None:
        return Check(name, State.UNKNOWN, "nvcc does not tell its release", "nvcc --version")
    if _at_least(found[1], row.least):
        return Check(name, State.OK, f"{row.subject}: nvcc {found[1]} compiles for it")
    text = f"nvcc {found[1]} does not compile for {row.subject}, which needs {row.least}"
    step = f"put the bin folder of CUDA {row.least} or newer first in the server's PATH"
    return Check(name, State.WARN, text, step)


def judge_packages(
    found: Mapping[str, Any], *, python: str = "python", on_gpu: bool = True
) -> list[Check]:
    """Compare what is installed with what the installed SGLang asks for, by its own metadata.

    Args:
        found: what the launch interpreter said.
        python: that interpreter, for the mend.
        on_gpu: False for a server on the CPU, where packages that hold GPU code may be missing.
    """
    if found.get("error") and not found.get("versions"):
        return [
            Check(
                "packages", State.UNKNOWN, f"the interpreter could not be asked: {found['error']}"
            )
        ]
    versions: Mapping[str, str | None] = found["versions"]
    if versions.get("sglang") is None:
        return [
            Check(
                "packages",
                State.BAD,
                "sglang is not installed for it",
                "correct `python` in the site file",
            )
        ]
    judged = (_requirement(text, versions, python, on_gpu=on_gpu) for text in found["requires"])
    wrong = [check for check in judged if check is not None]
    flashinfer, cubin = versions.get("flashinfer-python"), versions.get("flashinfer-cubin")
    if flashinfer and cubin and flashinfer != cubin:
        text = f"flashinfer-cubin {cubin} is not flashinfer-python {flashinfer}: FlashInfer refuses to load"
        step = f"{python} -m pip install flashinfer-cubin=={flashinfer}"
        wrong.append(Check("packages", State.BAD, text, command=step))
    if wrong:
        return wrong
    shown = ", ".join(f"{name} {versions[name]}" for name in NAMES if versions.get(name))
    return [Check("packages", State.OK, f"as sglang asks for: {shown}")]


def _requirement(
    text: str, versions: Mapping[str, str | None], python: str, *, on_gpu: bool
) -> Check | None:
    try:
        asked = Requirement(text)
        applies = asked.marker is None or asked.marker.evaluate({"extra": ""})
    except (InvalidRequirement, UndefinedEnvironmentName):
        return None
    name = re.sub(r"[-_.]+", "-", asked.name).lower()
    if not applies or name not in versions:
        return None
    installed = versions[name]
    step = f"{python} -m pip install '{asked.name}{asked.specifier}'"
    if installed is None and name in GPU_CODE and not on_gpu:
        return None
    mend = "" if on_gpu else "on the CPU it may do without, as a smoke shows; else"
    if installed is None:
        state = State.BAD if name in COMPILED else State.WARN
        return Check(
            "packages",
            state,
            f"{name} is missing; sglang {versions['sglang']} asks for it",
            mend,
            command=step,
        )
    try:
        fits = asked.specifier.contains(Version(installed), prereleases=True)
    except InvalidVersion:
        return Check(
            "packages", State.UNKNOWN, f"{name} has a version that cannot be read: {installed}"
        )
    if fits:
        return None
    text = (
        f"{name} {installed} is installed, sglang {versions['sglang']} asks for {asked.specifier}"
    )
    return Check("packages", State.WARN, text, mend, command=step)


def _at_least(version: str, least: str) -> bool:
    return _numbers(version) >= _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
