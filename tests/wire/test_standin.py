"""The stand-in server behaves as SGLang does, seen from outside: processes, HTTP, log, end."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import http.client
import importlib.metadata
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import standin

pytestmark = pytest.mark.wire
READY = "The server is fired up and ready to roll!"


class Server:
    """A running stand-in and what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, line: str, timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while line not in self.text():
            assert time.monotonic() < deadline, f"{line!r} not in {self.text()[-2000:]}"
            time.sleep(0.02)

    def post(self, path: str, body: object, timeout_s: float = 10.0) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def generate(self, tokens: int = 8, **more: object) -> dict[str, Any]:
        sampling = {"max_new_tokens": tokens, "temperature": 0}
        body = {"input_ids": [5, 6, 7], "sampling_params": sampling, **more}
        status, answer = self.post("/generate", body)
        assert status == 200, answer
        found: dict[str, Any] = json.loads(answer)
        return found

    def titles(self) -> dict[str, int]:
        found = {}
        for pid in below(self.process.pid):
            with contextlib.suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
                found[title.replace(b"\0", b" ").decode()] = pid
        return found


def below(pid: int) -> list[int]:
    """Return the children of a process."""
    try:
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    tmp_path: Path, *flags: str, faults: str = "", ready: bool = True, **env: str
) -> Iterator[Server]:
    port, log = free_port(), tmp_path / "server.log"
    environment = {**standin.environment(faults), **env}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            standin.argv(port, *flags), env=environment, stdout=sink, stderr=sink
        )
    server = Server(process, port, log)
    known: list[int] = []
    try:
        if ready:
            server.wait_for(READY)
        known = below(process.pid)
        yield server
    finally:
        for pid in {*known, *below(process.pid)}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(10)


def expected(prompt: int, count: int) -> list[int]:
    """Return the known answer, worked out here and not by the stand-in."""
    found, token = [], prompt
    for _ in range(count):
        token = (token * 17 + 3) % 32000
        token += 0 if token >= 3 else 3
        found.append(token)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(pid: int, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while alive(pid):
        assert time.monotonic() < deadline, f"{pid} lives on"
        time.sleep(0.02)


def test_process_tree_and_log_are_those_of_sglang(tmp_path: Path) -> None:
    """Titles, tracker and the start lines appear as the real server's, in order."""
    with running(tmp_path, "--tp", "2") as server:
        titles = server.titles()

        assert {"sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"} < set(
            titles
        )
        assert any("multiprocessing.resource_tracker" in title for title in titles)
        name = Path(f"/proc/{titles['sglang::scheduler_TP0']}/comm").read_text()
        assert name == "sglang::schedul\n"

        text = server.text()
        lines = [
            "server_args=ServerArgs(",
            "TP0] Load weight begin. avail mem=",
            "TP0] Load weight end. elapsed=",
            "TP0] KV Cache is allocated. #tokens: ",
            "TP0] Memory pool end. avail mem=",
            "TP0] Capture cuda graph begin.",
            "Capture cuda graph bs [1, 2, 4,",
            "TP0] Capture cuda graph end.",
            f"Uvicorn running on http://127.0.0.1:{server.port}",
            READY,
        ]
        places = [text.index(line) for line in lines]
        assert places == sorted(places)


def test_one_rank_has_a_title_without_number(tmp_path: Path) -> None:
    """With one GPU the scheduler is titled as the real one: no _TP0."""
    with running(tmp_path) as server:
        assert "sglang::scheduler" in server.titles()


def test_answers_follow_from_the_prompt(tmp_path: Path) -> None:
    """The known answer comes back, streamed cumulatively and whole."""
    with running(tmp_path) as server:
        whole = server.generate(6)
        assert whole["output_ids"] == expected(7, 6)
        assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
        assert whole["meta_info"]["completion_tokens"] == 6

        sampling = {"max_new_tokens": 4}
        status, body = server.post(
            "/generate", {"input_ids": [5, 6, 7], "stream": True, "sampling_params": sampling}
        )
        events = [line[6:] for line in body.decode().split("\n\n") if line]
        assert status == 200
        assert events[-1] == "[DONE]"
        texts = [json.loads(event)["text"] for event in events[:-1]]
        assert len(texts) == 4
        assert all(later.startswith(text) for text, later in itertools.pairwise(texts))


def test_openai_stream_ends_with_usage_and_empty_choices(tmp_path: Path) -> None:
    """The usage event comes last with no choices, as in SGLang."""
    with running(tmp_path) as server:
        _, body = server.post(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "t5"}],
                "max_tokens": 3,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
        events = [line[6:] for line in body.decode().split("\n\n") if line]
        assert events[-1] == "[DONE]"
        usage = json.loads(events[-2])
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 3
        assert json.loads(events[0])["choices"][0]["delta"]["role"] == "assistant"


def test_speculation_reports_acceptance(tmp_path: Path) -> None:
    """Under EAGLE several tokens come per step, and meta_info says how many on average."""
    with running(tmp_path, "--speculative-algorithm", "EAGLE3") as server:
        answer = server.generate(30)

        meta = answer["meta_info"]
        assert answer["output_ids"] == expected(7, 30)
        assert meta["spec_accept_length"] == 30 / meta["spec_verify_ct"]
        assert 2.5 < meta["spec_accept_length"] < 3.5


def test_endpoints_answer(tmp_path: Path) -> None:
    """What opsctl asks a server is answered in SGLang's form."""
    with running(tmp_path, "--enable-metrics", "--served-model-name", "glm5") as server:
        assert server.get("/health") == (200, b"")
        assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == "glm5"
        assert json.loads(server.get("/server_info")[1])["version"] == "0.5.12.post1"
        assert b"sglang:num_running_reqs" in server.get("/metrics")[1]
        assert json.loads(server.get("/v1/loads")[1])["loads"][0]["num_running_reqs"] == 0
        assert server.post("/flush_cache", {})[0] == 200
        assert server.get("/nosuch") == (404, b'{"detail":"Not Found"}')


def test_too_long_a_prompt_is_refused_in_sglangs_words(tmp_path: Path) -> None:
    """The context edge is a 400 with the two lengths."""
    with running(tmp_path, "--context-length", "10") as server:
        body = {"input_ids": [7] * 11, "sampling_params": {"max_new_tokens": 1}}
        status, answer = server.post("/generate", body)
        assert status == 400
        text = "The input (11 tokens) is longer than the model's context length (10 tokens)."
        assert json.loads(answer) == {"error": {"message": text}}


def test_sglang_serve_starts_the_same_server(tmp_path: Path) -> None:
    """The `sglang` command starts it, and `sglang version` says which it is."""
    start = [sys.executable, "-m", "sglang.cli.main"]
    port, log = free_port(), tmp_path / "server.log"
    environment = standin.environment()
    version = subprocess.run(
        [*start, "version"], env=environment, capture_output=True, text=True, timeout=20
    )
    assert version.stdout == "sglang version: 0.5.12.post1\n"

    argv = [*start, "serve", "--model-path", str(tmp_path), "--port", str(port)]
    with log.open("wb") as sink:
        process = subprocess.Popen(argv, env=environment, stdout=sink, stderr=sink)
    server = Server(process, port, log)
    try:
        server.wait_for(READY)
        assert "sglang::scheduler" in server.titles()
    finally:
        process.kill()
        process.wait(10)


def test_an_unknown_flag_is_exit_2(tmp_path: Path) -> None:
    """The parser knows the real version's flags, and no others."""
    with running(tmp_path, "--speculative-disable-above", "5", ready=False) as server:
        assert server.process.wait(10) == 2
        assert "unrecognized arguments: --speculative-disable-above 5" in server.text()


def test_gpu_memory_is_held_by_the_schedulers_and_freed_by_their_death(tmp_path: Path) -> None:
    """Each rank locks its share of its lab GPU; SIGKILL of the main process frees all of it."""
    (tmp_path / "gpus").write_text("0|lab|GPU-0|1000|0|0|40|0|0|0\n1|lab|GPU-1|1000|0|0|40|0|0|0\n")
    for gpu in (0, 1):
        (tmp_path / f"gpu{gpu}.mem").touch()

    def holder(gpu: int) -> int:
        with (tmp_path / f"gpu{gpu}.mem").open("r+b") as handle:
            request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1000, 0)
            found = struct.unpack("hhqqi", fcntl.fcntl(handle, fcntl.F_GETLK, request))
        return int(found[4]) if found[0] != fcntl.F_UNLCK else 0

    with running(tmp_path, "--tp", "2", NVML_LAB_DIR=str(tmp_path)) as server:
        titles = server.titles()
        assert holder(0) == titles["sglang::scheduler_TP0"]
        assert holder(1) == titles["sglang::scheduler_TP1"]

        server.process.kill()
        server.process.wait(5)
        for pid in titles.values():
            if pid in (holder(0), holder(1)):
                wait_gone(pid)
        assert (holder(0), holder(1)) == (0, 0)


def test_a_full_gpu_stops_the_start(tmp_path: Path) -> None:
    """Memory that a foreign process holds gives SGLang's out-of-memory error and exit 1."""
    (tmp_path / "gpus").write_text("0|lab|GPU-0|1000|0|0|40|0|0|0\n")
    (tmp_path / "gpu0.mem").touch()
    with (tmp_path / "gpu0.mem").open("r+b") as foreign:
        fcntl.lockf(foreign, fcntl.LOCK_EX, 500, 0)
        with running(tmp_path, ready=False, NVML_LAB_DIR=str(tmp_path)) as server:
            assert server.process.wait(10) == 1
            assert "torch.OutOfMemoryError: CUDA out of memory." in server.text()
            assert "Rank 0 scheduler died during initialization (exit code: 1)" in server.text()


def test_term_drains_and_then_ends_by_kill(tmp_path: Path) -> None:
    """SIGTERM lets the running request finish; health is 503 meanwhile; then all are gone."""
    with running(tmp_path, faults="itl-ms=20") as server:
        pids = below(server.process.pid)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answer = pool.submit(server.generate, 30)
            server.wait_for("#new-token: 3,")
            server.process.terminate()
            server.wait_for("SIGTERM received. signum=None frame=None. Draining")
            assert server.get("/health")[0] == 503
            assert answer.result()["output_ids"] == expected(7, 30)

        assert server.process.wait(10) == -signal.SIGKILL
        assert "Gracefully exiting... Remaining number of requests 0." in server.text()
        for pid in pids:
            wait_gone(pid)


def test_crash_above_writes_the_incidents_shape_error(tmp_path: Path) -> None:
    """C=2 is answered; at C=3 the server dies with 48 = 3 x 16 in its log."""
    flags = ("--speculative-algorithm", "EAGLE3", "--tp", "2", "--lab-crash-above", "2")
    with running(tmp_path, *flags) as server, concurrent.futures.ThreadPoolExecutor() as pool:
        for answer in [pool.submit(server.generate, 20) for _ in range(2)]:
            assert answer.result()["output_ids"] == expected(7, 20)

        for broken in [pool.submit(server.generate, 200) for _ in range(3)]:
            assert isinstance(broken.exception(), OSError | http.client.HTTPException)
        assert server.process.wait(5) == -signal.SIGKILL
        text = server.text()
        assert "TP0] Scheduler hit an exception: Traceback (most recent call last):" in text
        assert "TP1] Scheduler hit an exception: Traceback (most recent call last):" in text
        assert "The size of tensor a (48) must match the size of tensor b (3)" in text
        assert "SIGQUIT received. signum=None, frame=None. It usually means one child" in text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_scheduler_takes_the_server_down(tmp_path: Path, rank: int) -> None:
    """The watchdog names the child and its exit code, and ends everything."""
    flags = ("--tp", "2", "--lab-kill-above", "0", "--lab-kill-signal", "SEGV")
    with running(tmp_path, *flags, "--lab-kill-rank", str(rank), ready=False) as server:
        assert server.process.wait(10) == -signal.SIGKILL
        assert f"Subprocess scheduler_{rank} (pid=" in server.text()
        assert "crashed with exit code -11. Triggering SIGQUIT" in server.text()


def test_hang_keeps_health_200(tmp_path: Path) -> None:
    """No token comes any more, yet health says all is well."""
    with running(tmp_path, faults="hang-after-tokens=20") as server:
        with pytest.raises(TimeoutError):
            server.post(
                "/generate",
                {"input_ids": [7], "sampling_params": {"max_new_tokens": 100}},
                timeout_s=0.7,
            )
        assert server.get("/health")[0] == 200
        assert server.process.poll() is None


def test_health_can_lie_about_a_dead_scheduler(tmp_path: Path) -> None:
    """The scheduler is dead, the main process serves on: health 200, generation never ends."""
    with running(tmp_path, faults="health-lies") as server:
        os.kill(server.titles()["sglang::scheduler"], signal.SIGKILL)
        time.sleep(0.3)
        assert server.get("/health")[0] == 200
        with pytest.raises(TimeoutError):
            server.post("/generate", {"input_ids": [7], "sampling_params": {}}, timeout_s=0.5)


@pytest.mark.parametrize(
    ("kind", "text"), [("repeat", "!!!!"), ("replacement", "����"), ("empty", "")]
)
def test_mush_is_answered_with_200(tmp_path: Path, kind: str, text: str) -> None:
    """Broken output looks like an answer: status, token count and finish reason are right."""
    with running(tmp_path, faults=f"mush={kind}") as server:
        answer = server.generate(4)
        assert answer["text"] == text
        assert answer["meta_info"]["completion_tokens"] == 4


def test_errors_and_cuts_reach_the_client(tmp_path: Path) -> None:
    """Each ordered HTTP fault is seen by a client as ordered."""
    with running(tmp_path, faults="error-above=0") as server:
        assert "error" in server.generate(4)
    with running(tmp_path, faults="http-error=503") as server:
        assert server.post("/generate", {"input_ids": [7]})[0] == 503
    with running(tmp_path, faults="cut-after-tokens=2") as server:
        body = {"input_ids": [7], "stream": True, "sampling_params": {"max_new_tokens": 9}}
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            server.post("/generate", body)


def test_start_can_fail_hang_or_end_at_once(tmp_path: Path) -> None:
    """Exit code, signal, no progress, and exit 0 right after ready, as ordered."""
    with running(tmp_path, faults="exit-at-start=3", ready=False) as server:
        assert server.process.wait(10) == 1
        assert "died during initialization (exit code: 3)" in server.text()
    with running(tmp_path, faults="exit-at-start=7,fail-at=args", ready=False) as server:
        assert server.process.wait(10) == 7
    with running(tmp_path, faults="exit-after-s=0") as server:
        assert server.process.wait(10) == 0
    with running(tmp_path, faults="never-ready=warmup", ready=False) as server:
        server.wait_for("Uvicorn running")
        assert server.get("/health")[0] == 503
        assert READY not in server.text()


@pytest.mark.orphans
def test_orphans_outlive_the_main_process(tmp_path: Path) -> None:
    """Double-forked schedulers have pid 1 as parent (or a reaper) and survive a SIGKILL."""
    with running(tmp_path, faults="reparent") as server:
        found = [
            int(path.name)
            for path in Path("/proc").iterdir()
            if path.name.isdigit() and is_ours(path, server.port)
        ]
        main = [pid for pid in found if pid != server.process.pid]
        server.process.kill()
        server.process.wait(5)
        try:
            assert any(alive(pid) for pid in main)
        finally:
            for pid in main:
                os.kill(pid, signal.SIGKILL)


def is_ours(path: Path, port: int) -> bool:
    """Return whether a process was forked by the server of this test: it shares its log."""
    try:
        title = (path / "cmdline").read_bytes()
        log = os.readlink(path / "fd" / "2")
    except OSError:
        return False
    return title.startswith(b"sglang::scheduler") and "test_orphans_outlive" in log


def test_a_zombie_and_a_leftover_segment_can_be_ordered(tmp_path: Path) -> None:
    """A defunct child stays, and /dev/shm keeps a segment with the dead server's pid."""
    with running(tmp_path, faults="zombie,leave-shm") as server:
        segment = Path(f"/dev/shm/sgl_shm_standin_{server.process.pid}_0")
        try:
            assert segment.exists()
            states = [
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                for pid in below(server.process.pid)
            ]
            assert "Z" in states
        finally:
            segment.unlink()


def test_the_incidents_version_does_not_notice_a_killed_scheduler(tmp_path: Path) -> None:
    """0.5.9 has no watchdog: its main process serves on with a dead scheduler, as the real one does."""
    standin.install(tmp_path / "site", "0.5.9")
    with running(tmp_path, PYTHONPATH=str(tmp_path / "site")) as server:
        os.kill(server.titles()["sglang::scheduler"], signal.SIGKILL)
        time.sleep(0.6)
        assert server.process.poll() is None
        assert json.loads(server.get("/model_info")[1])["model_type"] == "llama"


def test_an_installed_copy_has_a_record_that_holds(tmp_path: Path) -> None:
    """Metadata and RECORD name version and every file, as after pip."""
    package = standin.install(tmp_path, "0.5.9")
    [found] = importlib.metadata.distributions(name="sglang", path=[str(tmp_path)])
    assert found.version == "0.5.9"
    files = {str(file): file for file in found.files or []}
    assert files["sglang/launch_server.py"].hash is not None
    assert (package / "version.py").read_text().count("0.5.9") == 1
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = "import sglang; print(sglang.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=20
    )
    assert done.stdout == "0.5.9\n"
