"""Real SGLang runs on the CPU: plain and EAGLE-3, known answers, real processes, real endings."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import gpus
from tests.lab.sglang import copy, environment, models
from tests.lab.sglang.launch import launch
from tests.lab.sglang.server import READY, Server, free_port, running

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]
NEW, OLD = environment.VERSIONS
PROMPTS = [[3 + 7 * i, 11 + i, 20 + 13 * i] for i in range(10)]
WANTED_TOKENS_PER_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Have the environments; building takes two minutes on the first run and nothing later."""
    for version in environment.VERSIONS:
        environment.build(environment.default_prefix(), version, print)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A plain server, shared by tests that only ask."""
    folder = tmp_path_factory.mktemp("plain")
    with running(launch(NEW, free_port()), folder / "log") as server:
        yield server


def assert_known_answers(server: Server, concurrency: int, tokens: int) -> list[dict[str, object]]:
    """Check every token of so many requests at once against arithmetic."""
    prompts = PROMPTS[:concurrency]
    answers = server.generate_many(prompts, tokens)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["output_ids"] == models.expected(prompt[-1], tokens)
    return answers


def test_plain_server_answers_with_text_and_known_tokens(plain: Server) -> None:
    """A generation has readable text, and each token follows from the one before."""
    answer = plain.post(
        "/generate", {"text": "t5", "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
    )
    assert answer["text"] == " t88 t475 t910"
    assert_known_answers(plain, 10, 24)


def test_chat_works(plain: Server) -> None:
    """The tiny tokenizer has a chat template, so the OpenAI route answers."""
    message = {"role": "user", "content": "t5"}
    asked = {"model": models.TARGET, "messages": [message], "max_tokens": 3, "temperature": 0}
    answer = plain.post("/v1/chat/completions", asked)
    assert answer["choices"][0]["message"]["content"].split() == ["t88", "t475", "t910"]
    assert answer["usage"]["completion_tokens"] == 3


def test_processes_carry_sglangs_titles(plain: Server) -> None:
    """Scheduler, detokenizer and resource tracker are separate processes below the launched one."""
    titles = plain.titles()
    assert {"sglang::scheduler", "sglang::detokenizer"} < set(titles)
    assert any("multiprocessing.resource_tracker" in title for title in titles)


@pytest.mark.slow
def test_sglangs_own_start_method_gives_the_same_tree(plain: Server, tmp_path: Path) -> None:
    """The lab forks the children to start sooner; spawned as SGLang does, they look the same."""
    with running(launch(NEW, free_port()), tmp_path / "log", OPSCTL_LAB_START="spawn") as server:
        spawned = [title for title in server.titles() if title.startswith("sglang::")]
        assert sorted(spawned) == sorted(t for t in plain.titles() if t.startswith("sglang::"))
        assert len(server.titles()) == len(plain.titles())
        assert_known_answers(server, 2, 8)


@pytest.mark.parametrize("spec_v2", [True, False], ids=["v2", "v1"])
@pytest.mark.parametrize(
    "version", [NEW, pytest.param(OLD, marks=pytest.mark.slow)], ids=["new", "old"]
)
def test_eagle_answers_at_every_level(version: str, spec_v2: bool, tmp_path: Path) -> None:
    """EAGLE-3 gives the known tokens at C=1, 2, 5 and 10, with two tokens a step, fast enough."""
    start = launch(version, free_port(), eagle=True, spec_v2=spec_v2)
    with running(start, tmp_path / "log") as server:
        worker = "EAGLEWorkerV2" if spec_v2 else "EAGLEWorker"
        for concurrency in (1, 2, 5, 10, 1):
            started = time.monotonic()
            answers = assert_known_answers(server, concurrency, 24)
            rate = 24 * concurrency / (time.monotonic() - started)
            assert answers[0]["meta_info"]["spec_accept_length"] == pytest.approx(2.0)  # type: ignore[index]
            if concurrency == 5:
                assert rate >= WANTED_TOKENS_PER_S, f"{worker}: {rate:.0f} tok/s at C=5"


def test_random_weights_give_the_same_tokens_with_and_without_eagle(tmp_path: Path) -> None:
    """With weights that read the KV cache, EAGLE-3 at C=5 says what the plain server says at C=1."""
    plain_start = launch(NEW, free_port(), weights="random")
    with running(plain_start, tmp_path / "plain.log") as server:
        alone = [server.generate(prompt, 16)["output_ids"] for prompt in PROMPTS[:5]]
    assert all(len(set(ids)) > 8 for ids in alone), "the answers are varied"

    with running(
        launch(NEW, free_port(), eagle=True, weights="random"), tmp_path / "log"
    ) as server:
        together = [a["output_ids"] for a in server.generate_many(PROMPTS[:5], 16)]
    assert together == alone


def test_term_ends_it_and_a_killed_scheduler_takes_it_down(tmp_path: Path) -> None:
    """SIGTERM drains and kills itself; SIGKILL of the scheduler ends the main process by SIGKILL."""
    start = launch(NEW, free_port())
    with running(start, tmp_path / "term.log") as server:
        server.process.terminate()
        assert server.process.wait(15) == -signal.SIGKILL
        assert "Gracefully exiting... Remaining number of requests 0." in server.text()
    with running(start, tmp_path / "kill.log") as server:
        os.kill(server.titles()["sglang::scheduler"], signal.SIGKILL)
        assert server.process.wait(10) == -signal.SIGKILL
        assert "crashed with exit code -9. Triggering SIGQUIT" in server.text()


def test_two_ranks_hold_lab_gpu_memory_until_they_die(tmp_path: Path) -> None:
    """Each rank of a tensor-parallel server locks its GPU's memory; the kernel frees it."""
    gpus.create(tmp_path / "gpus", "sglang")
    start = launch(NEW, free_port(), tp=2, hold="0:50000,1:60000")
    folder = tmp_path / "gpus"
    with running(start, tmp_path / "log", NVML_LAB_DIR=str(folder)) as server:
        titles = server.titles()
        held = locks(folder)
        assert held == {
            ("gpu0.mem", titles["sglang::scheduler_TP0"]): 50000,
            ("gpu1.mem", titles["sglang::scheduler_TP1"]): 60000,
        }
        assert_known_answers(server, 2, 8)
    deadline = time.monotonic() + 5
    while locks(folder):
        assert time.monotonic() < deadline, locks(folder)
        time.sleep(0.02)


def test_a_full_lab_gpu_is_sglangs_own_out_of_memory_crash(tmp_path: Path) -> None:
    """Asking for more than the GPU has ends the start with torch's error and exit code 1."""
    gpus.create(tmp_path / "gpus", "sglang")
    start = launch(NEW, free_port(), hold="0:200000")
    folder = str(tmp_path / "gpus")
    with running(start, tmp_path / "log", ready=False, NVML_LAB_DIR=folder) as server:
        assert server.process.wait(120) != 0
        assert "torch.OutOfMemoryError: CUDA out of memory." in server.text()
        assert READY not in server.text()


def test_a_copy_can_be_edited_and_the_edit_is_what_runs(tmp_path: Path) -> None:
    """A copied environment has its own sglang: a changed file changes the server, and only that one."""
    prefix = environment.default_prefix()
    python = copy.copy(prefix / NEW, tmp_path / "copy")
    [edited] = (tmp_path / "copy").glob("lib/python3*/site-packages/sglang/srt/entrypoints")
    source = edited / "http_server.py"
    text = source.read_text()
    assert text.count(READY) == 1
    source.write_text(text.replace(READY, READY + " (edited)"))

    start = launch(NEW, free_port(), python=str(python))
    with running(start, tmp_path / "log") as server:
        server.wait_for(READY + " (edited)", 5)
        assert_known_answers(server, 1, 4)
    assert "(edited)" not in (
        environment.site_packages(prefix / NEW) / "sglang/srt/entrypoints/http_server.py"
    ).read_text(errors="replace")


@pytest.mark.slow
def test_the_incidents_version_answers_plain(tmp_path: Path) -> None:
    """0.5.9 without speculation gives the known tokens."""
    with running(launch(OLD, free_port()), tmp_path / "log") as server:
        assert_known_answers(server, 5, 24)


@pytest.mark.slow
def test_the_incidents_version_does_not_notice_a_killed_scheduler(tmp_path: Path) -> None:
    """0.5.9 has no watchdog: its main process serves on, and a generation never comes back."""
    with running(launch(OLD, free_port()), tmp_path / "log") as server:
        os.kill(server.titles()["sglang::scheduler"], signal.SIGKILL)
        with pytest.raises(TimeoutError):
            server.post("/generate", {"input_ids": [5], "sampling_params": {}}, timeout_s=6)
        assert server.process.poll() is None


def locks(folder: Path) -> dict[tuple[str, int], int]:
    """Return {(file, pid): MiB held} of the GPUs of a folder, from /proc/locks."""
    names = {path.stat().st_ino: path.name for path in folder.glob("gpu*.mem")}
    found: dict[tuple[str, int], int] = {}
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.replace("->", "").split()
        name = names.get(int(words[5].rsplit(":", 1)[1]))
        if words[1] == "POSIX" and name is not None:
            key = (name, int(words[4]))
            found[key] = found.get(key, 0) + int(words[7]) - int(words[6]) + 1
    return found
