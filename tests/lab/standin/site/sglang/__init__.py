"""A stand-in for SGLang: its processes, endpoints and log lines, without a model (lab tests)."""

from sglang.version import __version__

__all__ = ["__version__"]
