"""Starting an agent: the argv that finds a Python on the host, and the bytes that it reads first."""

from __future__ import annotations

import importlib.util
import marshal
import types
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

VERSIONS = ("3.14", "3.13", "3.12", "3.11", "3.10", "3.9", "3.8")
PYTHONS = (
    "python3",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    *(f"/usr/bin/python{version}" for version in VERSIONS),
    *(f"/usr/local/bin/python{version}" for version in VERSIONS),
)

MARSHAL_VERSION = 2  # bytes and tuples: the same for every Python 3
# One exec and no fork: the shell's job ends with the first Python that exists.
_FIND = """\
for p in %s; do
  command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -u -c 'import sys;exec(sys.argv[1])' "$@"
done
echo "opsctl-agent: no-python: none of: %s" >&2; exit 127
"""

# Runs on any Python 3 (and must parse on 2): too old, it hands over to the next candidate before a byte of
# stdin is read. The marker's halves are joined here, so an echoed command line is never taken for it.
BOOT = """\
import os,sys
a=sys.argv
if sys.version_info<(3,8):
 for i,p in enumerate(a[5:]):
  if os.access(p,os.X_OK) and os.path.realpath(p)!=os.path.realpath(sys.executable or ""):
   os.execv(p,[p,"-I","-S","-u","-c","import sys;exec(sys.argv[1])"]+a[1:5]+a[6+i:])
 v=tuple(sys.version_info[:3])+(sys.executable,)
 sys.stderr.write("opsctl-agent: old-python: %d.%d.%d at %s\\n"%v)
 sys.exit(97)
import marshal,zlib
def r(n):
 b=b""
 while len(b)<n:
  c=os.read(0,n-len(b))
  if not c:
   sys.stderr.write("opsctl-agent: cut-source: %d of %d bytes\\n"%(len(b),n))
   sys.exit(98)
  b+=c
 return b
h=r(32)
if h[:8]!=b"OPSCTL1 ":
 sys.stderr.write("opsctl-agent: stdin-eaten: %r\\n"%(h,))
 sys.exit(98)
s=r(int(h[8:20]))
if zlib.crc32(s)!=int(h[20:32]):
 sys.stderr.write("opsctl-agent: stdin-eaten: checksum\\n")
 sys.exit(98)
m,c,s=marshal.loads(zlib.decompress(s))
e=m==sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
g={"__name__":"opsctl_agent"}
exec(marshal.loads(c) if e else compile(s,"opsctl-agent","exec"),g)
g["main"](a[2]+a[3],float(a[4]))
"""


def argv(
    marker: str, silence_s: float, interpreter: str | None = None, pythons: Sequence[str] = PYTHONS
) -> list[str]:
    """Return the command that starts an agent.

    Args:
        marker: what the agent prints first, as one line.
        silence_s: how long the agent lives without a frame.
        interpreter: the only Python to try, or None to look for one.
        pythons: which ones to look for.
    """
    half = len(marker) // 2
    candidates = [interpreter] if interpreter else list(pythons)
    absolute = [python for python in candidates if python.startswith("/")]
    script = _FIND % (" ".join(candidates), " ".join(candidates))
    head = ["/bin/sh", "-c", script, "opsctl-agent", BOOT, marker[:half], marker[half:]]
    return [*head, f"{silence_s:g}", *absolute]


def payload(magic: bytes, code: bytes, source: bytes) -> bytes:
    """Return what the agent reads first: a header of 32 bytes, then itself.

    Args:
        magic: which Python takes ``code`` (importlib.util.MAGIC_NUMBER); each other one compiles ``source``,
            which costs 6 ms.
        code: the agent's core, compiled and marshalled.
        source: the same as it is written.
    """
    packed = zlib.compress(marshal.dumps((magic, code, source), MARSHAL_VERSION), 6)
    return b"OPSCTL1 %12d%12d" % (len(packed), zlib.crc32(packed)) + packed


@lru_cache(maxsize=1)
def core_payload() -> bytes:
    """Return the payload of ``remote.py``, packed once per process."""
    source = Path(__file__).with_name("remote.py").read_bytes()
    code = marshal.dumps(compiled("opsctl.agent.remote", "opsctl-agent"))
    return payload(importlib.util.MAGIC_NUMBER, code, source)


def compiled(module: str, file: str) -> types.CodeType:
    """Return a module's code, which was compiled when opsctl was installed; on a host it is ``file``."""
    loader: Any = getattr(importlib.util.find_spec(module), "loader", None)
    return _named(loader.get_code(module), file)


def _named(code: types.CodeType, file: str) -> types.CodeType:
    """Return code that says of itself that it is from ``file``: its path here means nothing on a host."""
    constants = tuple(
        _named(one, file) if isinstance(one, types.CodeType) else one for one in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=constants)
