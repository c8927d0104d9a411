"""Load tools that pip installs, against the same server as our client: what a token costs them in CPU time.

Each is installed in an environment of its own below ``.venv-peers/load``, never among the project's
dependencies; one that cannot be installed here is left out, and its line says why. The cost of a token is
the difference between a long and a short run, so that loading a library is no part of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-peers" / "load"
INSTALL_S = 420.0
RUN_S = 240.0
SHORT, LONG = 256, 768  # requests of the two runs
LOCUST = """\
import itertools, os, sys
import gevent
from locust import HttpUser, constant, task
from locust.env import Environment
level, requests = int(sys.argv[2]), int(sys.argv[3])
turn = itertools.count()
ended = 0
body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 200}]}
class User(HttpUser):
    wait_time = constant(0)
    host = sys.argv[1]
    @task
    def chat(self):
        global ended
        if next(turn) >= requests:
            gevent.sleep(3600)
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True) as answer:
            for line in answer.iter_lines():
                pass
        ended += 1
runner = Environment(user_classes=[User]).create_local_runner()
runner.start(level, spawn_rate=level)
while ended < requests:
    gevent.sleep(0.05)
sys.stdout.flush()
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """One tool: how pip names it; its command line by interpreter, folder, port, level, requests, tokens."""

    name: str
    package: str
    argv: Callable[[Path, Path, int, int, int, int], Sequence[str]]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a peer's tokens cost; or why that is not known."""

    name: str
    cpu_ms: float | None  # of 1,000 tokens
    peak: int = 0  # requests that the server saw at once, of those that were asked for
    why: str = ""


def _locust(python: Path, folder: Path, port: int, level: int, requests: int, _: int) -> list[str]:
    (folder / "user.py").write_text(LOCUST)
    url = f"http://127.0.0.1:{port}"
    return [str(python), str(folder / "user.py"), url, str(level), str(requests)]


def _sglang(
    python: Path, folder: Path, port: int, level: int, requests: int, tokens: int
) -> list[str]:
    words = [str(python), "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat"]
    words += ["--base-url", f"http://127.0.0.1:{port}", "--dataset-name", "random-ids"]
    words += ["--random-input-len", "64", "--random-output-len", str(tokens)]
    words += ["--random-range-ratio", "1", "--num-prompts", str(requests), "--disable-tqdm"]
    words += ["--max-concurrency", str(level), "--warmup-requests", "0", "--model", "m"]
    return [*words, "--tokenizer", str(folder), "--output-file", str(folder / "out.jsonl")]


def _aiperf(
    python: Path, folder: Path, port: int, level: int, requests: int, tokens: int
) -> list[str]:
    words = [str(python.with_name("aiperf")), "profile", "-m", "m", "--endpoint-type", "chat"]
    words += ["--url", f"http://127.0.0.1:{port}", "--streaming", "--ui", "none"]
    words += ["--concurrency", str(level), "--request-count", str(requests)]
    words += ["--synthetic-input-tokens-mean", "64", "--output-tokens-mean", str(tokens)]
    return [*words, "--tokenizer", str(folder), "--artifact-dir", str(folder / "aiperf")]


def _guidellm(
    python: Path, folder: Path, port: int, level: int, requests: int, tokens: int
) -> list[str]:
    words = [str(python.with_name("guidellm")), "run", "--disable-console"]
    words += ["--backend", f"kind=openai_http,target=http://127.0.0.1:{port},model=m"]
    words += ["--profile", f"kind=concurrent,streams={level}"]
    words += ["--constraint", f"kind=max_requests,count={requests}"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={folder}"]
    words += ["--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={tokens}"]
    return [*words, "--output", f"kind=json,path={folder / 'guidellm.json'}"]


def _inference_perf(
    python: Path, folder: Path, port: int, level: int, requests: int, tokens: int
) -> list[str]:
    (folder / "perf.json").write_text(
        json.dumps(
            {
                "load": {"type": "concurrent", "stages": [
                    {"num_requests": requests, "concurrency_level": level}]},
                "api": {"type": "chat", "streaming": True},
                "server": {"type": "vllm", "model_name": "m", "ignore_eos": True,
                           "base_url": f"http://127.0.0.1:{port}"},
                "tokenizer": {"pretrained_model_name_or_path": str(folder)},
                "data": {"type": "mock"},
            }
        )
    )  # fmt: skip
    return [str(python.with_name("inference-perf")), "-c", str(folder / "perf.json")]


PEERS = (
    Peer("sglang.bench_serving", "sglang", _sglang),
    Peer("locust", "locust", _locust),
    Peer("aiperf", "aiperf", _aiperf, {"AIPERF_LOG_LEVEL": "ERROR"}),
    Peer("guidellm", "guidellm", _guidellm),
    Peer("inference-perf", "inference-perf", _inference_perf),
)
LEFT_OUT = {
    "vllm bench serve": "its wheel needs CUDA's torch, some gigabytes",
    "genai-perf": "followed by aiperf",
    "k6": "no package of pip's",
    "llmperf (ray)": "not on the package index",
}


def lab_base() -> Path | None:
    """Return the lab's site-packages with torch for the CPU, which no peer need download again."""
    cache = Path(os.environ.get("OPSCTL_LAB_CACHE", "/var/cache/opsctl-lab"))
    return next(iter(sorted(cache.glob("sglang/base/lib/python3.*/site-packages"))), None)


def installed(peer: Peer) -> tuple[Path | None, str]:
    """Return the interpreter that has the peer, installing it where need be; or None and the reason."""
    if peer.package == "sglang":  # the lab has it, real and whole
        cache = Path(os.environ.get("OPSCTL_LAB_CACHE", "/var/cache/opsctl-lab"))
        found = sorted(cache.glob("sglang/0.*[0-9]/bin/python"), key=_version)
        return (found[-1], "") if found else (None, "real SGLang is not built in the lab's cache")
    place = FOLDER / peer.name
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return python, ""
    if (place / "why").exists():
        return None, (place / "why").read_text()
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=120)
    base = lab_base()
    if base is not None:
        for packages in place.glob("lib/python3.*/site-packages"):
            if packages.parts[-2] == base.parts[-2]:
                (packages / "base.pth").write_text(f"{base}\n")
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*pip, "--prefer-binary", peer.package],
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
        why = "" if done.returncode == 0 else _reason(done.stderr)
    except subprocess.TimeoutExpired:
        why = f"not installed within {INSTALL_S:.0f} s"
    (place / ("why" if why else "ready")).write_text(why)
    return (None, why) if why else (python, "")


def _version(python: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", python.parts[-3])]


def _reason(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("ERROR")]
    if any("Requires-Python" in line for line in lines):
        return f"it wants a newer Python than {sys.version_info[0]}.{sys.version_info[1]}"
    return (lines or ["pip failed"])[-1][:120]


def measure(
    peer: Peer, port: int, level: int, tokens: int, truth: Callable[[int], list[list[float]]]
) -> Cost:
    """Run a peer twice and return what its tokens cost, by the kernel's count of its CPU time."""
    python, why = installed(peer)
    if python is None:
        return Cost(peer.name, None, why=why)
    spent: list[tuple[float, int]] = []
    peak = 0
    for requests in (SHORT, LONG):
        truth(port)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_tokenizer(folder)
            argv = peer.argv(python, folder, port, level, requests, tokens)
            cpu_s, said = run(argv, {**peer.env, "REQUESTS": str(requests)}, folder)
        answered, gaps, peak = truth(port)  # type: ignore[assignment]
        done = len(answered) + len(gaps)
        if cpu_s is None or done < 0.9 * requests * tokens:
            return Cost(peer.name, None, why=f"its run failed: {said}")
        spent.append((cpu_s, done))
    (short_s, short), (long_s, long) = spent
    return Cost(peer.name, (long_s - short_s) * 1e6 / (long - short), peak)


def run(argv: Sequence[str], env: dict[str, str], folder: Path) -> tuple[float | None, str]:
    """Run a tool to its end; return the CPU time of all its processes, and its last words."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}
    log = folder / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder,
            env={**os.environ, **offline, **env}, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + RUN_S
        while time.monotonic() < deadline:
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid:
                child.returncode = os.waitstatus_to_exitcode(status)
                break
            time.sleep(0.05)
        else:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return None, f"not ended within {RUN_S:.0f} s"
    words = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    return used.ru_utime + used.ru_stime, words[0][:160]


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of a thousand words, so that no tool needs a hub."""
    words = {f"t{number}": number for number in range(1000)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "t0"}
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    names = {"bos_token": "t1", "eos_token": "t2", "unk_token": "t0", "pad_token": "t0"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, **names}
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
