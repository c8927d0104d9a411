"""The preflight refuses what is seen to be broken in a container, and only tells what is inferred."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.errors import TransportError
from opsctl.output import Finding
from opsctl.steps import passthrough


def finding(code: str) -> Finding:
    return Finding(code, "x", code)


def context(container: str | None = "129", **server: Any) -> Any:
    plain = {
        "command": None,
        "args": {},
        "gpus": SimpleNamespace(expect=8),
        "host": "ct129",
        **server,
    }
    entry = SimpleNamespace(**plain)
    session = SimpleNamespace(container=container, server=entry)
    return SimpleNamespace(session=session, server=entry, server_name="glm5")


@pytest.mark.parametrize(
    "code",
    [
        *("module-not-loaded", "uvm-not-loaded", "uvm-no-device", "driver-mismatch"),
        *("device-stale", "device-is-a-file", "device-missing-inside"),
    ],
)
def test_what_would_kill_the_new_server_refuses(code: str) -> None:
    """The running server has its devices open; the next one would not get them."""
    verdict = passthrough.judge((finding(code),), (), expects=False)

    assert [item.code for item in verdict.problems] == [code]
    assert verdict.exit_code == 20


@pytest.mark.parametrize(
    "code",
    ["device-not-allowed", "device-not-passed", "device-no-access", "driver-library-missing"],
)
def test_what_is_only_inferred_is_told(code: str) -> None:
    """A rule in an included file, a library in a place of its own: no refusal at 3 a.m. for a guess."""
    verdict = passthrough.judge((finding(code),), (finding("shm-small"),), expects=True)

    assert verdict.exit_code == 0
    assert [item.code for item in verdict.warnings] == [code, "shm-small"]


def test_no_gpu_refuses_only_where_gpus_are_expected() -> None:
    """A server that computes on the CPU may live in a container without any."""
    assert passthrough.judge((finding("no-gpu-passed"),), (), expects=True).exit_code == 20
    assert passthrough.judge((finding("no-gpu-passed"),), (), expects=False).exit_code == 0


@pytest.mark.parametrize(
    "ctx",
    [
        context(None),
        context(args={"device": "cpu"}),
        context(command=["/bin/x"], gpus=SimpleNamespace(expect=None)),
    ],
    ids=["no container", "on the CPU", "another program"],
)
def test_nothing_is_looked_at_where_it_does_not_matter(ctx: Any) -> None:
    """No call is made: the session of this test has no hosts."""
    assert passthrough.look_at_passthrough(ctx) == passthrough.NOTHING


def test_what_could_not_be_looked_at_warns() -> None:
    """A token that may not read the configuration does not stop a restart, and is not called fine."""
    ctx = context()

    class Hosts:
        @property
        def site(self) -> Any:
            raise TransportError("pve1: no answer", next_step="look")

    ctx.session.hosts = Hosts()
    verdict = passthrough.look_at_passthrough(ctx)

    assert [item.code for item in verdict.warnings] == ["passthrough-unknown"]
    assert verdict.exit_code == 0
