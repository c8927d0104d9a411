"""Modules as they are sent to a host: compiled where its Python is ours, without a path of this machine."""

from __future__ import annotations

import base64
import importlib.util
import json
import marshal
import types
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.agent.ops import MODULES
from opsctl.agent.shipping import missing_frames

OPS = Path(importlib.util.find_spec("opsctl.agent.ops").origin or "").parent  # type: ignore[union-attr]


def content(line: bytes) -> bytes:
    return zlib.decompress(base64.b64decode(json.loads(line)["z"]))


def parts(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from parts(one)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_compiled_code_is_the_module_s_and_names_no_path_of_ours(name: str) -> None:
    """Its own name stands in the traces of a host."""
    lines = missing_frames(name, set(), importlib.util.MAGIC_NUMBER.hex())
    code = marshal.loads(content(lines[-1]))

    source = (OPS / f"{name}.py").read_bytes()
    assert code == compile(source, f"opsctl-agent:{name}", "exec", dont_inherit=True)
    assert {one.co_filename for one in parts(code)} == {f"opsctl-agent:{name}"}


def test_another_python_gets_the_source() -> None:
    """Bytecode is of one version."""
    (line,) = missing_frames("procfs", set(), "00000000")
    assert content(line) == (OPS / "procfs.py").read_bytes()
