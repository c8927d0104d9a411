"""``python -m tests.lab.sglang build|argv``: make the environments, print how to start a server."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.lab.sglang import environment, launch


def main() -> int:
    """Run one of the two commands."""
    options = _parser().parse_args()
    prefix = options.prefix or environment.default_prefix()
    if options.command == "build":
        return _build(prefix, options.version or list(environment.VERSIONS))
    found = launch.launch(
        options.version,
        options.port,
        eagle=options.eagle,
        spec_v2=not options.spec_v1,
        tp=options.tp,
        weights=options.weights,
        hold=options.hold,
        host=options.host,
        python=options.python,
        prefix=prefix,
    ).as_dict()
    print(json.dumps({**found, "argv": [*found["argv"], *options.flags]}, indent=1))  # type: ignore[misc]
    return 0


def _build(prefix: Path, versions: list[str]) -> int:
    for version in versions:
        try:
            python = environment.build(prefix, version, lambda text: print(text, file=sys.stderr))
        except environment.BuildError as error:
            print(f"sglang {version}: {error}", file=sys.stderr)
            return 1
        print(python)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.sglang", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="make the environments that are missing")
    build.add_argument("--version", action="append", choices=environment.VERSIONS)
    build.add_argument("--prefix", type=Path)
    argv = commands.add_parser("argv", help="print argv, environment and site entry as JSON")
    argv.add_argument("--version", choices=environment.VERSIONS, default=environment.VERSIONS[0])
    argv.add_argument("--prefix", type=Path)
    argv.add_argument("--port", type=int, required=True)
    argv.add_argument("--host", default="127.0.0.1")
    argv.add_argument("--python", default="", help="another interpreter, such as a copy's")
    argv.add_argument("--eagle", action="store_true", help="with EAGLE-3")
    which = argv.add_mutually_exclusive_group()
    which.add_argument("--spec-v1", action="store_true", help="EAGLEWorker")
    which.add_argument("--spec-v2", action="store_true", help="EAGLEWorkerV2 (the default)")
    argv.add_argument("--tp", type=int, default=1, help="ranks")
    argv.add_argument("--weights", choices=("known", "random"), default="known")
    argv.add_argument("--hold", default="", help="lab GPU memory, GPU:MIB,...")
    argv.add_argument("flags", nargs="*", help="further flags of SGLang, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
