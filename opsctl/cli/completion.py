"""Shell completion: names of the site and of the ledger, fast, and silent where they cannot be read.

Nothing is connected to, nothing is made, and no model is imported: a TAB must not take a second.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from opsctl.cli.app import App, command, emit
from opsctl.errors import ConfigError
from opsctl.output import Document

if TYPE_CHECKING:
    _Text = click.ParamType[str]
else:
    _Text = click.ParamType  # generic since click 8.2 only

RUNS = 50
LEDGER_WAIT_S = 0.2
# what a parameter's name means, where its metavar does not say it
KINDS = {
    "server": ("SERVER",), "node": ("HOST",), "run": ("RUN",), "runs": ("RUN",), "reference": ("RUN",),
    "against": ("RUN",), "ids": ("PATCH",), "patch_id": ("PATCH",), "playbook": ("PLAYBOOK",),
    "names": ("PLAYBOOK",),
}  # fmt: skip
WORDS = ("SERVER", "HOST", "VMID", "RUN", "PATCH", "PLAYBOOK")


class Named(_Text):
    """Text that names something opsctl knows; any other text is taken as well."""

    name = "text"

    def __init__(self, kinds: Iterable[str]) -> None:
        self.kinds = tuple(kinds)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is: commands say themselves what they do not find."""
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the known names that begin so."""
        found = dict(pair for kind in self.kinds for pair in known(kind, ctx))
        return [
            CompletionItem(name, help=about)
            for name, about in found.items()
            if name.startswith(incomplete)
        ]


def name_parameters(made: click.Command) -> None:
    """Give each parameter of a command that names something the type that completes it."""
    for param in made.params:
        if not isinstance(param.type, click.types.StringParamType):
            continue
        kinds = [word for word in WORDS if re.search(rf"\b{word}\b", param.metavar or "")]
        kinds = kinds or list(KINDS.get(param.name or "", ()))
        if kinds and not (made.name == "new" and kinds == ["PATCH"]):
            param.type = Named(kinds)


def known(kind: str, ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the names of one kind with a word about each; nothing where they cannot be read."""
    if kind == "RUN":
        yield from runs(ctx.params.get("state_dir"))
        return
    path, site = read_site(ctx.params.get("site_path"))
    hosts, servers = _mapping(site, "hosts"), _mapping(site, "servers")
    if kind == "SERVER":
        yield from ((name, f"server on {_value(entry, 'host')}") for name, entry in servers.items())
    elif kind == "HOST":
        yield from ((name, _way(entry)) for name, entry in hosts.items())
    elif kind == "VMID":
        vmids = {name: _value(entry, "pct") for name, entry in hosts.items()}
        yield from ((vmid, f"container, host {name}") for name, vmid in vmids.items() if vmid)
    elif kind == "PATCH":
        yield from ((name, "patch") for name in patches(path, site))
    elif kind == "PLAYBOOK":
        yield from ((name, "playbook") for name in playbooks())


def read_site(explicit: Path | None) -> tuple[Path | None, Mapping[str, Any]]:
    """Return the site file as plain data; empty where it is absent or broken."""
    import yaml

    from opsctl.site_lookup import find_site_file

    try:
        path = find_site_file(explicit)
        if path is None:
            return None, {}
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        data = yaml.load(path.read_bytes(), Loader=loader)
    except (OSError, ValueError, RuntimeError, yaml.YAMLError):
        return None, {}
    return path, data if isinstance(data, dict) else {}


def _mapping(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = data.get(key)
    return {str(name): entry for name, entry in found.items()} if isinstance(found, dict) else {}


def _value(entry: Any, key: str) -> str:
    return str(entry.get(key) or "") if isinstance(entry, dict) else ""


def _way(entry: Any) -> str:
    for key in ("ssh", "pct"):
        if _value(entry, key):
            return f"host, {key} {_value(entry, key)}"
    return "host"


def patches(site_path: Path | None, site: Mapping[str, Any]) -> list[str]:
    """Return the ids of the site's own patches and of those that ship, by their folders."""
    from opsctl.resources import folder

    own = site.get("patches_dir")
    places = (
        [site_path.parent / Path(own).expanduser()] if site_path and isinstance(own, str) else []
    )
    try:
        places.append(folder("patches"))
        found = {file.parent.name for place in places for file in place.glob("*/patch.yaml")}
    except (OSError, RuntimeError, ConfigError):
        return []
    return sorted(found)


def playbooks() -> list[str]:
    """Return the names of the playbooks that ship."""
    from opsctl.resources import folder

    try:
        place = folder("playbooks")
        return sorted(str(p.relative_to(place).with_suffix("")) for p in place.rglob("*.yaml"))
    except (OSError, ConfigError):
        return []


def runs(state_dir: Path | None) -> list[tuple[str, str]]:
    """Return the newest runs of the ledger on this machine, read only; none where it is busy or absent."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    path = (state_dir or Path(base) / "opsctl") / "ledger.sqlite"
    # read only would make a -wal and a -shm beside a ledger at rest, and could not remove them again
    alone = not path.with_name(f"{path.name}-wal").exists()
    mode = "immutable=1" if alone else "mode=ro"
    query = "SELECT id, playbook, server, outcome FROM runs ORDER BY started_s DESC LIMIT ?"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=LEDGER_WAIT_S
        )
    except (sqlite3.Error, ValueError):
        return []
    try:
        rows = connection.execute(query, (RUNS,)).fetchall()
    except sqlite3.Error:
        return []
    finally:
        connection.close()
    return [(str(row[0]), f"{row[1]} {row[2]}: {row[3] or 'open'}") for row in rows]


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(app: App, shell: str) -> int:
    """Print the completion script of a SHELL: commands, options, servers, hosts, patches, playbooks, runs.

    Names come from the site file and the ledger of this machine; a file that is broken completes
    nothing and says nothing.

    \b
    Examples:
      opsctl completion bash > ~/.local/share/bash-completion/completions/opsctl
      opsctl completion zsh > ~/.zfunc/_opsctl      (fpath+=~/.zfunc before compinit)
      opsctl completion fish > ~/.config/fish/completions/opsctl.fish
      source <(opsctl completion bash)              (only this shell)
    """
    from opsctl.cli import root

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(root, {}, "opsctl", "_OPSCTL_COMPLETE")
    text = script.source_template % script.source_vars()
    return emit(
        app, Document("completion", "shown", data={"shell": shell, "script": text}), lambda: text
    )
