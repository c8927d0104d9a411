"""Names that resolve and cannot be called: SGLang imports flashinfer on CUDA, this run never uses it."""


class Missing:
    """Any name of flashinfer."""

    def __init__(self, *args, **named):
        raise RuntimeError("flashinfer is not carried to this machine")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing
