"""What pip is configured to use (mirrors, wheels of the machine, certificates), as variables for uv.

uv reads neither pip.conf nor PIP_*. ``python tests/lab/pip_config.py`` prints the lines for a shell.
A variable of uv's that is set already stands. Standard library only: it runs before anything is installed.
"""

import ast
import os
import shlex
import subprocess
import sys

# pip's name -> uv's variable and what stands between several values
NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
}


def read() -> dict[str, str]:
    """Return the variables that make uv install from where pip would."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout
    found = parse(listing)
    return {name: value for name, value in found.items() if name not in os.environ}


def parse(listing: str) -> dict[str, str]:
    """Return uv's variables for the lines of ``pip config list``.

    A later line wins, as pip's own files do; the environment's (``:env:``) come last there.
    """
    found = {
        "UV_SYSTEM_CERTS": "1"
    }  # a company's own certificate authority is in the system's store
    for line in listing.splitlines():
        key, _, quoted = line.partition("=")
        section, _, name = key.rpartition(".")
        if section not in ("global", "install", ":env:") or name not in NAMES:
            continue
        try:
            value = str(ast.literal_eval(quoted))
        except (ValueError, SyntaxError):
            continue
        variable, separator = NAMES[name]
        found[variable] = separator.join(value.split())
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip's: the best version of all indexes
    return found


if __name__ == "__main__":
    for variable, setting in read().items():
        print(f"export {variable}={shlex.quote(setting)}")
