"""Do the GPUs compute? A check through the server's own interpreter and torch, in a child with a deadline."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

MARK = "opsctl-compute:"

# Runs in the server's interpreter: one line of JSON before and after each thing that may hang or crash.
PROBE = """\
import json, sys, time
def tell(**what): sys.stdout.write("\\nopsctl-compute:" + json.dumps(what) + "\\n"); sys.stdout.flush()
tell(doing="import")
try:
    import torch
except BaseException as error:
    tell(fatal="torch cannot be imported: %s" % error); sys.exit(0)
wanted = json.loads(sys.argv[1])
device = wanted["device"]
tell(torch=torch.__version__, cuda=torch.version.cuda)
if device == "cuda" and not torch.cuda.is_available():
    tell(fatal="torch sees no CUDA device"); sys.exit(0)
n = wanted["size"]
g = torch.Generator().manual_seed(7)
a = torch.randint(-8, 9, (n, n), generator=g).float()
b = torch.randint(-8, 9, (n, n), generator=g).float()
expected = a @ b  # small integers: exact in float32, so the GPU must give the same bits
def place(i): return "cuda:%d" % i if device == "cuda" else device
count = torch.cuda.device_count() if device == "cuda" else wanted["count"]
tell(count=count)
def ready(where):
    if device == "cuda": torch.cuda.synchronize(where)
bad = set()
for i in wanted["indices"]:
    if i >= count: continue
    tell(doing="compute", index=i)
    began = time.monotonic()
    try:
        where = place(i)
        block = torch.full((wanted["bytes"] // 4,), float(i + 1), device=where)
        ready(where)
        allocated = bool((block == i + 1).all().item())
        got = (a.to(where) @ b.to(where)).cpu()
        ready(where)
        wrong = int((got != expected).sum().item())
        del block
        text = "" if allocated and not wrong else (
            "memory does not hold what was written" if not allocated else
            "%d of %d products are wrong" % (wrong, n * n))
        if text: bad.add(i)
        tell(index=i, ok=not text, error=text, seconds=time.monotonic() - began)
    except BaseException as error:
        bad.add(i)
        tell(index=i, ok=False, error="%s: %s" % (type(error).__name__, str(error)[:300]),
             seconds=time.monotonic() - began)
good = [i for i in wanted["peers"] if i < count and i not in bad]
for one, other in zip(good, good[1:] + good[:1]):
    if one == other: break
    tell(doing="copy", index=one, to=other)
    try:
        there = a.to(place(one)).to(place(other))
        ready(place(other))
        same = bool((there.cpu() == a).all().item())
        tell(copy=[one, other], ok=same, error="" if same else "the copy differs")
    except BaseException as error:
        tell(copy=[one, other], ok=False, error="%s: %s" % (type(error).__name__, str(error)[:300]))
tell(done=True)
"""


def probe(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Run the check once and return what it said until it ended, crashed or hung.

    Request: ``interpreter`` (argv), ``visible`` (UUIDs, in order: they become indices 0, 1, ...), ``indices``
    to compute on, ``peers`` to copy between, ``bytes``, ``size``, ``timeout_s``, ``cwd``, ``env``, and
    ``device`` ("cuda" by default).

    Returns:
        ``events``: the lines, in order; ``ended``: exit, signal or hung; ``code``; ``stderr``.
    """
    wanted = {key: request[key] for key in ("indices", "peers", "bytes", "size")}
    wanted["count"] = len(request["visible"])
    wanted["device"] = request.get("device", "cuda")
    env = dict(os.environ, **(request.get("env") or {}))
    env["CUDA_VISIBLE_DEVICES"] = ",".join(request["visible"])
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    argv = [*request["interpreter"], "-c", PROBE, json.dumps(wanted)]
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=request.get("cwd") or "/",
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise context.Error("interpreter", "%s: %s" % (argv[0], error.strerror)) from error
    out, err, hung = collect(child, request["timeout_s"], context)
    events = []
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            events.append(json.loads(line[len(MARK) :]))
    code = child.returncode
    ended = "hung" if hung else ("signal" if code is not None and code < 0 else "exit")
    tail = err.decode("utf-8", "replace")[-2000:]
    return {"events": events, "ended": ended, "code": code, "stderr": tail}


def collect(
    child: subprocess.Popen[bytes], timeout_s: float, context: Context
) -> tuple[bytes, bytes, bool]:
    """Read both streams until the end or the deadline; then kill the child's group, and do not wait long."""
    assert child.stdout is not None
    assert child.stderr is not None
    deadline = time.monotonic() + timeout_s
    parts = {child.stdout.fileno(): b"", child.stderr.fileno(): b""}
    first, second = parts
    waiting = set(parts)
    while waiting and time.monotonic() < deadline and not context.cancelled.is_set():
        ready, _, _ = select.select(list(waiting), [], [], 0.2)
        for number in ready:
            data = os.read(number, 65536)
            parts[number] += data
            if not data:
                waiting.discard(number)
    hung = bool(waiting)
    try:
        child.wait(0.0 if hung else max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        hung = True
        end_group(child)
    child.stdout.close()
    child.stderr.close()
    return parts[first], parts[second], hung


def end_group(child: subprocess.Popen[bytes]) -> None:
    """KILL the session of the child; one that hangs in the driver is left behind after a second."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(1.0)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass


OPERATIONS = {"probe": probe}
