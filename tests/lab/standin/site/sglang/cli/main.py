"""``sglang serve --model-path M --port P``, the other way to start a server."""

import sys

from sglang.standin.main import main as serve
from sglang.version import __version__


def main():
    """Run the command line."""
    command, rest = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if command == "serve":
        serve(rest)
    elif command == "version":
        print("sglang version: %s" % __version__)
    else:
        sys.stderr.write("usage: sglang [-h] {serve,generate,version} ...\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
