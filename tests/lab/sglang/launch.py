"""The command line and environment that start real SGLang on the CPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tests.lab.sglang import environment, models

DRAFT_STEPS = 3
MAX_TOTAL_TOKENS = 16384
# Speculation limits a server to 48 requests by itself; the plain one gets the same limit.
MAX_RUNNING = 48


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one server."""

    argv: list[str]
    env: dict[str, str]

    def as_dict(self) -> dict[str, object]:
        """Return it in the form that the command prints."""
        return asdict(self)


def launch(
    version: str,
    port: int,
    *,
    eagle: bool = False,
    spec_v2: bool = True,
    weights: str = "known",
    hold: str = "",
    host: str = "127.0.0.1",
    prefix: Path | None = None,
    flags: tuple[str, ...] = (),
) -> Launch:
    """Return how to start this version of SGLang, plain or with EAGLE-3.

    Args:
        spec_v2: EAGLEWorkerV2 (overlap scheduler) or EAGLEWorker.
        weights: ``known`` or ``random``, see ``shim/weights.py``.
        hold: lab GPU memory of the scheduler, ``GPU:MIB,...``.
        flags: further flags of SGLang; the last one of a name wins.
    """
    prefix = prefix or environment.default_prefix()
    target, draft = models.write(prefix / "models")
    argv = [str(environment.interpreter(prefix, version)), "-m", "sglang.launch_server"]
    argv += ["--model-path", str(target), "--served-model-name", models.TARGET]
    argv += ["--host", host, "--port", str(port), "--device", "cpu", "--load-format", "dummy"]
    argv += ["--random-seed", "1", "--mem-fraction-static", "0.1"]
    argv += [
        "--max-total-tokens",
        str(MAX_TOTAL_TOKENS),
        "--max-running-requests",
        str(MAX_RUNNING),
    ]
    argv += ["--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-cuda-graph"]
    argv += ["--attention-backend", "triton" if eagle else "torch_native", "--enable-metrics"]
    if weights == "random":
        argv += ["--dtype", "float32"]
    if eagle:
        argv += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)]
        argv += ["--speculative-num-steps", str(DRAFT_STEPS), "--speculative-eagle-topk", "1"]
        argv += ["--speculative-num-draft-tokens", str(DRAFT_STEPS + 1)]
        argv += ["--speculative-draft-load-format", "dummy"]
    if not (eagle and spec_v2):
        argv += ["--disable-overlap-schedule"]
    return Launch([*argv, *flags], _environment(eagle, spec_v2, weights, hold))


def _environment(eagle: bool, spec_v2: bool, weights: str, hold: str) -> dict[str, str]:
    env = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # a tiny model gains nothing from more, and its neighbours lose
        "OPSCTL_LAB_WEIGHTS": weights,
    }
    if eagle:
        env["TRITON_INTERPRET"] = "1"
        env["SGLANG_ENABLE_SPEC_V2"] = "1" if spec_v2 else "0"
    if hold:
        env["OPSCTL_LAB_HOLD"] = hold
    return env
