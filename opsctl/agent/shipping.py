"""What an agent is sent besides calls: operation modules and resources, as frames that load them."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import marshal
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from opsctl.agent.boot import compiled
from opsctl.agent.ops import MODULES, ON_DEMAND, RESOURCES
from opsctl.errors import AgentError


def missing_frames(module: str, loaded: set[str], magic: str | None) -> list[bytes]:
    """Return the load frames that ``module`` still needs, dependencies first, and note them in ``loaded``.

    Args:
        module: name of an operation module; an unknown one needs nothing, the agent then says so.
        loaded: what the agent was sent before.
        magic: the bytecode that the agent's Python takes, in hex.
    """
    if module in loaded or module not in MODULES:
        return []
    lines = [line for needed in MODULES[module] for line in missing_frames(needed, loaded, magic)]
    for resource in RESOURCES.get(module, ()):
        if resource not in loaded:
            frame = digest_frame if resource in ON_DEMAND else resource_frame
            lines.append(frame(resource))
            loaded.add(resource)
    lines.append(_module_frame(module, magic))
    loaded.add(module)
    return lines


@lru_cache(maxsize=128)
def _module_frame(name: str, magic: str | None) -> bytes:
    """Return an operation module as a load frame: compiled for a host whose bytecode is ours too."""
    if magic != importlib.util.MAGIC_NUMBER.hex():
        source = (Path(__file__).parent / "ops" / f"{name}.py").read_bytes()
        return _load_frame({"load": name}, source)
    code = compiled(f"opsctl.agent.ops.{name}", f"opsctl-agent:{name}")
    return _load_frame({"load": name, "magic": magic}, marshal.dumps(code))


@lru_cache(maxsize=4)
def resource_frame(name: str) -> bytes:
    """Return the source of an installed module as a load frame; it is found, not imported."""
    return _load_frame({"load": name, "resource": True}, _source_of(name))


@lru_cache(maxsize=4)
def digest_frame(name: str) -> bytes:
    digest = hashlib.sha256(_source_of(name)).hexdigest()
    return json.dumps({"load": name, "digest": digest}).encode()


def _source_of(name: str) -> bytes:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise AgentError(f"{name} is not installed here", next_step="reinstall opsctl")
    return Path(spec.origin).read_bytes()


def _load_frame(head: dict[str, Any], source: bytes) -> bytes:
    packed = base64.b64encode(zlib.compress(source, 6)).decode("ascii")
    return json.dumps({**head, "z": packed}, separators=(",", ":")).encode()
