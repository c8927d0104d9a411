"""See the package."""

from flashinfer import Missing


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing
