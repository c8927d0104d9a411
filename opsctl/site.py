"""The site file ``opsctl.yaml``: hosts, servers, and how to reach the secrets they need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from opsctl.errors import ConfigError
from opsctl.secret import SecretRef, Strict
from opsctl.site_lookup import ONLY_THERE, SiteLookup, find_site_file
from opsctl.site_notify import Webhook
from opsctl.site_proxmox import ProxmoxAccess
from opsctl.yaml_lines import LocatedYaml, decode_yaml, parse_yaml, read_file, validate

Levels = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
Seconds = Annotated[float, Field(le=1e9, allow_inf_nan=False)]  # no wait with another number ends
SECRET_NAME = re.compile(r"(?i)(^|[-_])(token|secret|password|passwd|api[-_]?key|credentials?)$")
_FLAG_NAME = re.compile(r"[a-z0-9][a-z0-9-]*$")


class Host(Strict):
    """How to reach one kernel or container: exactly one of local, ssh, pct."""

    local: Literal[True] | None = Field(None, description="This machine.")
    ssh: str | None = Field(
        None, description="[user@]host[:port], or a name of your ssh_config.", min_length=1
    )
    pct: int | None = Field(None, ge=100, description="Container id (vmid) on a Proxmox node.")
    via: str | None = Field(None, description="For pct: the name of the node's host entry.")
    become: Literal["sudo"] | None = Field(
        None, description="For ssh: run as root through `sudo -n`."
    )
    identity_file: Path | None = Field(None, description="For ssh: private key to use.")
    config_file: Path | None = Field(None, description="For ssh: another ssh_config file.")
    known_hosts: Path | None = Field(None, description="For ssh: another known_hosts file.")
    connect_timeout_s: Seconds = Field(10.0, gt=0, description="For ssh: seconds to connect in.")
    proxmox: ProxmoxAccess | None = Field(
        None, description="For a Proxmox node: its API. Default: pvesh on the node."
    )

    @model_validator(mode="after")
    def _one_way(self) -> Host:
        ways = [name for name in ("local", "ssh", "pct") if getattr(self, name) is not None]
        if len(ways) != 1:
            raise ValueError(
                f"give exactly one of local, ssh, pct (here: {', '.join(ways) or 'none'})"
            )
        if (self.pct is None) != (self.via is None):
            raise ValueError("pct and via go together: the container's id, and its node's entry")
        if self.become and self.ssh is None:
            raise ValueError("become goes with ssh")
        if self.proxmox is not None and self.pct is not None:
            raise ValueError("proxmox belongs to the node's entry, not to the container's")
        return self


class GpuSelection(Strict):
    """Which GPUs of which host the server uses."""

    host: str | None = Field(None, description="Host that owns the GPUs. Default: the server's.")
    select: Literal["all"] | list[int | str] = Field(
        "all", description="all, or GPU indices or UUIDs."
    )
    expect: int | None = Field(
        None,
        ge=1,
        description="How many GPUs there must be; fewer is 'could not tell' (exit 21), more is a finding.",
    )


class Speculation(Strict):
    """Speculative decoding under load."""

    disable_above: int | None = Field(
        None, ge=1, description="Draft nothing while more requests than this run."
    )
    margin: int = Field(
        1, ge=0, description="Hysteresis, in requests, between going off and coming back on."
    )


class SmokeSettings(Strict):
    """What a smoke of this server does."""

    levels: Levels = Field(default=[1, 2, 5, 10], description="Concurrency levels, ascending.")
    profile: Literal["quick", "full"] = Field("quick", description="quick or full (200 and more).")
    requests: int | None = Field(None, ge=1, description="Requests per level.")
    tokens: int = Field(32, ge=1, description="Output tokens per request.")
    timeout_s: Seconds = Field(120.0, gt=0, description="Longest time of one request.")
    prompts: Path | None = Field(None, description="JSONL file with prompts of your own.")
    from_: Literal["here", "tunnel", "host"] | None = Field(
        None,
        alias="from",
        description="Who sends, for smoke, restart and tune: this machine, this machine through the "
        "server's transport, or the server's host. Default: here for this machine's, else tunnel.",
    )

    @field_validator("levels")
    @classmethod
    def _ascending(cls, levels: list[int]) -> list[int]:
        if levels != sorted(set(levels)):
            raise ValueError("levels must ascend, each once")
        return levels


class StopSettings(Strict):
    """How this server is stopped."""

    grace_s: Seconds = Field(30.0, ge=0, description="Seconds between TERM and KILL.")
    drain_s: Seconds = Field(0.0, ge=0, description="Seconds to let running requests end first.")
    memory_timeout_s: Seconds = Field(60.0, gt=0, description="Seconds to wait for GPU memory.")
    margin_mib: int = Field(64, ge=0, description="MiB over a GPU's idle baseline that pass.")


class ReadySettings(Strict):
    """When this server counts as ready."""

    timeout_s: Seconds = Field(1800.0, gt=0, description="Longest start, in seconds.")
    stall_s: Seconds = Field(600.0, gt=0, description="No stage progress for this long is a hang.")
    generation_s: Seconds = Field(
        60.0, gt=0, description="The first real answer must come in this."
    )


class Server(Strict):
    """One inference deployment."""

    host: str = Field(description="Name of the host entry where it runs.")
    gpus: GpuSelection = Field(default=GpuSelection(), description="The GPUs it uses.")
    port: int = Field(30000, ge=1, le=65535, description="Port that it listens on.")
    address: str = Field("127.0.0.1", description="Address that probes use on the server's host.")
    python: str | None = Field(None, description="Interpreter that launches SGLang.")
    model: str | None = Field(None, description="Model path or name (--model-path).")
    args: dict[str, Any] = Field(
        default_factory=dict, description="SGLang flags without their dashes; true is a bare flag."
    )
    command: list[str] | None = Field(
        None, description="argv of any other server, instead of python/model/args."
    )
    env: dict[str, str | SecretRef] = Field(
        default_factory=dict, description="Environment; secrets by reference only."
    )
    user: str | None = Field(None, description="User that it runs as. Default: the transport's.")
    cwd: str | None = Field(None, description="Working directory of the server.")
    log_dir: str | None = Field(None, description="Folder of its logs. Default: /var/log/opsctl.")
    state_dir: str | None = Field(
        None,
        description="Folder of launch records and attempts on its host. Default: /var/lib/opsctl; "
        "without root: ~/.local/state/opsctl.",
    )
    patches: list[str] = Field(default_factory=list, description="Patch ids, in order.")
    speculation: Speculation | None = None
    smoke: SmokeSettings = SmokeSettings()
    stop: StopSettings = StopSettings()
    ready: ReadySettings = ReadySettings()
    inputs: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="Values of playbooks' inputs that the command line does not set, where a playbook "
        "has them, e.g. {snapshot: true}.",
    )
    api_key: SecretRef | None = Field(None, description="Key that requests carry, by reference.")
    nofile: int = Field(65536, ge=1024, description="RLIMIT_NOFILE of the server.")
    on_failure: Literal["leave", "stop", "rollback"] = Field(
        "leave",
        description="After a failed launch: leave it for inspection, stop it, or go back "
        "to the last attempt that passed.",
    )

    @model_validator(mode="after")
    def _one_launch(self) -> Server:
        if (self.command is None) == (self.python is None):
            raise ValueError("give either python (with model and args) or command")
        if self.python is not None and self.model is None:
            raise ValueError("'model' is missing")
        if self.command is not None and (self.args or self.model):
            raise ValueError("command stands alone: without model and args")
        return self

    @field_validator("command")
    @classmethod
    def _command(cls, command: list[str] | None) -> list[str] | None:
        from opsctl.domain.process import secret_words

        for flag, value in secret_words(command or ()):
            if not value.startswith(("/", "./")):  # the name of a file tells nothing
                raise ValueError(
                    f"'{flag}' would show the secret to every user in ps, and in every record of a launch; "
                    "let the program read it from a file or from its environment (env)"
                )
        return command

    @field_validator("args")
    @classmethod
    def _flags(cls, args: dict[str, Any]) -> dict[str, Any]:
        for name, value in args.items():
            if not _FLAG_NAME.match(name):
                raise ValueError(f"'{name}' is no flag name: write it as in --{name.strip('-')}")
            if name in ("port", "model-path", "model"):
                raise ValueError(f"'{name}' has a key of its own in the server entry")
            if SECRET_NAME.search(name):
                raise ValueError(
                    f"'{name}' would show the secret to every user in ps; "
                    "put it into a file for --config, and name that file"
                )
            if isinstance(value, dict):
                raise ValueError(f"'{name}': write JSON values as a quoted string")
        return args

    @field_validator("env", mode="before")
    @classmethod
    def _environment(cls, env: Any) -> Any:
        if not isinstance(env, dict):
            return env
        for name, value in env.items():
            if SECRET_NAME.search(str(name)) and not isinstance(value, dict | SecretRef):
                raise ValueError(
                    f"'{name}' looks like a secret: write {name}: {{env: {name}}} "
                    "(or file, command) instead of the value"
                )
            if isinstance(value, bool | int | float):
                raise ValueError(f"'{name}': quote it, as in {name}: \"{value}\"")
        return env


class Defaults(Strict):
    """Settings for every server that does not say otherwise."""

    smoke: SmokeSettings | None = None
    stop: StopSettings | None = None
    ready: ReadySettings | None = None
    log_dir: str | None = None
    on_failure: Literal["leave", "stop", "rollback"] | None = None


class Site(SiteLookup, Strict):
    """Everything that opsctl knows before it looks."""

    hosts: dict[str, Host] = Field(default_factory=dict, description="How to reach each host.")
    servers: dict[str, Server] = Field(default_factory=dict, description="What runs where.")
    defaults: Defaults = Defaults()
    patches_dir: str | None = Field(
        None,
        min_length=1,
        description="A folder of your own patches, relative to this file; they go before shipped ones.",
    )
    notify: dict[str, Webhook] = Field(
        default_factory=dict, description="Who is told when a run has ended, by name."
    )
    _path: Path | None = PrivateAttr(None)


def load_site(explicit: Path | None = None) -> Site:
    """Read the site file, or make the site of this machine where there is none.

    Commands use ``site_cache.load_site``, which need not validate a file again.

    Raises:
        ConfigError: the file is wrong; every problem has its file and line.
    """
    path = find_site_file(explicit)
    return this_machine() if path is None else site_of(path, read_file(path))


def this_machine() -> Site:
    """Return the site without a site file."""
    return Site(hosts={"here": Host(local=True)})


def site_of(path: Path, content: bytes) -> Site:
    """Return the site that the content of a file describes. Raises ConfigError as ``load_site`` does."""
    return _site_of(decode_yaml(content, str(path)), path)


def parse_site(text: str, path: Path) -> Site:
    """Read a site from text that stands in no file yet; ``path`` is where it would. Raises ConfigError."""
    return _site_of(parse_yaml(text, str(path)), path)


def _site_of(located: LocatedYaml, path: Path) -> Site:
    site = validate(Site, located)
    whole = _with_defaults(site, located.data)
    problems = _dangling(site, located.line_of) or _unreachable(whole, located.line_of)
    if problems:
        raise ConfigError(
            "\n".join(f"{path}:{line}: {text}" for line, text in problems),
            next_step="mend the file, then run `opsctl config check`",
            subject=str(path),
        )
    whole._path = path
    return whole


def _dangling(site: Site, line_of: Any) -> list[tuple[int, str]]:
    problems: list[tuple[int, str]] = []
    for name, host in site.hosts.items():
        if host.via is None:
            continue
        line = line_of(("hosts", name, "via"))
        if host.via not in site.hosts:
            problems.append((line, f"hosts.{name}.via: there is no host '{host.via}'"))
        elif site.hosts[host.via].pct is not None:
            problems.append((line, f"hosts.{name}.via: '{host.via}' is itself a container"))
    for name, server in site.servers.items():
        for key, host_name in (("host", server.host), ("gpus", server.gpus.host)):
            if host_name is not None and host_name not in site.hosts:
                line = line_of(("servers", name, key))
                problems.append((line, f"servers.{name}.{key}: there is no host '{host_name}'"))
        if name in site.hosts:
            problems.append(
                (line_of(("servers", name)), f"'{name}' names both a host and a server")
            )
    return problems


def _unreachable(site: Site, line_of: Any) -> list[tuple[int, str]]:
    """Find what a smoke could only say after the stop: a port that this machine does not reach."""
    return [
        (
            line_of(("servers", name, "smoke")),
            f"servers.{name}.smoke.from: {server.address} of {server.host} is not reached from here",
        )
        for name, server in site.servers.items()
        if server.smoke.from_ == "here"
        and not site.hosts[server.host].local
        and server.address in ONLY_THERE
    ]


def _with_defaults(site: Site, data: Any) -> Site:
    defaults = {k: v for k, v in site.defaults if v is not None}
    if not defaults:
        return site
    servers = {}
    for name, server in site.servers.items():
        given = data["servers"][name]
        missing = {key: value for key, value in defaults.items() if key not in given}
        servers[name] = server.model_copy(update=missing)
    return site.model_copy(update={"servers": servers})
