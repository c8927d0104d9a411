"""fabric and paramiko without what they load and a connection does not use."""

from __future__ import annotations

import glob
import importlib
import os
import sys
import types
from typing import Any


def _yaml_on_use(name: str) -> Any:
    """Load invoke's YAML when something of it is asked for: where fabric has a configuration file."""
    if sys.modules.get("invoke.vendor.yaml") is yaml:
        del sys.modules["invoke.vendor.yaml"]
    return getattr(importlib.import_module("invoke.vendor.yaml"), name)


def _version(name: str) -> str:
    """Return a distribution's version as its folder is named; only where there is none, load what asks it."""
    for folder in sys.path:
        found = glob.glob(os.path.join(glob.escape(folder or "."), f"{name}-*.dist-info"))
        if len(found) == 1:
            return os.path.basename(found[0])[len(name) + 1 : -len(".dist-info")]
    sys.modules.pop("importlib.metadata", None)
    import importlib.metadata

    return importlib.metadata.version(name)


if "unittest.mock" in sys.modules or "invoke" in sys.modules:
    import fabric
    import paramiko
else:
    # invoke.context (2.2) imports Mock for its MockContext, which is for tests; that loads asyncio
    mock = types.ModuleType("unittest.mock")
    mock.Mock = object  # type: ignore[attr-defined]
    sys.modules["unittest.mock"] = mock
    # two copies of PyYAML, for invoke's own configuration files
    yaml = types.ModuleType("invoke.vendor.yaml")
    yaml.__getattr__ = _yaml_on_use  # type: ignore[method-assign]
    sys.modules["invoke.vendor.yaml"] = yaml
    # paramiko asks it for its own version, and it loads email and zipfile for that
    stands_in = "importlib.metadata" not in sys.modules
    if stands_in:
        metadata = types.ModuleType("importlib.metadata")
        metadata.version = _version  # type: ignore[attr-defined]
        sys.modules["importlib.metadata"] = importlib.metadata = metadata
    try:
        import fabric
        import paramiko  # imports invoke, too
    finally:
        del sys.modules["unittest.mock"]
        if stands_in:
            if sys.modules.get("importlib.metadata") is metadata:
                del sys.modules["importlib.metadata"]
            if importlib.__dict__.get("metadata") is metadata:
                del importlib.metadata

__all__ = ["fabric", "paramiko"]
