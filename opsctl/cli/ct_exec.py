"""`opsctl ct exec`: one command in a container, whose end is told by a reply of our own."""

from __future__ import annotations

import re
import secrets
import sys

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.ct_target import target_options
from opsctl.errors import CouldNotTell
from opsctl.output import Document, Finding

TIMED_OUT = 124  # of timeout(1)
# lxc-attach's own exit code is not trusted (some versions say 0 for a child that was killed), and ending
# the client leaves the command running: so `timeout` runs inside, and the shell reports what it saw.
REPORT = (
    'limit=$1; mark=$2; shift 2; if command -v timeout >/dev/null; then timeout -k 5 "$limit" "$@"; '
    'else "$@"; fi; printf "\\n%s %s\\n" "$mark" "$?" >&2'
)


@command("exec", context_settings={"ignore_unknown_options": True})
@target_options
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    metavar="S",
    help="Seconds it may take; it is ended inside the container then.",
)
@click.option(
    "--stdin", "with_stdin", is_flag=True, help="Give it our stdin, read to its end first."
)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(
    app: App, target: str, node: str | None, timeout: int, with_stdin: bool, argv: tuple[str, ...]
) -> int:
    """Run ARGV in a container, without a shell: `opsctl ct exec 129 -- nvidia-smi -L`.

    It is not asked for: the command line is the order. Its output is passed on. Exit 0: it ended with
    0; 20: it ended with another code, or not in time; 21: its end was not seen.

    \b
    Example:
      opsctl ct exec glm5 -- nvidia-smi -L
    """
    from opsctl.containers import container_transport, find_place
    from opsctl.session import open_hosts
    from opsctl.site_cache import load_site

    site = load_site(app.site_path)
    place = find_place(site, target, node)
    stdin = sys.stdin.buffer.read() if with_stdin else b""
    mark = f"opsctl-exit-{secrets.token_hex(8)}"
    wrapped = ["sh", "-c", REPORT, "sh", str(timeout), mark, *argv]
    with open_hosts(site) as hosts:
        transport = container_transport(hosts, place)
        done = transport.run(wrapped, stdin=stdin, timeout_s=timeout + 30.0)
    code, stderr = split_report(done.stderr, mark)
    if not app.as_json:
        sys.stdout.buffer.write(done.stdout)
        sys.stdout.buffer.flush()
        sys.stderr.buffer.write(stderr)
        sys.stderr.buffer.flush()
    if code is None:
        raise CouldNotTell(
            f"the end of {argv[0]} in container {place.vmid} was not seen "
            f"(pct exec ended with {done.exit_code})",
            next_step="it may still run there: look before running it again",
            code="end-not-seen",
            subject=str(place.vmid),
        )
    findings = []
    if code == TIMED_OUT:
        text = f"{argv[0]} ended with 124: it did not end within {timeout} s and was ended there"
        findings.append(
            Finding("exec-timeout", str(place.vmid), text, "give it a longer --timeout")
        )
    elif code != 0:
        text = f"{argv[0]} ended with {describe_exit(code)}"
        findings.append(Finding("exec-failed", str(place.vmid), text))
    data = {
        "vmid": place.vmid,
        "argv": list(argv),
        "exit_code": code,
        "stdout": done.stdout.decode(errors="replace"),
        "stderr": stderr.decode(errors="replace"),
    }
    outcome, ours = ("done", 0) if code == 0 else ("failed", 20)
    document = Document("ct exec", outcome, ours, findings=findings, data=data)
    return emit(app, document, lambda: "")


def split_report(stderr: bytes, mark: str) -> tuple[int | None, bytes]:
    """Return the exit code that was reported (None without a report), and stderr without the report."""
    found = re.search(rb"\n" + mark.encode() + rb" (\d+)\n", stderr)
    if found is None:
        return None, stderr
    return int(found[1]), stderr[: found.start()] + stderr[found.end() :]


def describe_exit(code: int) -> str:
    """Say an exit code as a shell means it."""
    known = {126: "126: it cannot be run", 127: "127: there is no such command"}
    if code > 128:
        return f"{code}: signal {code - 128}"
    return known.get(code, str(code))
