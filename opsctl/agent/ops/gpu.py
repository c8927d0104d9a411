"""GPUs: NVML in a child process with a deadline per call, the kernel module's version, and Xid lines."""

from __future__ import annotations

import errno
import os
import time

from opsctl.agent.ops import nvml_child, procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

READ_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.02
MAX_XIDS = 50


def read(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the fields of facts.GpuReport.

    Request: ``timeout_s`` for NVML's answer; ``xids`` false leaves the kernel log unread.
    """
    found = nvml_child.ask(context, ("read",), request.get("timeout_s", READ_TIMEOUT_S))
    module = module_version(procfs.read("/proc/driver/nvidia/version"))
    library = found.pop("library_version", None)
    if found["state"] == "mismatch":
        found["detail"] = "%s: library %s, kernel module %s" % (
            found["detail"],
            library or "unknown",
            module or "unknown",
        )
    name_lost_gpus(found["gpus"])
    return {
        "driver_version": None,
        "cuda_version": None,
        **found,
        "kernel_module_version": module,
        "xids": xids() if request.get("xids", True) else None,
    }


def links(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return ``persistence`` by UUID and ``peers`` by pair; ``state`` and ``detail`` as in ``read``."""
    found = nvml_child.ask(context, ("links",), request.get("timeout_s", READ_TIMEOUT_S))
    return {
        "state": found["state"],
        "detail": found["detail"],
        "persistence": found.get("persistence", {}),
        "peers": found.get("peers", []),
    }


def module_version(data: bytes | None) -> str | None:
    """Return the version in /proc/driver/nvidia/version: the first word of digits and dots."""
    first = (data or b"").partition(b"\n")[0]
    for word in procfs.text(first).split():
        if "." in word and all(part.isdigit() for part in word.split(".")):
            return word
    return None


def name_lost_gpus(gpus: list[dict[str, Any]]) -> None:
    """Give a GPU whose UUID NVML would not tell the one that is left over in /proc, where that is clear."""
    nameless = [gpu for gpu in gpus if gpu["uuid"].startswith("unknown:")]
    if len(nameless) != 1:
        return
    try:
        folders = os.listdir("/proc/driver/nvidia/gpus")
    except OSError:
        return
    known = {gpu["uuid"] for gpu in gpus}
    left = []
    for folder in folders:
        data = procfs.read("/proc/driver/nvidia/gpus/%s/information" % folder) or b""
        for line in procfs.text(data).splitlines():
            name, _, value = line.partition(":")
            uuid = value.strip()
            if name.strip() == "GPU UUID" and "?" not in uuid and uuid not in known:
                left.append(uuid)
    if len(left) == 1:
        nameless[0]["uuid"] = left[0]


def xids() -> list[str] | None:
    """Return the newest Xid lines of the kernel log since boot, None when it is not readable.

    Source: Documentation/ABI/testing/dev-kmsg: one record per read, "prio,sequence,microseconds,flags;text".
    """
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found: list[str] = []
    try:
        while True:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                return found[-MAX_XIDS:]
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: go on with the next
                    continue
                return None
            if b"Xid" in record:
                head, _, line = record.partition(b";")
                seconds = int(head.split(b",")[2]) / 1e6
                found.append("[%.3f] %s" % (seconds, procfs.text(line).splitlines()[0]))
    finally:
        os.close(fd)


def poll(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Read memory until every GPU is at or below its limit and holds no compute process, or time is up.

    Request: ``limits`` (UUID -> bytes), ``timeout_s``, ``interval_s``, ``call_timeout_s``.

    Events:
        one per GPU and change: ``uuid``, ``used_bytes``, ``reserved_bytes``, ``memory_version``,
        ``processes``, ``error``, ``free``, ``clock_s``, ``elapsed_s``.

    Returns:
        ``outcome``: free, deadline, cancelled, or unreadable (then ``state`` and ``detail`` as in ``read``);
        ``gpus``: the last event of each UUID; ``free_s``: UUID -> seconds after which it was and stayed free.
    """
    limits = request["limits"]
    began = time.monotonic()
    deadline = began + request["timeout_s"]
    last: dict[str, dict[str, Any]] = {}
    free_s: dict[str, float] = {}
    outcome, state, detail = "deadline", "ok", None
    while True:
        found = nvml_child.ask(
            context, ("memory", list(limits)), request.get("call_timeout_s", READ_TIMEOUT_S)
        )
        if found["state"] != "ok":
            outcome, state, detail = "unreadable", found["state"], found["detail"]
            break
        elapsed_s = time.monotonic() - began
        for uuid, gpu in found["gpus"].items():
            gpu["free"] = is_free(gpu, limits[uuid])
            if gpu["free"]:
                free_s.setdefault(uuid, elapsed_s)
            else:
                free_s.pop(uuid, None)
            if uuid not in last or any(last[uuid][key] != gpu[key] for key in gpu):
                last[uuid] = dict(gpu, uuid=uuid, clock_s=time.time(), elapsed_s=elapsed_s)
                context.emit(last[uuid])
        if len(free_s) == len(limits):
            outcome = "free"
            break
        if context.cancelled.wait(request.get("interval_s", POLL_INTERVAL_S)):
            outcome = "cancelled"
            break
        if time.monotonic() >= deadline:
            break
    return {
        "outcome": outcome,
        "state": state,
        "detail": detail,
        "gpus": list(last.values()),
        "free_s": free_s,
        "elapsed_s": time.monotonic() - began,
    }


def is_free(gpu: dict[str, Any], limit_bytes: int) -> bool:
    """Tell whether the client's condition holds; what could not be read is never free."""
    if gpu["used_bytes"] is None or gpu["processes"] is None:
        return False
    holders = [process for process in gpu["processes"] if process[1] != "G"]
    return gpu["used_bytes"] <= limit_bytes and not holders


OPERATIONS = {"read": read, "links": links, "poll": poll}
