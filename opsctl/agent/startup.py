"""What happens before an agent's first frame: noise, and the ways in which it does not come up."""

from __future__ import annotations

import re
import time

from opsctl.agent import boot
from opsctl.errors import AgentError, OpsctlError, TransportError
from opsctl.transport.base import Channel, Transport

MAX_NOISE_BYTES = 1 << 20


class NoMarkerError(AgentError):
    """The channel ended, or time was up, before the agent's marker line was seen."""

    def __init__(self, noise: bytes, waited_s: float | None) -> None:
        what = f"within {waited_s:g} s" if waited_s is not None else "before the channel ended"
        super().__init__(f"no agent answered {what}", code="no-agent")
        self.noise = noise
        self.waited_s = waited_s


def write_source(channel: Channel) -> None:
    """Send the agent's source; a command that ends before it reads has said why, which is read next."""
    try:
        channel.write(boot.core_payload())
    except TransportError:
        pass


def read_marker(channel: Channel, marker: str, timeout_s: float) -> bytes:
    """Read up to the marker line and return what followed it; what came before is noise.

    Raises:
        NoMarkerError: with the noise, which often names the reason.
    """
    line = f"\n{marker}\n".encode()
    deadline = time.monotonic() + timeout_s
    seen = b""
    while True:
        data = channel.read(max(0.0, deadline - time.monotonic()))
        if data is None or len(seen) > MAX_NOISE_BYTES:
            raise NoMarkerError(seen, timeout_s)
        if data == b"":
            raise NoMarkerError(seen, None)
        seen += data
        if line in seen:
            return seen.partition(line)[2]


def explain_start(transport: Transport, channel: Channel, error: OpsctlError) -> OpsctlError:
    """Return the error that says why no agent came up: the way's own, Python's, or the shell's."""
    timed_out = isinstance(error, NoMarkerError) and error.waited_s is not None
    code = channel.exit_code(0.0 if timed_out else 1.0)
    stderr = channel.stderr_tail()
    refusal = transport.explain(code, stderr)
    if refusal is not None:
        return refusal
    name = transport.name
    text = stderr.decode("utf-8", "replace")
    found = re.search(r"opsctl-agent: ([a-z-]+): (.*)", text)
    if found is not None:
        return _known_failure(name, found[1], found[2])
    if timed_out:
        return AgentError(
            f"{name}: {error.message}",
            next_step="is the host overloaded, its disk hung, or does a login script wait for input?",
            code="agent-start-timeout",
            subject=name,
        )
    noise = error.noise.decode("utf-8", "replace") if isinstance(error, NoMarkerError) else ""
    said = (text.strip() or noise.strip() or error.message).splitlines()[-1][:300]
    exit_text = f" (exit {code})" if code is not None else ""
    return AgentError(
        f"{name}: the agent did not start{exit_text}: {said}",
        next_step="look at what a plain command prints there, e.g. `true`: it must print nothing",
        code="agent-start",
        subject=name,
    )


def _known_failure(name: str, kind: str, detail: str) -> AgentError:
    steps = {
        "no-python": (
            "no Python 3 was found there",
            "install python3 (3.8 or newer), e.g. apt-get install python3-minimal",
        ),
        "old-python": (
            f"found only Python {detail}; needed is 3.8 or newer",
            "install a newer python3 beside it, e.g. /usr/local/bin/python3",
        ),
        "cut-source": (
            f"the agent's source arrived only in part ({detail})",
            "run it again; if it stays, the connection is bad",
        ),
        "stdin-eaten": (
            f"a login script there reads stdin, so the agent's source was lost ({detail})",
            "make the script read from /dev/null, or skip it for non-interactive shells",
        ),
    }
    text, step = steps.get(kind, (f"{kind}: {detail}", "look on the host"))
    return AgentError(f"{name}: {text}", next_step=step, code=kind, subject=name)
