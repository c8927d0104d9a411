"""fabric and paramiko without unittest.mock and asyncio, which only a class for tests needs."""

from __future__ import annotations

import sys
import types

if "unittest.mock" in sys.modules:
    import fabric
    import paramiko
else:
    # invoke.context (2.2) imports Mock for its MockContext; nothing else of it is used in a process like ours
    stand_in = types.ModuleType("unittest.mock")
    stand_in.Mock = object  # type: ignore[attr-defined]
    sys.modules["unittest.mock"] = stand_in
    try:
        import fabric
        import paramiko  # imports invoke, too
    finally:
        del sys.modules["unittest.mock"]

__all__ = ["fabric", "paramiko"]
