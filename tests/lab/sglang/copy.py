"""Make an environment with its own, writable copy of SGLang, in a second.

Standard library only: it also runs inside the lab's hosts and containers, where the environments
that ``build`` made are read-only:

    python3 /opt/lab-src/sglang/copy.py /var/cache/opsctl-lab/sglang/0.5.12.post1 /opt/sglang-real

The copy is what patch tests edit: ``bin/python`` finds ``sglang`` (with its RECORD) in the copy's own
site-packages and everything else where it was built. Remove the folder to be rid of it.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

OWN = ("sglang", "sglang-*.dist-info")


def copy(built, home):
    """Copy ``built`` (an environment of one version) to ``home`` and return its Python."""
    built, home = Path(built), Path(home)
    source = next(built.glob("lib/python3*/site-packages"))
    target = home / source.relative_to(built)
    target.mkdir(parents=True)
    for pattern in OWN:
        for package in source.glob(pattern):
            shutil.copytree(package, target / package.name)
    base = (source / "opsctl-lab-base.pth").read_text().strip()
    lines = [str(source), base, "import opsctl_lab_cpu"]
    (target / "opsctl-lab.pth").write_text("\n".join(lines) + "\n")
    shutil.copy(built / "pyvenv.cfg", home / "pyvenv.cfg")
    (home / "bin").mkdir()
    interpreter = os.path.realpath(built / "bin" / "python")
    for name in ("python", "python3"):
        (home / "bin" / name).symlink_to(interpreter)
    return home / "bin" / "python"


def main():
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description="Copy a built environment so that it can be edited."
    )
    parser.add_argument("built", help="the environment of a version, in the cache")
    parser.add_argument("home", help="a folder that does not exist yet")
    options = parser.parse_args()
    if os.path.exists(options.home):
        sys.exit(f"{options.home} exists already")
    print(copy(options.built, options.home))


if __name__ == "__main__":
    main()
