"""The site file of the GPU machine: plain, static EAGLE-3, the patched server, the incident's patch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.gpu.session import CHECKOUT, PORT, Run

# of the caller's environment, for a server; a machine that shares a host's GPUs asks for the last three
KEPT = (
    "PATH",
    "CUDA_HOME",
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
)
GRAPH_SIZES = [1, 2, 4, 5, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64]


def setup(run: Run) -> None:
    """Unpack the bundle, write models and site file, print what the machine has."""
    bundle = os.environ["BUNDLE"]
    built = os.environ.get("HOME_BUNDLE", "")
    for packed in (bundle, *([built] if built else [])):
        with tarfile.open(packed) as archive:
            archive.extractall(run.root, filter="data")
    for part in ("site", "pysite"):  # else the first start of each process compiles it anew
        argv = [sys.executable, "-m", "compileall", "-q", "-j", "0", str(run.root / part)]
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=False, timeout=120)
    for stub in ("flashinfer", "IPython", "soundfile.py"):
        source = Path(__file__).parent / "stubs" / stub
        target = run.root / "stubs" / stub
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    sys.path.insert(0, str(CHECKOUT))
    from tests.gpu import models

    target_model, draft = models.write(run.root / "models")
    run.site.write_text(json.dumps(site(run.root, target_model, draft), indent=1))
    for argv in (["nvidia-smi", "-L"], ["nvcc", "--version"], ["nproc"]):
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        print(done.stdout.strip()[-300:], flush=True)


def keep(run: Run) -> None:
    """Pack what the servers built at their first start, for the next bare machine."""
    with tarfile.open(run.out.parent / "home.tar.xz", "w:xz", preset=1) as archive:
        archive.add(run.root / "home", "home")
    out = Path(os.environ.get("OUT", run.out))
    shutil.copy(run.out.parent / "home.tar.xz", out)


def site(root: Path, target: Path, draft: Path) -> dict[str, Any]:
    """Return the site: the plain server, static EAGLE-3, the patched one, the incident's patch."""
    plain = {
        "load-format": "dummy",
        "attention-backend": "triton",
        "sampling-backend": "pytorch",
        "grammar-backend": "none",
        "mem-fraction-static": 0.6,
        "max-running-requests": 64,
        "disable-piecewise-cuda-graph": True,
        "cuda-graph-bs": GRAPH_SIZES,
        "host": "127.0.0.1",
        "enable-metrics": True,
        "context-length": 4096,
        "watchdog-timeout": 60,
    }
    eagle = {
        **plain,
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": str(draft),
        "speculative-num-steps": 7,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 8,
    }
    incident = {
        **eagle,
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 4,
        "speculative-num-draft-tokens": 16,
        "speculative-disable-batch-threshold": 5,
    }
    server: dict[str, Any] = {
        "host": "here",
        "gpus": {"select": [0], "expect": 1},
        "port": PORT,
        "python": sys.executable,
        "model": str(target),
        "env": _server_environment(root),
        "log_dir": str(root / "logs"),
        "cwd": str(root),
        "smoke": {"tokens": 256},
    }
    threshold = int(os.environ.get("THRESHOLD", "2"))
    return {
        "hosts": {"here": {"local": True}},
        "servers": {
            "plain": {**server, "args": plain},
            "eagle": {**server, "args": eagle},
            "dynamic": {
                **server,
                "args": eagle,
                "patches": ["spec-disable-v2"],
                "speculation": {"disable_above": threshold},
            },
            "incident": {
                **server,
                "args": incident,
                "patches": ["spec-disable-v1"],
                "env": {**server["env"], "SGLANG_ENABLE_SPEC_V2": "0"},
            },
        },
    }


def _server_environment(root: Path) -> dict[str, str]:
    import nvidia

    libraries = [
        str(Path(base) / name)
        for base in nvidia.__path__
        for name in ("cu13/lib", "cuda_nvrtc/lib", "cublas/lib", "cuda_runtime/lib")
        if (Path(base) / name).is_dir()
    ]
    shim = Path(__file__).parent / "shim"
    paths = [shim, root / "stubs", root / "site", root / "pysite"]
    old = os.environ.get("LD_LIBRARY_PATH")
    kept = {k: v for k in KEPT if (v := os.environ.get(k))}
    home = (
        root / "home"
    )  # what the server builds at its first start stays here, and can be carried on
    home.mkdir(exist_ok=True)
    return {
        **kept,
        "HOME": str(home),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *([old] if old else [])]),
        "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OPSCTL_LAB_WEIGHTS": "known",
    }


def variants(run: Run) -> dict[str, dict[str, Any]]:
    """Return the site's servers, and variants of the patched one that no site has."""
    entries: dict[str, dict[str, Any]] = json.loads(run.site.read_text())["servers"]
    grammar = {"grammar-backend": "xgrammar"}
    for name in ("plain", "eagle", "dynamic"):
        entries[name]["args"] = {**entries[name]["args"], **grammar, "max-total-tokens": 24576}
    dynamic = entries["dynamic"]
    pressed = {"max-total-tokens": 5000, "schedule-conservativeness": 0.05}
    entries["tight"] = {**dynamic, "args": {**dynamic["args"], **pressed}}
    attentive = {**dynamic["env"], "OPSCTL_LAB_WEIGHTS": "attentive"}
    short = {**dynamic, "model": f"{dynamic['model']}-short"}
    entries["attentive"] = {**short, "env": attentive}
    entries["control"] = {**short, "env": {**attentive, "OPSCTL_GPU_NO_CATCH_UP": "1"}}
    return entries
