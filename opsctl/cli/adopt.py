"""`opsctl adopt`: a server that runs already becomes an entry of the site file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.output import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opsctl.adoption import Adopted
    from opsctl.site import Site

HEADER = "# opsctl.yaml: where your servers run. Check it with `opsctl config check`.\n"


@command("adopt", changes=True)
@click.argument("pid", type=click.IntRange(min=1), required=False, metavar="[PID]")
@click.option(
    "--host",
    metavar="HOST",
    help="A host entry of the site, or a new [user@]host[:port]. Default: this machine.",
)
@click.option("--sudo", "become", is_flag=True, help="Reach a new host with sudo -n.")
@click.option("--name", metavar="NAME", help="Name of the entry. Default: from the model.")
@click.option("--port", type=click.IntRange(1, 65535), help="Where only its config file names it.")
@click.option("--model", metavar="MODEL", help="Where only its config file names it.")
@click.option(
    "--env", "extra_env", multiple=True, metavar="VAR", help="Take this variable over too."
)
def adopt(
    app: App,
    pid: int | None,
    host: str | None,
    become: bool,
    name: str | None,
    port: int | None,
    model: str | None,
    extra_env: tuple[str, ...],
) -> int:
    """Write the SGLang server with process PID (or one of its workers) into the site file.

    PID is a number of HOST; on a Proxmox node it may be that of a process in a container, which then
    becomes the entry's host. Without PID: the only server there. The server is proven first, by its
    interpreter and entry point, its process tree and titles, and its port; and it is looked at once as
    `opsctl status` will. It is not touched. Values of secrets are never read from the host: each becomes a
    reference that you fill. The file keeps its comments and is replaced whole, or not at all.

    \b
    Examples:
      opsctl adopt 4242 --dry-run                 a server of this machine
      opsctl adopt --host root@192.0.2.7          the only one there
      opsctl adopt 917 --host pve1 --name glm5    in a container of that node
    """
    from opsctl import adoption, adoption_place
    from opsctl.session import open_hosts

    path, before, text = read_site_file(app.site_path)
    site = site_of(path, text)
    _refuse_taken(path, site, name)
    place = adoption_place.place_of(site, host, become=become)
    options = adoption.Options(name, model, port, extra_env)
    with open_hosts(adoption_place.with_hosts(site, place.added)) as hosts:
        place = adoption_place.settle_name(hosts, place)
        place, found = adoption.locate(hosts, place, pid)
        adopted = adoption.adopt(hosts, place, found, options)
    if adopted.known_as is not None:
        return _already(app, path, adopted)
    made = new_text(path, text, place.added, [adopted])
    document = Document(
        "adopt",
        "planned",
        findings=list(adopted.entry.findings),
        data=_data(path, adopted, place.added),
    )
    shown = "\n".join(_added_lines(text, made))
    if app.dry_run:
        return emit(app, document, lambda: f"{_head(adopted)}\nwould add to {path}:\n{shown}")
    asked = not app.yes and not app.as_json
    if asked:
        click.echo(f"{_head(adopted)}\nto add to {path}:\n{shown}", err=True)
    app.confirm(f"write this to {path}?")
    from opsctl.site_edit import write_atomically

    write_atomically(path, made, before)
    document.outcome = "adopted"
    head = "" if asked else f"{_head(adopted)}\n"
    return emit(app, document, lambda: head + _written(app, path, adopted))


def read_site_file(explicit: Path | None) -> tuple[Path, bytes | None, str]:
    """Return the site file to write to, what it holds (None: it is not there), and its text."""
    from opsctl.errors import ConfigError
    from opsctl.site_lookup import find_site_file

    path = find_site_file(explicit) or Path("opsctl.yaml")
    try:
        before = path.read_bytes()
        return path, before, before.decode("utf-8")
    except FileNotFoundError:
        return path, None, HEADER
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start})", subject=str(path)) from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", subject=str(path)) from error


def site_of(path: Path, text: str) -> Site:
    """Return the site that a text describes."""
    from opsctl.site import parse_site

    return parse_site(text, path)


def new_text(
    path: Path, text: str, hosts: Mapping[str, Mapping[str, Any]], adopted: list[Adopted]
) -> str:
    """Return the site file's text with the hosts and servers added; it is checked before it is written."""
    from opsctl.site_edit import add_entry

    for name, entry in hosts.items():
        text = add_entry(text, "hosts", name, entry, path=str(path))
    for one in adopted:
        made = one.entry
        text = add_entry(text, "servers", made.name, made.values, made.comments, path=str(path))
    site_of(path, text)
    return text


def _refuse_taken(path: Path, site: Site, name: str | None) -> None:
    from opsctl.errors import SafetyRefusal

    if name is not None and (name in site.servers or name in site.hosts):
        raise SafetyRefusal(
            f"{path}: the name '{name}' is taken",
            next_step="choose another with --name, or change that entry by hand",
            code="name-taken",
            subject=name,
        )


def _already(app: App, path: Path, adopted: Adopted) -> int:
    text = f"pid {adopted.pid} is '{adopted.known_as}' in {path} already; nothing to do"
    data = {**_data(path, adopted, {}), "name": adopted.known_as}
    return emit(app, Document("adopt", "already-adopted", data=data), lambda: text)


def _data(path: Path, adopted: Adopted, hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "site": str(path),
        "name": adopted.entry.name,
        "pid": adopted.pid,
        "ns_pid": adopted.ns_pid,
        "evidence": list(adopted.evidence),
        "hosts": {name: dict(entry) for name, entry in hosts.items()},
        "entry": dict(adopted.entry.values),
    }


def _head(adopted: Adopted) -> str:
    return "\n".join(
        ("proven to be an SGLang server:", *(f"  {line}" for line in adopted.evidence))
    )


def _added_lines(before: str, after: str) -> list[str]:
    import difflib

    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:] for line in lines if line.startswith("+ ") and line.strip() != "+"]


def _written(app: App, path: Path, adopted: Adopted) -> str:
    name = adopted.entry.name
    return (
        f"adopted as '{name}' in {path}; the server was not touched\n"
        f"  next: opsctl status {name}\n"
        f"        opsctl doctor {name}\n"
        f"        opsctl restart {name} --dry-run"
    )
