"""`opsctl smoke` as a process of its own: signals, limits, files, gates."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.schemas import read_document

pytestmark = pytest.mark.wire
SERVER = Path(__file__).with_name("smoke_server.py")
ROOT = Path(__file__).parents[2]

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
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
        assert child.stdout is not None
        child.stdout.close()


def command(state: Path, *words: str, shell: str = "", **env: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "opsctl", *words, "--state", str(state)]
    if shell:
        argv = ["sh", "-c", f'{shell}; exec "$@"', "sh", *argv]
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )


def finish(child: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    out, err = child.communicate(timeout=60)
    return child.returncode, read_document(out), err


def test_ctrl_c_reports_what_was_measured_so_far(serve: Serve, tmp_path: Path) -> None:
    """The running streams may end, the finished levels stay in the report, exit 130."""
    url = serve(ttft_s=0.05, itl_s=0.02)
    child = command(
        tmp_path, "smoke", "--url", url, "--levels", "1,2,4", "--requests", "10", "--json"
    )
    assert child.stderr is not None
    while not child.stderr.readline().startswith("C=1: passed"):
        assert child.poll() is None
    time.sleep(0.5)

    child.send_signal(signal.SIGINT)
    code, document, _ = finish(child)

    assert code == document["exit_code"] == 130
    assert document["data"]["interrupted"]
    assert document["data"]["levels"][0]["outcome"] == "passed"
    assert document["data"]["levels"][-1]["outcome"] == "not-measured"
    assert document["data"]["levels"][-1]["cancelled"] == 0
    assert document["data"]["bracket"] is None
    assert "cut short" in document["findings"][-1]["next"]


def test_client_that_stood_still_does_not_accuse_the_server(serve: Serve, tmp_path: Path) -> None:
    """A suspended laptop sees silence, which is its own: not measured, never hung."""
    url = serve(ttft_s=0.02, itl_s=0.02)
    words = ["smoke", "--url", url, "--levels", "1,2", "--requests", "4", "--stall", "2", "--json"]
    child = command(tmp_path, *words)
    assert child.stderr is not None
    while not child.stderr.readline().startswith("C=2"):
        assert child.poll() is None
    time.sleep(0.2)

    child.send_signal(signal.SIGSTOP)
    time.sleep(4)
    child.send_signal(signal.SIGCONT)
    code, document, _ = finish(child)

    assert code == 75
    assert document["data"]["levels"][1]["outcome"] == "not-measured"
    assert "this client was late" in document["data"]["levels"][1]["reason"]


def test_too_few_descriptors_make_a_level_not_measured(serve: Serve, tmp_path: Path) -> None:
    """The hard limit of this machine is said, with the number that is needed."""
    words = ["smoke", "--url", serve(), "--levels", "1,200", "--tokens", "4", "--json"]
    child = command(tmp_path, *words, shell="ulimit -n 64")

    code, document, _ = finish(child)

    assert code == 75
    assert [level["outcome"] for level in document["data"]["levels"]] == ["passed", "not-measured"]
    assert "64 open files" in document["data"]["levels"][1]["reason"]


def test_low_soft_limit_is_raised(serve: Serve, tmp_path: Path) -> None:
    """A soft limit below the hard one is no obstacle."""
    words = [
        "smoke",
        "--url",
        serve(ttft_s=0.5),
        "--levels",
        "100",
        "--requests",
        "100",
        "--tokens",
        "4",
    ]
    child = command(tmp_path, *words, "--json", shell="ulimit -Sn 64")

    code, document, _ = finish(child)

    assert code == 0
    assert document["data"]["levels"][0]["in_flight"]["peak"] == 100


def test_proxy_variables_are_ignored(serve: Serve, tmp_path: Path) -> None:
    """A proxy of the environment would be measured instead of the server."""
    words = ["smoke", "--url", serve(), "--levels", "1", "--json"]
    nowhere = "http://127.0.0.1:9"
    child = command(tmp_path, *words, http_proxy=nowhere, HTTP_PROXY=nowhere, all_proxy=nowhere)

    code, _, _ = finish(child)

    assert code == 0


def test_gates_files_and_comparison(serve: Serve, tmp_path: Path) -> None:
    """A run is stored, gated, written as JUnit, HTML and records, and compared with an earlier one."""
    url = serve(ttft_s=0.02)
    base = ["smoke", "--url", url, "--levels", "1,4", "--tokens", "8", "--json"]
    _, first, _ = finish(command(tmp_path, *base, "--label", "base"))
    files = [f"--{name}={tmp_path / name}" for name in ("junit", "html", "records")]
    gates = ["--fail-if", "p99_ttft_ms@4 > 1", "--min-ratio", "throughput", "0.2"]
    gated = command(
        tmp_path, *base, *files, *gates, "--against", first["run"], "--reference", first["run"]
    )

    code, document, _ = finish(gated)
    done = command(tmp_path, "compare", first["run"], document["run"], "--json")
    compared_code, compared, _ = finish(done)

    assert code == 70
    assert [finding["code"] for finding in document["findings"]] == ["gate-failed"]
    assert document["data"]["levels"][1]["answers"]["reference"] == "run"
    assert document["data"]["levels"][1]["answers"]["wrong"] == 0
    assert "<testsuites>" in (tmp_path / "junit").read_text()
    assert "<svg" in (tmp_path / "html").read_text()
    records = [json.loads(line) for line in (tmp_path / "records").read_text().splitlines()]
    assert len(records) == 3 + 12
    assert len(records[0]["chunks_s"]) == 8
    assert compared_code == 0
    assert [row["concurrency"] for row in compared["data"]["levels"]] == [1, 4]


def test_full_profile_mixes_shapes_and_climbs_down(serve: Serve, tmp_path: Path) -> None:
    """After the top: one mixed level, then the levels again downwards; `levels` stays the way up."""
    words = ["smoke", "--url", serve(), "--profile", "full", "--levels", "1,4", "--requests", "20"]
    child = command(tmp_path, *words, "--tokens", "8", "--idle", "0.05", "--json")

    code, document, _ = finish(child)

    data = document["data"]
    assert code == 0
    assert [level["concurrency"] for level in data["levels"]] == [1, 4]
    assert [level["concurrency"] for level in data["down"]] == [1]
    assert data["mixed"]["outcome"] == "passed"
    assert data["mixed"]["phase"] == "mixed"


def test_aborts_in_the_middle_are_no_failures(serve: Serve, tmp_path: Path) -> None:
    """A shape that closes its stream on purpose is good when the stream had begun well."""
    words = ["smoke", "--url", serve(), "--levels", "4", "--shapes", "plain,abort,long", "--json"]

    code, document, _ = finish(command(tmp_path, *words))

    assert code == 0
    assert document["data"]["levels"][0]["ok"] == 12


def test_tls_with_an_untrusted_certificate(tmp_path: Path) -> None:
    """An unknown authority is explained; --insecure goes on, and a CA file does."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / "key"),
         "-out", str(tmp_path / "cert")],
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    plan = {"certificate": [str(tmp_path / "cert"), str(tmp_path / "key")]}
    assert ssl.HAS_TLSv1_2
    with subprocess.Popen(
        [sys.executable, str(SERVER), json.dumps(plan)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"https://127.0.0.1:{int(server.stdout.readline())}"
        words = ["smoke", "--url", url, "--levels", "1", "--json"]
        refused, document, _ = finish(command(tmp_path, *words))
        insecure, _, _ = finish(command(tmp_path, *words, "--insecure"))
        trusted, _, _ = finish(command(tmp_path, *words, "--ca-file", str(tmp_path / "cert")))
        server.kill()

    assert refused == 30
    assert "not trusted" in document["findings"][0]["text"]
    assert (insecure, trusted) == (0, 0)


def test_bisection_restarts_by_a_command_until_it_is_exact(tmp_path: Path) -> None:
    """The first bad level is found between 2 and 10, and the server is left alive."""
    from tests.wire.ground import free_port

    port = free_port()
    plan = json.dumps({"port": port, "fault": "die", "at": 7})
    starter = tmp_path / "start.sh"
    starter.write_text(
        f"{sys.executable} {SERVER} '{plan}' >/dev/null 2>&1 </dev/null &\necho $! > {tmp_path}/pid\n"
    )
    subprocess.run(["sh", str(starter)], check=True, timeout=10)
    time.sleep(0.5)
    words = ["smoke", "--url", f"http://127.0.0.1:{port}", "--levels", "1,2,10", "--json", "--yes"]

    child = command(tmp_path, *words, "--bisect", "--restart-command", f"sh {starter}")
    code, document, _ = finish(child)

    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert code == 60
    assert document["data"]["bracket"] == {"last_good": 6, "first_bad": 7}
    assert document["data"]["bisection"]["deterministic"] is True
