"""`opsctl config`: check, show and describe the site file."""

from __future__ import annotations

import json
from typing import Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.output import Document, Finding

EXAMPLE = """\
# opsctl.yaml: where your servers run. Check it with `opsctl config check`.
hosts:
  here: {local: true}
  # gpu1:  {ssh: root@192.0.2.7}                      # host keys are checked against known_hosts
  # pve1:  {ssh: ops@192.0.2.6, become: sudo}         # sudo -n
  # ct129: {pct: 129, via: pve1}                      # a container on a Proxmox node
  # `opsctl ct` uses pvesh on the node; or its API, with a proxmox block in the node's entry:
  #   proxmox: {api: https://192.0.2.6:8006, token_id: root@pam!ops, token: {env: PVE_TOKEN}}
servers:
  my-server:
    host: here
    gpus: {select: all}                               # add expect: 8 to insist on eight GPUs
    port: 30000
    python: /opt/sglang/bin/python
    model: /models/my-model
    args: {tp: 1}                                     # SGLang flags without their dashes
    env: {}                                           # secrets by reference: {env: HF_TOKEN}
    smoke: {levels: [1, 2, 5, 10]}
"""


@click.group("config")
def config() -> None:
    """Check, show and describe the site file.

    \b
    Examples:
      opsctl config example > opsctl.yaml
      opsctl config check
      opsctl config schema > opsctl.schema.json     (for your editor)
    """


@command("check")
def check(app: App) -> int:
    """Check the site file: syntax, names, references, patches, and that each secret can be read.

    \b
    Examples:
      opsctl config check
      opsctl config check --site lab.yaml --json
    """
    from opsctl.errors import ConfigError
    from opsctl.patch_library import unknown_patches
    from opsctl.site import load_site

    site = load_site(app.site_path)
    findings = [
        Finding(error.code, error.subject or "", error.message, error.next_step or "")
        for error in unknown_patches(site, site.servers)
    ]
    for subject, reference in _secrets(site):
        try:
            reference.resolve()
        except ConfigError as error:
            findings.append(Finding(error.code, subject, error.message, error.next_step or ""))
    where = str(site.path) if site.path else "no site file; this machine is the only host"
    document = Document(
        "config check",
        "bad" if findings else "ok",
        10 if findings else 0,
        findings=findings,
        data={"path": where, "hosts": list(site.hosts), "servers": list(site.servers)},
    )
    return emit(
        app,
        document,
        lambda: (
            f"{where}: {len(site.hosts)} host(s), {len(site.servers)} server(s)"
            + ("" if findings else ", all right")
        ),
    )


def _secrets(site: Any) -> list[tuple[str, Any]]:
    from opsctl.secret import SecretRef

    found: list[tuple[str, Any]] = []
    for name, host in site.hosts.items():
        if host.proxmox is not None:
            pairs = (("token", host.proxmox.token), ("password", host.proxmox.password))
            found += [(f"hosts.{name}.proxmox.{key}", value) for key, value in pairs if value]
    for name, server in site.servers.items():
        found += [
            (f"servers.{name}.env.{key}", value)
            for key, value in server.env.items()
            if isinstance(value, SecretRef)
        ]
        if server.api_key is not None:
            found.append((f"servers.{name}.api_key", server.api_key))
    for name, webhook in site.notify.items():
        for key in ("url", "token", "secret"):
            if (reference := getattr(webhook, key)) is not None:
                found.append((f"notify.{name}.{key}", reference))
    return found


@command("show")
def show(app: App) -> int:
    """Show the site as opsctl understands it, defaults filled in; secrets stay references.

    \b
    Example:
      opsctl config show --json
    """
    import yaml

    from opsctl.site import load_site

    site = load_site(app.site_path)
    body = site.model_dump(mode="json", exclude_none=True, by_alias=True)
    document = Document("config show", "ok", data={"path": str(site.path or ""), "site": body})
    return emit(app, document, lambda: yaml.safe_dump(body, sort_keys=False).rstrip())


@command("schema")
def schema(app: App) -> int:
    """Print the JSON Schema of the site file.

    \b
    Example:
      opsctl config schema > opsctl.schema.json
    """
    from opsctl.site import Site

    made = Site.model_json_schema()
    document = Document("config schema", "shown", data={"schema": made})
    return emit(app, document, lambda: json.dumps(made, indent=2))


@command("example")
def example(app: App) -> int:
    """Print a commented site file to begin with.

    \b
    Example:
      opsctl config example > opsctl.yaml
    """
    document = Document("config example", "shown", data={"text": EXAMPLE})
    return emit(app, document, EXAMPLE.rstrip)


for _command in (check, show, schema, example):
    config.add_command(_command)
