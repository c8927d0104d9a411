"""How real SGLang is started on the CPU: as argv and environment, or as an entry of a site file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.lab.sglang import environment, models

DRAFT_STEPS = 3
MAX_TOTAL_TOKENS = 16384
# Speculation limits a server to 48 requests by itself; the plain one gets the same limit.
MAX_RUNNING = 48


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one server."""

    python: str
    model: str
    port: int
    args: dict[str, str | int | float | bool]
    env: dict[str, str]

    @property
    def argv(self) -> list[str]:
        """The command line."""
        found = [self.python, "-m", "sglang.launch_server", "--model-path", self.model]
        found += ["--port", str(self.port)]
        for name, value in self.args.items():
            found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return found

    def as_dict(self) -> dict[str, object]:
        """Return argv and environment, and the server's keys of a site file."""
        site = {"python": self.python, "model": self.model, "port": self.port, "args": self.args}
        return {"argv": self.argv, "env": self.env, "site": {**site, "env": self.env}}


def launch(
    version: str,
    port: int,
    *,
    eagle: bool = False,
    spec_v2: bool = True,
    tp: int = 1,
    weights: str = "known",
    hold: str = "",
    host: str = "127.0.0.1",
    python: str = "",
    prefix: Path | None = None,
    **flags: str | int | float | bool,
) -> Launch:
    """Return how to start this version of SGLang, plain or with EAGLE-3.

    Args:
        spec_v2: EAGLEWorkerV2 (overlap scheduler) or EAGLEWorker.
        tp: ranks, each a scheduler process of about 0.5 GB.
        weights: ``known`` or ``random``, see ``shim/weights.py``.
        hold: lab GPU memory of the scheduler, ``GPU:MIB,...``.
        python: another interpreter, such as that of a copy (``copy.py``).
        flags: further flags of SGLang, dashes as underscores; they win over ours.
    """
    prefix = prefix or environment.default_prefix()
    target, draft = models.write(prefix / "models")
    args = _arguments(eagle, spec_v2, weights, str(draft))
    args["host"] = host
    env = server_environment(eagle, spec_v2, weights, hold)
    if tp > 1:
        args["tp"] = tp
        cores = os.cpu_count() or 1
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank % cores) for rank in range(tp))
    args.update({name.replace("_", "-"): value for name, value in flags.items()})
    python = python or str(environment.interpreter(prefix, version))
    return Launch(python, str(target), port, args, env)


def _arguments(
    eagle: bool, spec_v2: bool, weights: str, draft: str
) -> dict[str, str | int | float | bool]:
    args: dict[str, str | int | float | bool] = {
        "served-model-name": models.TARGET,
        "device": "cpu",
        "load-format": "dummy",
        "random-seed": 1,
        "mem-fraction-static": 0.1,
        "max-total-tokens": MAX_TOTAL_TOKENS,
        "max-running-requests": MAX_RUNNING,
        "sampling-backend": "pytorch",
        "grammar-backend": "none",
        "disable-cuda-graph": True,
        "attention-backend": "triton" if eagle else "torch_native",
        "enable-metrics": True,
        "sleep-on-idle": True,  # else each idle scheduler takes one of the lab's two cores from all others
    }
    if weights == "random":
        args["dtype"] = "float32"  # in bfloat16 the batch size would decide between near ties
    if eagle:
        args["speculative-algorithm"] = "EAGLE3"
        args["speculative-draft-model-path"] = draft
        args["speculative-draft-load-format"] = "dummy"
        args["speculative-num-steps"] = DRAFT_STEPS
        args["speculative-eagle-topk"] = 1
        args["speculative-num-draft-tokens"] = DRAFT_STEPS + 1
    if not (eagle and spec_v2):
        args["disable-overlap-schedule"] = True
    return args


def server_environment(
    eagle: bool = False, spec_v2: bool = True, weights: str = "known", hold: str = ""
) -> dict[str, str]:
    """Return the variables that a server needs to run without a GPU."""
    env = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # a tiny model gains nothing from more, and its neighbours lose
        "TORCHDYNAMO_DISABLE": "1",  # else the first request waits 20 s for a C++ compiler
        "PYTHONWARNINGS": "ignore",  # some forty lines about missing GPUs before the first log line
        "OPSCTL_LAB_START": "fork",  # 8 s of CPU time to ready instead of 20; "spawn" is SGLang's own
        "OPSCTL_LAB_WEIGHTS": weights,
    }
    if eagle:
        env["TRITON_INTERPRET"] = "1"
        env["SGLANG_ENABLE_SPEC_V2"] = "1" if spec_v2 else "0"
    if hold:
        env["OPSCTL_LAB_HOLD"] = hold
    return env
