#!/usr/bin/python3 -IS
"""The lab node's `pvesh`: the paths that opsctl uses, with real tasks on real LXC.

As the real one on a command line: a task runs in the foreground, its log is printed first and its UPID
last; what a task said and how it ended stays readable under its UPID.
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import paths
from pve import Die


def main(argv):
    """Answer one call. Options are --name value, as the real pvesh takes them."""
    if os.geteuid() != 0:
        raise Die("please run as root")
    if len(argv) < 2:
        raise Die("400 not enough arguments\npvesh get <api_path> [OPTIONS] [FORMAT_OPTIONS]")
    words, options = argv[2:], {}
    while words:
        key = words.pop(0)
        if not key.startswith("--") or not words:
            raise Die(f"400 unable to parse option\nUnknown option: {key.lstrip('-')}")
        options[key[2:]] = words.pop(0)
    as_json = options.pop("output-format", "text") == "json"
    found = paths.answer(paths.Root(), argv[0], argv[1], options)
    print(json.dumps(found) if as_json else found)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Die, paths.Refused) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(255)
