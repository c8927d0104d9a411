"""fabric and paramiko without what they load and a connection does not use."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


def _yaml_on_use(name: str) -> Any:
    """Load invoke's YAML when something of it is asked for: where fabric has a configuration file."""
    if sys.modules.get("invoke.vendor.yaml") is yaml:
        del sys.modules["invoke.vendor.yaml"]
    return getattr(importlib.import_module("invoke.vendor.yaml"), name)


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
    try:
        import fabric
        import paramiko  # imports invoke, too
    finally:
        del sys.modules["unittest.mock"]

__all__ = ["fabric", "paramiko"]
