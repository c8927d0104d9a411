"""What is said of a parser that could not be asked."""

from __future__ import annotations

import pytest

from opsctl.agent.ops.preflight import last_words


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        (
            ["  what():  Duplicate", "frame #62: PyObject_Call"],
            -6,
            "it died of SIGABRT: what():  Duplicate",
        ),
        (["Traceback", "ModuleNotFoundError: no numpy"], 1, "ModuleNotFoundError: no numpy"),
        (["a", "torch.cuda.OutOfMemoryError: x", "at exit"], 1, "torch.cuda.OutOfMemoryError: x"),
        (["killed"], 3, "killed"),
        ([], 3, "it exited 3"),
        ([], -9, "it died of SIGKILL"),
    ],
)
def test_the_line_that_names_the_error_is_chosen(lines: list[str], status: int, said: str) -> None:
    """Native stacks and noise at exit follow the error; a signal is named."""
    assert last_words(lines, status) == said
