"""Reading command lines: which argv is an SGLang server, which is a title, which only mentions one.

Everything here looks at whole argv elements. A substring never decides: an editor on a file named
``sglang``, a ``grep sglang`` and a ``bash -c "... sglang ..."`` carry the word and are none.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from opsctl.records import dataclass

# Default of --port in sglang 0.5.8 to 0.5.23 (srt/server_args.py).
DEFAULT_PORT = 30000
LAUNCH_MODULES = ("sglang.launch_server", "sglang.srt.server", "sglang.cli.main")
# The shortest abbreviations that argparse takes for these (sglang 0.5.8 to 0.5.23 leaves allow_abbrev on).
_SHORTEST = {"--port": "--po", "--config": "--conf", "--model-path": "--model-p"}
# flags of secrets, with how many letters an abbreviation has at least ("ssl-keyfile" is a flag of its own)
_SECRETS = {"api-key": 3, "admin-api-key": 3, "ssl-keyfile-password": 12}
_VALUED_PYTHON_LETTERS = "XW"  # of CPython's options; the others but -c and -m stand alone
_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*[td]*$")  # python3.13t: free-threaded
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
_BUILD_TOOLS = frozenset({"ninja", "nvcc", "cmake", "ccache", "gcc", "g++", "cc", "c++", "ptxas"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_TITLE = re.compile(r"^sglang::[A-Za-z][A-Za-z0-9_:.-]*$")


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """What the command line of an SGLang server says. None: not on the command line."""

    interpreter: str
    port: int | None  # None only where a --config file may set it
    model: str | None
    served_name: str | None = None

    def describe(self) -> str:
        """Return the two things that tell servers apart, for a sentence."""
        port = "a port from its config file" if self.port is None else f"port {self.port}"
        return f"{port}, model {self.model or 'from its config file'}"


def abbreviates_secret(flag: str) -> bool:
    """Say whether argparse takes ``flag`` (without its dashes) for a flag whose value is a secret."""
    return any(
        len(flag) >= shortest and name.startswith(flag) for name, shortest in _SECRETS.items()
    )


def is_python(path: str | None) -> bool:
    """Say whether a path is a Python interpreter, by its last element."""
    return path is not None and bool(_PYTHON.match(PurePosixPath(path).name))


def read_title(argv: tuple[str, ...]) -> str | None:
    """Return the title of an SGLang worker (``sglang::scheduler_TP0``), or None.

    setproctitle writes the title over argv and pads it with NUL or blanks, so the first element
    carries it and all others are empty.
    """
    if not argv or any(element.strip("\0 ") for element in argv[1:]):
        return None
    title = argv[0].strip("\0 ")
    return title if _TITLE.match(title) else None


def read_launch_line(argv: tuple[str, ...]) -> LaunchLine | None:
    """Return what an SGLang server's command line says, or None when argv is no such server.

    Knows ``python -m sglang.launch_server``, ``python .../sglang/launch_server.py``, and
    ``sglang serve`` with or without the interpreter in front (sglang 0.5.8 to 0.5.23).
    """
    arguments = arguments_of_launch(argv)
    if arguments is None:
        return None
    port = _last_value(arguments, ("--port",))
    has_file = _last_value(arguments, ("--config",)) is not None
    try:
        number = int(port) if port is not None else (None if has_file else DEFAULT_PORT)
    except ValueError:
        number = None
    return LaunchLine(
        interpreter=argv[0],
        port=number,
        model=_last_value(arguments, ("--model-path", "--model")),
        served_name=_last_value(arguments, ("--served-model-name",)),
    )


def is_supervisor(argv: tuple[str, ...]) -> bool:
    """Say whether argv is opsctl's own supervisor of a launched server (agent/supervisor.py)."""
    if len(argv) != 5 or not is_python(argv[0]) or argv[1:3] != ("-I", "-S"):
        return False
    script = PurePosixPath(argv[3])
    return script.name == "supervise.py" and script.parent == PurePosixPath(argv[4])


def own_script(argv: tuple[str, ...]) -> str | None:
    """Return the script that an interpreter runs as a program of its own (``python train.py``), or None.

    A server's helpers are modules, code on the command line, or scripts of installed packages; and build
    tools, which are scripts at times.
    """
    if len(argv) < 2:
        return None
    if is_python(argv[0]):
        script = _script_of(argv)
    elif PurePosixPath(argv[0]).name in _SHELLS and not argv[1].startswith("-"):
        script = argv[1]
    else:
        return None
    if script is None or PurePosixPath(script).name in _BUILD_TOOLS:
        return None
    return None if _INSTALLED & set(PurePosixPath(script).parts) else script


def _script_of(argv: tuple[str, ...]) -> str | None:
    """Return the script on a Python's command line; None for a module, code, or the standard input."""
    index = 1
    while index < len(argv):
        element = argv[index]
        if element in ("-", "--"):
            return None
        if not element.startswith("-"):
            return element
        letter, value = _valued_option(element)
        if letter in ("c", "m"):
            return None
        index += 1 if value or not letter else 2
    return None


def same_path(one: str, other: str) -> bool:
    """Compare two model paths or names as text, but for a slash at the end and doubled slashes."""
    return PurePosixPath(one) == PurePosixPath(other)


def matches_command(argv: tuple[str, ...], command: tuple[str, ...]) -> bool:
    """Say whether ``argv`` is ``command`` as it was started: the same elements in the same order.

    A script is started by the kernel as ``interpreter [option] script arguments``, so up to two
    elements may stand in front, the first of which must not be a shell's ``-c`` line or another tool.
    """
    if not command or len(argv) < len(command):
        return False
    front, rest = argv[: len(argv) - len(command)], argv[len(argv) - len(command) :]
    if rest[1:] != command[1:] or not _same_program(rest[0], command[0]):
        return False
    if not front:
        return True
    interpreter = PurePosixPath(front[0]).name
    known = is_python(front[0]) or interpreter in ("sh", "bash", "dash", "perl", "ruby", "node")
    return len(front) <= 2 and known and "-c" not in front and "-m" not in front


def _same_program(one: str, other: str) -> bool:
    if "/" in one and "/" in other:
        return same_path(one, other)
    return PurePosixPath(one).name == PurePosixPath(other).name


def arguments_of_launch(argv: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the arguments of an SGLang server's command line, or None when argv is no such server."""
    if len(argv) >= 2 and PurePosixPath(argv[0]).name == "sglang" and argv[1] == "serve":
        return argv[2:]
    if not argv or not is_python(argv[0]):
        return None
    index = 1
    while index < len(argv):
        element = argv[index]
        if element in ("-", "--"):
            return None
        if not element.startswith("-"):
            return _after_script(element, argv[index + 1 :])
        letter, value = _valued_option(element)
        rest = argv[index + 1 :]
        if letter == "c":
            return None
        if letter == "m":
            return _after_module(value or "".join(rest[:1]), rest if value else rest[1:])
        index += 1 if value or not letter else 2
    return None


def _valued_option(element: str) -> tuple[str, str]:
    """Return the letter of an element of CPython's options that takes a value, and the value if it is in it.

    Letters may be joined: ``-um MODULE``, ``-Bmodule``, ``-Xdev``.
    """
    if element.startswith("--"):
        return ("-" if element == "--check-hash-based-pycs" else ""), ""
    for at, letter in enumerate(element[1:], 2):
        if letter in "cm" + _VALUED_PYTHON_LETTERS:
            return letter, element[at:]
    return "", ""


def _after_module(module: str, rest: tuple[str, ...]) -> tuple[str, ...] | None:
    if module in ("sglang", "sglang.cli.main"):
        return rest[1:] if rest[:1] == ("serve",) else None
    return rest if module in LAUNCH_MODULES else None


def _after_script(script: str, rest: tuple[str, ...]) -> tuple[str, ...] | None:
    path = PurePosixPath(script)
    if path.name == "sglang":
        return rest[1:] if rest[:1] == ("serve",) else None
    if path.parts[-2:] == ("sglang", "launch_server.py"):
        return rest
    return None


def _last_value(arguments: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    """Return the value that argparse would take: the last one given, ``--flag v`` or ``--flag=v``."""
    found = None
    for index, element in enumerate(arguments):
        name, equals, value = element.partition("=")
        if name not in flags and not any(_abbreviates(name, flag) for flag in flags):
            continue
        if equals:
            found = value
        elif index + 1 < len(arguments):
            found = arguments[index + 1]
    return found


def _abbreviates(name: str, flag: str) -> bool:
    shortest = _SHORTEST.get(flag)
    return shortest is not None and name.startswith(shortest) and flag.startswith(name)
