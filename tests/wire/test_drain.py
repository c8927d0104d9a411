"""Running requests before a stop: waited for, given up in time, never passed over in silence."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import Interrupted
from opsctl.sglang.metrics import running_of_loads
from opsctl.site import Server
from opsctl.steps.stop import StopServer
from tests.wire.stopping import (
    Quiet,
    context,
    free_port,
    is_alive,
    standin_entry,
    standin_server,
    tree_server,
    wait_for,
)

pytestmark = pytest.mark.wire


@pytest.fixture
def port() -> int:
    return free_port()


def post(port: int, tokens: int) -> dict[str, Any]:
    body = {"text": "a", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def running(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/get_load", timeout=10) as reply:
        return sum(int(rank["num_reqs"]) for rank in json.load(reply))


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as reply:
            return bool(reply.status == 200)
    except urllib.error.HTTPError:
        return False


def asked(pool: ThreadPoolExecutor, port: int, tokens: int) -> Future[dict[str, Any]]:
    """Send one request when the server's own warm-up is over; return when the server says that it runs."""
    wait_for(lambda: is_healthy(port))
    answer = pool.submit(post, port, tokens)
    wait_for(lambda: running(port) == 1)
    return answer


def test_running_requests_end_before_the_first_signal(port: int, tmp_path: Path) -> None:
    """With --drain the request is answered in full, then the server ends; KILL first would cut it."""
    with standin_server(port) as pid, ThreadPoolExecutor() as pool:
        answer = asked(pool, port, 200)
        with context(standin_entry(port), tmp_path) as ctx:
            result = StopServer(drain_s=30.0, grace_s=0.1).run(ctx)

        assert answer.result(1)["meta_info"]["completion_tokens"] == 200
        assert not is_alive(pid)
        assert not [one for one in result.findings if one.code == "not-drained"]
        assert isinstance(ctx.reporter, Quiet)
        assert any(line.startswith("drained") for line in ctx.reporter.lines)


def test_a_request_that_does_not_end_is_given_up_and_said(port: int, tmp_path: Path) -> None:
    """After the time for it, the stop goes on; the number that still ran is a finding."""
    with standin_server(port, "--lab-itl-ms", "300") as pid, ThreadPoolExecutor() as pool:
        answer = asked(pool, port, 100)
        with context(standin_entry(port), tmp_path) as ctx:
            result = StopServer(drain_s=1.0, grace_s=0.1).run(ctx)

        assert not is_alive(pid)
        assert "1 request still ran" in next(
            one.text for one in result.findings if one.code == "not-drained"
        )
        assert answer.exception(10) is not None


def test_ctrl_c_while_it_drains_signals_nothing(port: int, tmp_path: Path) -> None:
    """The operator changes their mind: the server and its request go on."""
    with standin_server(port, "--lab-itl-ms", "20") as pid, ThreadPoolExecutor() as pool:
        answer = asked(pool, port, 150)
        with context(standin_entry(port), tmp_path) as ctx:
            threading.Timer(0.3, ctx.cancelled.set).start()
            began = time.monotonic()
            with pytest.raises(Interrupted, match="nothing was signalled"):
                StopServer(drain_s=30.0).run(ctx)

        assert time.monotonic() - began < 20
        assert is_alive(pid)
        assert answer.result(30)["meta_info"]["completion_tokens"] == 150


def test_a_server_that_cannot_be_asked_is_not_waited_for(port: int, tmp_path: Path) -> None:
    """No route tells its load: said, and stopped; nobody believes that it was drained."""
    with tree_server(port) as pid:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        server = Server(host="here", port=port, command=command)
        with context(server, tmp_path) as ctx:
            result = StopServer(drain_s=5.0, grace_s=2.0).run(ctx)

        assert "not-drained" in [one.code for one in result.findings]
        assert not is_alive(pid)


@pytest.mark.parametrize(
    "key", [{"env": "NO_SUCH_KEY_IS_SET"}, {"command": ["printf", "s3cret\\nx"]}]
)
def test_a_key_that_is_not_to_be_had_keeps_no_server_running(
    key: dict[str, Any], port: int, tmp_path: Path
) -> None:
    """Unset, or none that HTTP can carry: said without the key, and the stop goes on."""
    with tree_server(port) as pid:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        server = Server(host="here", port=port, command=command, api_key=key)  # type: ignore[arg-type]
        with context(server, tmp_path) as ctx:
            result = StopServer(drain_s=5.0, grace_s=2.0).run(ctx)

        assert "not-drained" in [one.code for one in result.findings]
        assert "s3cret" not in repr(result)
        assert not is_alive(pid)


@pytest.mark.parametrize(
    "told", [{"num_running_reqs": float("nan")}, [[{"running": 1}]], {"loads": [[[]]]}]
)
def test_a_load_that_is_no_number_is_not_told(told: Any) -> None:
    """NaN is JSON to Python; a server that says so has not said how many run."""
    assert running_of_loads(told) is None
