"""Driver, CUDA, torch, SGLang and FlashInfer: what fits, what does not, what is not known."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.doctor import State
from opsctl.domain.versions import (
    TABLE,
    asks_torch,
    judge_architecture,
    judge_driver,
    judge_packages,
)

NVCC_12_8 = "Cuda compilation tools, release 12.8, V12.8.93\n"
REQUIRES = [
    "torch==2.11.0", "flashinfer_python==0.6.11.post1", "sglang-kernel==0.4.2.post2", "transformers==5.6.0",
    'torchao==0.17.0; extra == "x"', "nvidia-ml-py", "not a requirement ???",
]  # fmt: skip
GOOD = {
    "sglang": "0.5.12.post1", "torch": "2.11.0+cu130", "flashinfer-python": "0.6.11.post1",
    "flashinfer-cubin": "0.6.11.post1", "sglang-kernel": "0.4.2.post2", "transformers": "5.6.0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "cuda", "state"),
    [
        ("580.95.05", "13.0", State.OK),
        ("575.57.08", "13.0", State.BAD),
        ("575.57.08", "12.9", State.OK),
        ("525.60.13", "12.1", State.OK),
        ("520.61.05", "12.1", State.BAD),
        ("580.95.05", None, State.UNKNOWN),
        (None, "12.8", State.UNKNOWN),
        ("999.1", "99.0", State.UNKNOWN),
    ],
)
def test_a_driver_serves_a_major_of_cuda_from_its_least_version_on(
    driver: str | None, cuda: str | None, state: State
) -> None:
    """Within one major an older driver serves a newer runtime; what is not in the table is not known."""
    assert judge_driver(driver, cuda).state is state


@pytest.mark.parametrize(
    ("requires", "torch", "asks"),
    [
        (["torch==2.11.0"], None, True),
        (['torch==2.5.1; extra == "srt"'], None, True),
        (["torchao==0.17.0", "torch-c-dlpack-ext"], None, False),
        ([], "2.11.0", True),
        ([], None, False),
    ],
)
def test_a_package_that_asks_for_no_torch_has_no_cuda_to_compare(
    requires: list[str], torch: str | None, asks: bool
) -> None:
    """A missing torch is unknown only where one is asked for; a silent interpreter proves nothing."""
    found = {"versions": {"sglang": "0.5.9", "torch": torch}, "requires": requires}

    assert asks_torch(found) is asks
    assert asks_torch({"error": "it did not start"})
    state = State.UNKNOWN if asks else State.OK
    assert judge_driver("580.95.05", None, asks_torch=asks).state is state


@pytest.mark.parametrize(
    ("capability", "cuda", "nvcc", "expected"),
    [
        ((12, 0), "12.8", NVCC_12_8, [State.OK, State.OK]),
        ((12, 0), "12.6", NVCC_12_8, [State.BAD, State.OK]),
        ((12, 1), "13.0", NVCC_12_8, [State.OK, State.WARN]),
        ((9, 0), "12.8", None, [State.OK]),
        ((9, 0), "12.8", "no such words", [State.OK, State.UNKNOWN]),
        ((9, 0), None, NVCC_12_8, [State.OK]),
        ((99, 0), "12.8", NVCC_12_8, [State.UNKNOWN]),
    ],
)
def test_a_gpu_needs_the_cuda_that_knows_it(
    capability: tuple[int, int], cuda: str | None, nvcc: str | None, expected: list[State]
) -> None:
    """SM120 with a torch of CUDA 12.6 has no kernel image; a missing nvcc is the preflight's finding."""
    found = judge_architecture([capability, capability], cuda, nvcc)

    assert [check.state for check in found] == expected


def packages(**versions: Any) -> list[tuple[State, str]]:
    found = judge_packages({"versions": {**GOOD, **versions}, "requires": REQUIRES})
    return [(check.state, check.text) for check in found]


def test_what_sglang_asks_for_itself_is_the_measure() -> None:
    """A local build tag (+cu130) fits its version; names are compared as pip compares them."""
    ((state, text),) = packages()

    assert state is State.OK
    assert "torch 2.11.0+cu130" in text


def test_another_version_warns_and_a_missing_part_is_bad() -> None:
    """The pin and what is there are both named."""
    assert packages(transformers="4.57.1") == [
        (State.WARN, "transformers 4.57.1 is installed, sglang 0.5.12.post1 asks for ==5.6.0")
    ]
    assert packages(torch=None)[0][0] is State.BAD


def test_a_server_on_the_cpu_needs_no_gpu_code() -> None:
    """Only torch stays a must."""
    there = {**GOOD, "sglang-kernel": None, "flashinfer-python": None, "flashinfer-cubin": None}

    (good,) = judge_packages({"versions": there, "requires": REQUIRES}, on_gpu=False)
    (bad,) = judge_packages(
        {"versions": {**there, "torch": None}, "requires": REQUIRES}, on_gpu=False
    )

    assert (good.state, bad.state) == (State.OK, State.BAD)


def test_the_two_halves_of_flashinfer_must_be_one_version() -> None:
    """FlashInfer compares them itself when it is imported, and gives up."""
    (found,) = packages(**{"flashinfer-cubin": "0.6.3"})

    assert found[0] is State.BAD
    assert "refuses to load" in found[1]


def test_an_interpreter_without_sglang_or_without_an_answer() -> None:
    """Looked and not there is bad; not looked is unknown."""
    assert packages(sglang=None)[0][0] is State.BAD
    (check,) = judge_packages({"ok": None, "error": "it exited 1", "nvcc": None})
    assert check.state is State.UNKNOWN


def test_every_row_of_the_table_names_its_source() -> None:
    """A number without a source would be a guess."""
    assert all(row.source and row.least for row in TABLE)
