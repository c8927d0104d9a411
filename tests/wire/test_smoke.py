"""`opsctl smoke --url` against a real server process that misbehaves in a known way."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import run
from tests.schemas import read_document

pytestmark = pytest.mark.wire
SERVER = Path(__file__).with_name("smoke_server.py")
SGLANG = {"model_path": "/models/m", "tp_size": 1, "version": "0.5.12"}

Serve = Callable[..., str]
Smoke = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers in child processes; all are gone afterwards."""
    children: list[subprocess.Popen[str]] = []

    def start(**plan: Any) -> str:
        child = subprocess.Popen(
            [sys.executable, str(SERVER), json.dumps(plan)], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout is not None
        return f"http://127.0.0.1:{int(child.stdout.readline())}"

    yield start
    for child in children:
        child.kill()
        child.wait(timeout=10)
        if child.stdout is not None:
            child.stdout.close()


@pytest.fixture
def smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Smoke:
    """Run the command and return its exit code and its document."""

    def call(url: str, *options: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        words = ["smoke", "--url", url, "--state", str(tmp_path), "--idle", "0", "--json", *options]
        code = run(words)
        return code, read_document(capsys.readouterr().out)

    return call


def levels_of(document: dict[str, Any]) -> list[tuple[int, str]]:
    return [(level["concurrency"], level["outcome"]) for level in document["data"]["levels"]]


@pytest.mark.parametrize("api", ["generate", "chat", "completions"])
def test_healthy_server_passes_every_level_on_each_route(
    serve: Serve, smoke: Smoke, api: str
) -> None:
    """A server that works passes; tokens come from usage, the concurrency is delivered."""
    url = serve(routes=[api], model="m")

    code, document = smoke(url, "--levels", "1,2,5", "--tokens", "16")

    assert code == 0
    assert document["schema"] == "opsctl.smoke/1"
    assert document["data"]["api"] == api
    assert levels_of(document) == [(1, "passed"), (2, "passed"), (5, "passed")]
    last = document["data"]["levels"][-1]
    assert last["requests"] == last["ok"] == 15
    assert last["tokens"] == 15 * 16
    assert last["in_flight"]["peak"] == 5
    assert last["output_tok_s"] > 0
    assert document["data"]["bracket"] is None


@pytest.mark.parametrize("api", ["generate", "chat"])
def test_server_that_dies_at_four_is_bracketed(serve: Serve, smoke: Smoke, api: str) -> None:
    """A SIGKILL of the server in the level is a crash, and no further level is run."""
    url = serve(routes=[api], fault="die", at=4)

    code, document = smoke(url, "--levels", "1,2,5,10")

    assert code == 60
    assert levels_of(document) == [(1, "passed"), (2, "passed"), (5, "crashed")]
    assert document["data"]["bracket"] == {"last_good": 2, "first_bad": 5}
    assert document["data"]["levels"][-1]["failed"] == 5


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("cut", "stream-cut"),
        ("clean-end", "stream-cut"),
        ("error", "stream-error"),
        ("abort", "stream-abort"),
        ("500", "server-error"),
        ("503", "server-busy"),
        ("mush", "mush"),
        ("short", "wrong-length"),
    ],
)
@pytest.mark.parametrize("api", ["generate", "chat"])
def test_bad_answers_of_a_living_server_fail_the_level(
    serve: Serve, smoke: Smoke, fault: str, kind: str, api: str
) -> None:
    """Each way to answer badly fails the level by name; the server lives, so it is no crash."""
    url = serve(routes=[api], fault=fault, at=4)

    code, document = smoke(url, "--levels", "1,2,5", "--tokens", "16")

    assert code == 70
    assert levels_of(document) == [(1, "passed"), (2, "passed"), (5, "failed")]
    assert kind in document["data"]["levels"][-1]["errors"]
    assert document["data"]["bracket"] == {"last_good": 2, "first_bad": 5}


def test_wrong_but_fluent_answers_fail_the_level(serve: Serve, smoke: Smoke) -> None:
    """The same prompts must give the same tokens under load."""
    url = serve(fault="wrong", at=4)

    code, document = smoke(url, "--levels", "1,2,5")

    assert code == 70
    assert document["data"]["levels"][-1]["outcome"] == "failed"
    assert document["data"]["levels"][-1]["answers"]["wrong"] > 1


def test_server_that_samples_is_said_to_and_not_blamed(serve: Serve, smoke: Smoke) -> None:
    """Answers that differ without any load cannot be compared."""
    url = serve(random=True)

    code, document = smoke(url, "--levels", "1,2")

    assert code == 0
    assert [finding["code"] for finding in document["findings"]] == ["not-deterministic"]


@pytest.mark.parametrize("fault", ["hang", "freeze"])
def test_silence_while_requests_run_is_a_hang(serve: Serve, smoke: Smoke, fault: str) -> None:
    """No token for the stated time, and a new request unanswered: hung, exit 60."""
    url = serve(fault=fault, at=4)

    code, document = smoke(url, "--levels", "1,5,10", "--stall", "0.5")

    assert code == 60
    assert levels_of(document) == [(1, "passed"), (5, "hung")]
    assert "no token for" in document["data"]["levels"][-1]["reason"]


def test_wrong_requests_are_not_measured(serve: Serve, smoke: Smoke) -> None:
    """A 400 is the client's doing: nothing is claimed about the server."""
    url = serve(fault="400", at=1)

    code, document = smoke(url, "--levels", "1,2")

    assert code == 75
    assert levels_of(document) == [(1, "not-measured")]
    assert document["data"]["bracket"] is None


@pytest.mark.parametrize("plan", [{"live": 3}, {"live_metrics": 2.0}])
def test_server_in_use_is_refused_without_a_word(
    serve: Serve, smoke: Smoke, plan: dict[str, Any]
) -> None:
    """A server that answers others is not loaded unless somebody says so."""
    url = serve(**plan)

    code, document = smoke(url, "--levels", "1")
    allowed, _ = smoke(url, "--levels", "1", "--allow-live")

    assert code == 50
    assert document["findings"][0]["code"] == "live-server"
    assert allowed == 0


def test_idle_server_with_a_load_route_is_not_refused(serve: Serve, smoke: Smoke) -> None:
    """Zero others is no reason to refuse."""
    code, _ = smoke(serve(live=0), "--levels", "1")

    assert code == 0


def test_skip_tokenizer_server_is_sent_token_ids(serve: Serve, smoke: Smoke) -> None:
    """A server without a tokenizer takes ids and answers with ids."""
    url = serve(ids=True, info={**SGLANG, "skip_tokenizer_init": True})

    code, document = smoke(url, "--levels", "1,2")

    assert code == 0
    assert document["data"]["levels"][-1]["answers"]["exact"] > 0


def test_missing_or_wrong_key_is_one_clear_sentence(
    serve: Serve, smoke: Smoke, tmp_path: Path
) -> None:
    """401 names the key, and how to give it; the right one passes."""
    url = serve(key="secret")
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "other").write_text("another\n")

    missing, document = smoke(url, "--levels", "1")
    given, _ = smoke(url, "--levels", "1", "--api-key-file", str(tmp_path / "key"))

    wrong, refusal = smoke(url, "--levels", "1", "--api-key-file", str(tmp_path / "other"))

    assert missing == wrong == 2
    assert "wants an API key" in document["findings"][0]["text"]
    assert "--api-key-file" in document["findings"][0]["next"]
    assert "refuses the API key" in refusal["findings"][0]["text"]
    assert "another" not in json.dumps(refusal)
    assert given == 0


def test_unknown_model_is_one_clear_sentence(serve: Serve, smoke: Smoke) -> None:
    """404 for the model names it."""
    url = serve(routes=["chat"], model="real")

    code, document = smoke(url, "--levels", "1", "--model", "other")

    assert code == 2
    assert "'other'" in document["findings"][0]["text"]


def test_nothing_listens_is_a_transport_error(smoke: Smoke) -> None:
    """A refused connection before the first request is exit 30, not a crash."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    code, document = smoke(f"http://127.0.0.1:{port}", "--levels", "1")

    assert code == 30
    assert "nothing listens" in document["findings"][0]["text"]


def test_https_to_a_plain_port_says_so(
    serve: Serve, smoke: Smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS against a plain port that never answers the handshake is explained."""
    monkeypatch.setattr("opsctl.sglang.client.CONNECT_TIMEOUT_S", 0.3)
    url = serve().replace("http:", "https:")

    code, document = smoke(url, "--levels", "1")

    assert code == 30
    assert document["findings"][0]["code"] == "tls"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--levels", "5,2"], "ascend"),
        (["--levels", "0"], "lowest is 1"),
        (["--levels", "1,x"], "not a number"),
        (["--levels", "1", "--prompts", "missing.jsonl"], "cannot be read"),
    ],
)
def test_bad_input_is_one_clear_sentence(smoke: Smoke, options: list[str], words: str) -> None:
    """Wrong options are usage errors before anything is sent."""
    code, document = smoke("http://127.0.0.1:9", *options)

    assert code == 2
    assert words in document["findings"][0]["text"]


def test_known_times_are_measured_per_token_and_per_chunk(serve: Serve, smoke: Smoke) -> None:
    """Four tokens per chunk of 20 ms: 20 ms between chunks, 5 ms per token, 100 ms to the first."""
    url = serve(ttft_s=0.1, itl_s=0.02, per_chunk=4)

    _, document = smoke(url, "--levels", "8", "--tokens", "32", "--requests", "16")

    level = document["data"]["levels"][0]
    # the server keeps to its plan, so a busy machine moves single gaps and not their mean
    assert level["chunk_gap_ms"]["mean"] == pytest.approx(20, abs=4)
    assert level["itl_ms"]["mean"] == pytest.approx(5, abs=1)
    assert level["tpot_ms"]["mean"] == pytest.approx(4.5, abs=1)  # 7 gaps of 20 ms over 31 tokens
    assert 100 <= level["ttft_ms"]["min"] < 120
    assert level["tokens_per_chunk"] == 4


def test_crash_without_a_log_is_told_from_outside(serve: Serve, smoke: Smoke) -> None:
    """--url without --log: the bracket, what the client saw, and where to give the log."""
    url = serve(fault="die", at=4)

    code, document = smoke(url, "--levels", "1,2,5")

    diagnosis = document["data"]["diagnosis"]
    assert code == 60
    assert diagnosis["category"] == "unknown"
    assert "C=2 was good, C=5 is the first bad level" in diagnosis["explanation"]
    assert "--log FILE" in diagnosis["next"][0]
