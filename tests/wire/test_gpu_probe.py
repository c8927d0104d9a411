"""`opsctl gpu probe` through a real interpreter: with a torch of the test's own that misbehaves as ordered.

The real torch computes in the environment of real SGLang, where that is installed, on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.agent.client import RemoteAgent, connect
from opsctl.domain.gpu_compute import Compute, compute_findings, exit_code_of
from opsctl.errors import AgentError
from opsctl.steps import gpu_compute
from opsctl.steps.gpu_compute import ComputeProbe
from opsctl.transport.local import LocalTransport
from tests.lab.sglang import environment

pytestmark = pytest.mark.wire
UUIDS = [f"GPU-{index}" for index in range(4)]
# The part of torch that the probe uses; TORCH_FAULTS orders what each device does: "1:hang,2:wrong,...".
TORCH = """
import os, random, signal, sys, time
__version__ = "9.9"
FAULTS = dict(one.split(":") for one in os.environ.get("TORCH_FAULTS", "").split(",") if one)
class version: cuda = "13.0"
class OutOfMemoryError(RuntimeError): pass
class cuda:
    is_available = staticmethod(lambda: FAULTS.get("all") != "no-cuda")
    device_count = staticmethod(lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    synchronize = staticmethod(lambda where: None)
class Generator:
    def manual_seed(self, seed): self.random = random.Random(seed); return self
class Tensor:
    def __init__(self, rows, device="cpu"): self.rows, self.device = rows, device
    def fault(self): return FAULTS.get(self.device.rpartition(":")[2])
    def float(self): return self
    def cpu(self): return Tensor(self.rows)
    def to(self, device):
        if FAULTS.get(device.rpartition(":")[2]) == "bad-copy" and self.device.startswith("cuda"):
            return Tensor([[0 for _ in row] for row in self.rows], device)
        return Tensor(self.rows, device)
    def __matmul__(self, other):
        fault = self.fault()
        if fault == "hang": time.sleep(600)
        if fault == "crash": os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "raise": raise RuntimeError("CUDA error: an illegal instruction was encountered")
        columns = list(zip(*other.rows))
        rows = [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in self.rows]
        if fault == "wrong": rows[0][0] += 1
        return Tensor(rows, self.device)
    def _each(self, other, test):
        theirs = other.rows if isinstance(other, Tensor) else [[other] * len(row) for row in self.rows]
        return Tensor([[test(a, b) for a, b in zip(*pair)] for pair in zip(self.rows, theirs)])
    def __eq__(self, other): return self._each(other, lambda a, b: a == b)
    def __ne__(self, other): return self._each(other, lambda a, b: a != b)
    def all(self): return Tensor(all(all(row) for row in self.rows))
    def sum(self): return Tensor(sum(sum(row) for row in self.rows))
    def item(self): return self.rows
def randint(low, high, shape, generator):
    return Tensor([[generator.random.randrange(low, high) for _ in range(shape[1])] for _ in range(shape[0])])
def full(shape, value, device):
    made = Tensor([[value] * shape[0]], device)
    if made.fault() == "full": raise OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")
    return made
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment in which that torch is found; the product is small, it is computed in Python."""
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setattr(gpu_compute, "SIZE", 8)
    monkeypatch.setattr(gpu_compute, "BYTES", 256)
    return {"PYTHONPATH": str(tmp_path)}


@pytest.fixture(scope="module")
def agent() -> Iterator[RemoteAgent]:
    with connect(LocalTransport()) as made:
        yield made


def probe(
    agent: RemoteAgent, torch: dict[str, str], faults: str = "", timeout_s: float = 20.0
) -> ComputeProbe:
    env = {**torch, "TORCH_FAULTS": faults}
    made = ComputeProbe(agent, [sys.executable], UUIDS, timeout_s, env=env)
    made.run()
    return made


def states(run: ComputeProbe) -> list[str]:
    return [run.cards[index].state.value for index in range(len(UUIDS))]


def test_four_cards_that_compute(agent: RemoteAgent, torch: dict[str, str]) -> None:
    """Each is asked by its UUID, in order, and each copies to its neighbour."""
    run = probe(agent, torch)
    assert states(run) == ["ok"] * 4
    assert run.copies == [(0, 1, ""), (1, 2, ""), (2, 3, ""), (3, 0, "")]
    assert exit_code_of(list(run.cards.values()), run.copies) == 0


@pytest.mark.parametrize(
    ("fault", "state", "words"),
    [
        ("hang", "hung", "no answer"),
        ("crash", "crashed", "signal 11"),
        ("raise", "failed", "illegal instruction"),
        ("wrong", "failed", "1 of 64 products are wrong"),
        ("full", "not-measured", "no room"),
    ],
)
def test_a_bad_card_is_found_and_the_others_get_their_verdict(
    agent: RemoteAgent, torch: dict[str, str], fault: str, state: str, words: str
) -> None:
    """It answers NVML and does not compute; whatever it does, the rest is probed."""
    run = probe(agent, torch, f"1:{fault}", timeout_s=4.0 if fault == "hang" else 20.0)
    assert states(run) == ["ok", state, "ok", "ok"]
    assert words in run.cards[1].detail
    code = exit_code_of(list(run.cards.values()), run.copies)
    assert code == (21 if fault == "full" else 20)
    (finding,) = compute_findings(list(run.cards.values()), run.copies)
    assert finding.subject == "GPU-1"


def test_a_copy_that_differs_is_told(agent: RemoteAgent, torch: dict[str, str]) -> None:
    """Both cards compute; what arrives is not what was sent."""
    run = probe(agent, torch, "2:bad-copy")
    assert states(run) == ["ok"] * 4
    assert [copy for copy in run.copies if copy[2]] == [(1, 2, "the copy differs")]
    assert exit_code_of(list(run.cards.values()), run.copies) == 20


def test_without_cuda_nothing_is_measured(agent: RemoteAgent, torch: dict[str, str]) -> None:
    """Could not be told: never `computes`."""
    run = probe(agent, torch, "all:no-cuda")
    assert states(run) == ["not-measured"] * 4
    assert exit_code_of(list(run.cards.values()), run.copies) == 21


def test_an_interpreter_without_torch_and_one_that_is_not_there(
    agent: RemoteAgent, tmp_path: Path
) -> None:
    """The first is told for each card, the second is an error of its own."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: no such file')")
    run = probe(agent, {"PYTHONPATH": str(tmp_path)})
    assert states(run) == ["not-measured"] * 4
    assert "libcudart" in run.cards[0].detail
    with pytest.raises(AgentError, match="No such file"):
        ComputeProbe(agent, ["/no/such/python"], UUIDS, 5.0).run()


@pytest.mark.sglang
@pytest.mark.skipif(
    not environment.is_built(environment.default_prefix(), environment.VERSIONS[0]),
    reason="real SGLang is not built: python -m tests.lab.sglang build",
)
def test_the_real_torch_computes_on_the_cpu(agent: RemoteAgent) -> None:
    """The probe's own lines hold with torch itself: allocation, exact product, copies."""
    python = environment.interpreter(environment.default_prefix(), environment.VERSIONS[0])
    run = ComputeProbe(agent, [str(python)], UUIDS[:2], 120.0, device="cpu")
    cards = run.run()
    assert [card.state for card in cards] == [Compute.OK, Compute.OK]
    assert run.copies == [(0, 1, ""), (1, 0, "")]
