"""What the `ct` commands share: the container, its lock, its task with progress, the refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from opsctl.errors import Interrupted, SafetyRefusal
from opsctl.output import Finding
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.cli.app import App
    from opsctl.cli.talk import Talk
    from opsctl.containers import Place
    from opsctl.domain.container import Lock
    from opsctl.proxmox_container import Container
    from opsctl.session import Hosts


@dataclass(slots=True)
class Target:
    """One container of one node, and the way to both."""

    word: str  # as the command line names it
    place: Place
    container: Container
    hosts: Hosts
    talk: Talk

    @property
    def name(self) -> str:
        inside = f" (server {', '.join(self.place.servers)})" if self.place.servers else ""
        return f"container {self.place.vmid} on {self.container.node}{inside}"

    def lock(self, status: dict[str, Any]) -> Lock | None:
        """Return the lock that a status shows, with the running task that accounts for it."""
        return self.container.lock(status)

    def refuse_locked(self, status: dict[str, Any]) -> None:
        """Raise SafetyRefusal (exit 50) while another task holds the container's lock."""
        lock = self.lock(status)
        if lock is not None:
            raise SafetyRefusal(
                f"{self.name} is {lock.describe(time.time())}",
                next_step=lock.advice(self.place.vmid),
                code="container-locked",
                subject=str(self.place.vmid),
            )

    def hold_ports(self, verb: str) -> list[Finding]:
        """Take the port locks of the servers inside, until this command ends with the container.

        Returns a finding where that could not be told (no way in, no Python inside).

        Raises:
            SafetyRefusal: exit 50, when a run of opsctl works on one of them.
        """
        from opsctl.cli.playbook_run import who_am_i
        from opsctl.errors import AgentError, TransportError
        from opsctl.steps.lock import describe_holder

        servers = {name: self.hosts.site.servers[name] for name in self.place.servers}
        for host in sorted({server.host for server in servers.values()})[:1]:
            names = sorted({f"port-{server.port}" for server in servers.values()})
            owner = {"who": who_am_i(), "run": None, "reason": f"ct {verb}", "server": ""}
            try:
                agent = self.hosts.agent(host)
                reply = agent.call("lock.acquire", {"names": names, "owner": owner}, timeout_s=10.0)
            except (AgentError, TransportError) as error:
                text = f"whether a run works inside could not be told: {error.message}"
                return [Finding("locks-not-told", str(self.place.vmid), text)]
            if not reply["acquired"]:
                holder = describe_holder(reply.get("holder") or {}, time.time())
                raise SafetyRefusal(
                    f"{reply['name']} in {self.name} is locked by {holder}",
                    next_step="wait for that run, or talk to its operator",
                    code="locked",
                    subject=str(self.place.vmid),
                )
        return []

    def base_data(self) -> dict[str, Any]:
        """Return what every document of a container says."""
        return {
            "vmid": self.place.vmid,
            "node": self.container.node,
            "servers": list(self.place.servers),
            "api": self.container.api.name,
        }

    @contextmanager
    def ticking(self, text: str, then: str = "") -> Iterator[None]:
        """Show ``text`` with its seconds on stderr while the block runs; ``then``: what to look for.

        Raises:
            Interrupted: on Ctrl-C; the node's task is not ended by it, and that is said.
        """
        try:
            with self.talk.ticking(text):
                yield
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted while waiting for: {text}; the node's task goes on without us",
                next_step=f"look: opsctl ct status {self.word}{then}",
            ) from None


@contextmanager
def open_target(app: App, word: str, node: str | None) -> Iterator[Target]:
    """Find the container that a command line means, and open the way to its node."""
    from opsctl.cli.talk import Talk
    from opsctl.containers import find_place, open_container
    from opsctl.session import open_hosts
    from opsctl.site_cache import load_site

    site = load_site(app.site_path)
    place = find_place(site, word, node)
    with open_hosts(site) as hosts:
        container = open_container(hosts, place)
        try:
            yield Target(word, place, container, hosts, Talk(quiet=app.as_json))
        finally:
            container.api.close()


def task_findings(target: Target, warnings: int, log_tail: tuple[str, ...]) -> list[Finding]:
    """Return a finding when the node's task was done with warnings."""
    if not warnings:
        return []
    said = "; ".join(line for line in log_tail if "warn" in line.lower()) or "see the task's log"
    text = f"the task was done, with {warnings} warnings: {said}"
    return [Finding("task-warnings", str(target.place.vmid), text)]


def target_options(function: Any) -> Any:
    """Declare VMID|SERVER and --node."""
    function = click.option(
        "--node",
        metavar="HOST",
        help="Host entry of the Proxmox node. Needed for a VMID where the site has several nodes.",
    )(function)
    return click.argument("target", metavar="VMID|SERVER")(function)
