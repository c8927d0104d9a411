"""`opsctl smoke --from host`: the server's host sends, everything else is judged as from here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.client import RemoteAgent, connect
from opsctl.cli import run
from opsctl.sglang.endpoint import Endpoint
from opsctl.smoke.host_load import HostLoad, open_host_load
from opsctl.smoke.load import Limits, Sign
from opsctl.smoke.run import Options, SmokeReport, run_smoke
from opsctl.transport.local import LocalTransport
from tests.wire.ground import make_ground

pytestmark = pytest.mark.wire
SERVER = Path(__file__).with_name("smoke_server.py")
Serve = Callable[..., int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    children: list[subprocess.Popen[str]] = []

    def start(**plan: Any) -> int:
        child = subprocess.Popen(
            [sys.executable, str(SERVER), json.dumps(plan)], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout is not None
        return int(child.stdout.readline())

    yield start
    for child in children:
        child.kill()
        child.wait(timeout=10)
        assert child.stdout is not None
        child.stdout.close()


@pytest.fixture
def agent() -> Iterator[RemoteAgent]:
    with connect(LocalTransport()) as started:
        yield started


def smoke(port: int, agent: RemoteAgent | None, **options: Any) -> SmokeReport:
    endpoint = Endpoint("127.0.0.1", port)
    load = None if agent is None else HostLoad(agent, "127.0.0.1", port)
    given: dict[str, Any] = {"levels": (1, 2, 5), "idle_s": 0.0, **options}
    return run_smoke(Options(endpoint, **given), load=load)


def verdicts(report: SmokeReport) -> list[tuple[Any, ...]]:
    return [
        (level.concurrency, level.outcome.value, level.tokens, set(level.errors))
        for level in report.levels
    ]


def test_the_site_says_who_sends_for_every_smoke_of_a_server(tmp_path: Path) -> None:
    """`smoke.from`: restart's own smoke and `opsctl smoke` take it; --from goes before it."""
    with make_ground(tmp_path) as ground:
        ground.write_site(smoke={"levels": [1, 2], "requests": 2, "tokens": 4, "from": "host"})

        restarted = ground.json("restart", "one", "--yes")
        smoked = ground.json("smoke", "one")
        other = ground.json("smoke", "one", "--from", "tunnel")

    assert restarted["exit_code"] == smoked["exit_code"] == other["exit_code"] == 0
    found = [
        body["load"]["from"] for body in (restarted["data"]["smoke"], smoked["data"], other["data"])
    ]
    assert found == ["host", "host", "tunnel"]


@pytest.mark.parametrize("api", ["generate", "chat", "completions"])
def test_healthy_server_passes_with_the_same_answers(
    serve: Serve, agent: RemoteAgent, api: str
) -> None:
    """The same tokens and answers as from here, on each route; four tokens a chunk change nothing."""
    port = serve(per_chunk=4)

    there, here = smoke(port, agent, api=api), smoke(port, None, api=api)

    assert there.outcome == here.outcome == "passed"
    assert verdicts(there) == verdicts(here)
    assert there.answers == here.answers
    assert there.load["from"] == "host"
    assert there.load["clock_error_ms"] < 100


@pytest.mark.parametrize(
    "fault", ["die", "cut", "clean-end", "error", "500", "503", "400", "mush", "short", "wrong"]
)
def test_every_fault_is_judged_as_from_here(serve: Serve, agent: RemoteAgent, fault: str) -> None:
    """Dead, cut, wrong: the same outcome and the same kinds of errors at the same level."""
    plan = {"fault": fault, "at": 4}

    there, here = smoke(serve(**plan), agent), smoke(serve(**plan), None)

    assert there.outcome == here.outcome != "passed"
    assert there.bracket == here.bracket
    assert set(there.levels[-1].errors) == set(here.levels[-1].errors)


def test_hang_is_seen_there(serve: Serve, agent: RemoteAgent) -> None:
    """Silence is measured where the requests run."""
    report = smoke(serve(fault="freeze", at=4), agent, stall_s=0.6, startup_s=2.0)

    assert report.outcome == "hung"
    assert "no token for" in report.levels[-1].reason


def test_times_are_on_this_machines_clock(serve: Serve, agent: RemoteAgent) -> None:
    """Sent after the start and ended before the end of the run, as this process saw them."""
    before = time.monotonic()
    requests: list[Any] = []
    port = serve(ttft_s=0.05, itl_s=0.002)
    options = Options(Endpoint("127.0.0.1", port), levels=(4,), idle_s=0.0)

    def keep(kind: str, payload: dict[str, Any]) -> None:
        if kind == "level-end":
            requests.extend(payload["requests"])

    report = run_smoke(options, on_event=keep, load=HostLoad(agent, "127.0.0.1", port))

    assert len(requests) == 12
    assert all(before < one.sent_s < one.first_s < one.end_s < time.monotonic() for one in requests)
    assert report.levels[0].ttft_ms is not None
    assert 50 <= report.levels[0].ttft_ms.p50 < 150
    assert report.levels[0].client["lag_ms"] is not None


def test_least_duration_is_fed_with_fresh_requests(serve: Serve, agent: RemoteAgent) -> None:
    """--seconds goes on past the first requests; each prompt is sent once, as from here."""
    report = smoke(serve(), agent, levels=(4,), seconds=1.5, tokens=4, requests=4)

    level = report.levels[0]
    assert level.outcome.value == "passed", level.reason
    assert level.seconds > 1.4
    assert level.requests > 40


def test_sign_of_death_stops_the_sending_there(serve: Serve, agent: RemoteAgent) -> None:
    """What the watch sees here ends the level there at once, without an abort wave."""
    import asyncio

    from opsctl.smoke.load import Job

    port = serve(ttft_s=0.02, itl_s=0.02)
    load = HostLoad(agent, "127.0.0.1", port)
    body = json.dumps({"text": "x", "sampling_params": {"max_new_tokens": 20}}).encode()
    request = Endpoint("127.0.0.1", port).request("POST", "/generate", body)
    level = load.level(
        "x", 4, 400, lambda _: Job(None, request, 20),
        limits=Limits(), min_seconds=0.0, on_tick=lambda raw, told: None,
    )  # fmt: skip

    async def drive() -> float:
        task = asyncio.create_task(level.run())
        await asyncio.sleep(0.8)
        level.trouble(Sign("process", time.monotonic(), "a scheduler ended"))
        begun = time.monotonic()
        await task
        return time.monotonic() - begun

    seconds = asyncio.run(drive())

    assert seconds < 5
    assert level.raw.sign is not None
    assert level.raw.sign.detail == "a scheduler ended"
    assert 0 < len(level.raw.exchanges) < 400
    assert all(one.ended == "complete" for one in level.raw.exchanges)


def test_lost_way_makes_the_level_not_measured_and_leaves_nothing(serve: Serve) -> None:
    """The agent ends with its connection; its streams end too, and the server is not accused."""
    port = serve(ttft_s=0.05, itl_s=0.05)
    with open_host_load(LocalTransport(), "127.0.0.1", port, None) as load:
        pid = load.agent.hello["pid"]  # type: ignore[attr-defined]
        threading.Timer(1.5, load.agent.close).start()  # type: ignore[attr-defined]
        options = Options(Endpoint("127.0.0.1", port), levels=(4,), requests=200, idle_s=0.0)
        report = run_smoke(options, load=load)

    assert report.outcome == "not-measured"
    assert "load generator on the server's host was lost" in report.levels[-1].reason
    deadline = time.monotonic() + 15
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def test_too_few_descriptors_there_are_said(serve: Serve) -> None:
    """The hard limit of the host is named as the host's."""

    class Small(LocalTransport):
        def open(self, argv):  # type: ignore[no-untyped-def]
            return super().open(["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *argv])

    port = serve()
    with open_host_load(Small(), "127.0.0.1", port, None) as load:
        options = Options(Endpoint("127.0.0.1", port), levels=(1, 100), idle_s=0.0, tokens=4)
        report = run_smoke(options, load=load)

    assert [level.outcome.value for level in report.levels] == ["passed", "not-measured"]
    assert "the server's host allows 40 open files" in report.levels[-1].reason


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_it_runs_on_old_and_new_pythons(serve: Serve, version: str) -> None:
    """The standard library of 3.8 is enough; nothing is installed there."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} here")
    with connect(LocalTransport(), interpreter=str(found[0])) as agent:
        report = smoke(serve(fault="die", at=4), agent)

        assert report.load["python"].startswith(version)
        assert report.bracket == {"last_good": 2, "first_bad": 5}
        assert report.outcome == "crashed"


def site(tmp_path: Path, port: int, **server: Any) -> list[str]:
    entry = {"host": "here", "port": port, "command": ["/bin/true"], **server}
    body = {"hosts": {"here": {"local": True}}, "servers": {"s": entry}}
    path = tmp_path / "opsctl.yaml"
    path.write_text(json.dumps(body))
    return ["--site", str(path), "--state", str(tmp_path / "state"), "--json"]


def test_command_says_who_sent(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--from host` of a server of the site: measured there, and the document says so."""
    words = site(tmp_path, serve())

    code = run(["smoke", "s", "--levels", "1,2", "--idle", "0", "--from", "host", *words])

    document = json.loads(capsys.readouterr().out)
    assert code == 0, document["findings"]
    assert document["data"]["load"]["from"] == "host"
    assert [level["outcome"] for level in document["data"]["levels"]] == ["passed", "passed"]


def test_url_cannot_be_sent_from_its_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A URL names no host that we could enter: a usage error before anything is sent."""
    code = run(["smoke", "--url", "http://127.0.0.1:9", "--from", "host", "--state", str(tmp_path)])

    assert code == 2
    assert "--from tunnel and --from host need a server" in capsys.readouterr().err
