"""Real SGLang on the lab's hosts: an editable copy there, and how to start it."""

from __future__ import annotations

from pathlib import Path

from tests.lab.fixture import Lab
from tests.lab.sglang import environment
from tests.lab.sglang.launch import Launch, launch

COPY_TIMEOUT_S = 120.0  # 1 s on a calm machine


def install(lab: Lab, host: str, version: str) -> str:
    """Put an editable copy of this version on a host, unless it is there; return its Python.

    The copy's ``sglang`` is the host's own: patches go there, and the cache stays as it was.
    """
    environment.build(environment.default_prefix(), version, print)
    home = f"/opt/sglang-{version}"
    python = f"{home}/bin/python"
    if lab.on(host, ["/usr/bin/test", "-x", python]).exit_code != 0:
        built = environment.default_prefix() / version
        words = ["/usr/bin/python3", "/opt/lab-src/sglang/copy.py", str(built), home]
        done = lab.on(host, words, timeout_s=COPY_TIMEOUT_S)
        if done.exit_code != 0:
            raise AssertionError(f"copying sglang to {host}: {done.stderr}")
    return python


def uninstall(lab: Lab, host: str, version: str) -> None:
    """Remove the copy, and with it every edit."""
    lab.on(host, ["/bin/rm", "-rf", f"/opt/sglang-{version}"], timeout_s=COPY_TIMEOUT_S)


def launch_on(
    lab: Lab,
    host: str,
    version: str,
    port: int,
    *,
    eagle: bool = False,
    spec_v2: bool = True,
    hold: str = "",
) -> Launch:
    """Return how to start this version on a host, from its own copy, reachable from the lab."""
    return launch(
        version,
        port,
        eagle=eagle,
        spec_v2=spec_v2,
        hold=hold,
        host="0.0.0.0",
        python=install(lab, host, version),
        prefix=Path(environment.default_prefix()),
    )
