"""Tell webhooks that a run has ended. What goes wrong here is a finding, and never changes the run.

No message holds an address, a token or a key: an address may itself be the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import ConfigError
from opsctl.output import Document, Finding, well_formed
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.site import Site
    from opsctl.site_notify import Webhook

LARGEST_BODY = 256 << 10
GRACE_S = 1.0  # beyond a webhook's own time, before its thread is left behind
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Ended:
    """What a template may say of a run that has ended."""

    command: str
    server: str
    host: str
    outcome: str
    exit_code: int
    run: str | None
    who: str
    reason: str | None
    seconds: float
    state: str | None = None  # in which state things are now
    signature: str | None = None
    diagnosis: str | None = None
    bracket: Mapping[str, Any] | None = None
    findings: tuple[Mapping[str, str], ...] = field(default=())

    @property
    def text(self) -> str:
        """The run in one line."""
        parts = [f"{self.command} {self.server}: {self.outcome} (exit {self.exit_code})"]
        parts += [text for text in (self.state, self.diagnosis) if text]
        if self.exit_code and not self.diagnosis and self.findings:
            parts.append(self.findings[0]["text"])
        parts.append(f"{self.seconds:.0f} s, by {self.who}")
        parts += [f"because: {self.reason}"] if self.reason else []
        parts += [f"opsctl show {self.run}"] if self.run else []
        return "; ".join(parts)


def ended(
    document: Document, *, server: str, host: str, who: str, reason: str | None, begun_s: float
) -> Ended:
    """Return what is told of a command's document. ``begun_s``: seconds since the epoch."""
    data = document.data
    found = data.get("diagnosis") or {}
    return Ended(
        document.command,
        server,
        host,
        document.outcome,
        document.exit_code,
        document.run,
        who,
        reason,
        round(max(0.0, time.time() - begun_s), 3),
        state=data.get("state"),
        signature=found.get("signature"),
        diagnosis=found.get("explanation"),
        bracket=data.get("bracket"),
        findings=tuple(asdict(finding) for finding in document.unique_findings),
    )


def notify(site: Site, event: Ended) -> list[Finding]:
    """Tell every webhook that wants to know, all at once; return one finding for each that failed."""
    wanted = {
        name: webhook
        for name, webhook in site.notify.items()
        if webhook.when == "always" or event.exit_code != 0
    }
    problems: dict[str, str | None] = dict.fromkeys(wanted, "it gave no answer in its time")
    base = site.path.parent if site.path else Path()

    def tell(name: str, webhook: Webhook) -> None:
        problems[name] = tell_one(webhook, event, base)

    threads = [
        threading.Thread(target=tell, args=item, daemon=True, name=f"webhook-{item[0]}")
        for item in wanted.items()
    ]
    try:
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread, webhook in zip(threads, wanted.values(), strict=True):
            thread.join(max(0.0, begun + webhook.timeout_s + GRACE_S - time.monotonic()))
    except KeyboardInterrupt:
        pass  # the run has ended; whoever was not told by now is named
    return [
        Finding(
            "webhook-failed", name, problem, "the run itself is as it says; see notify in the site"
        )
        for name, problem in dict(problems).items()
        if problem is not None
    ]


def tell_one(webhook: Webhook, event: Ended, base: Path) -> str | None:
    """Send one webhook; return what went wrong, without its address."""
    try:
        url = webhook.url.resolve()
        token = webhook.token.resolve() if webhook.token else None
        key = webhook.secret.resolve() if webhook.secret else None
    except ConfigError as error:
        return error.message
    problem = refuse_address(url)
    if problem is not None:
        return problem
    try:
        body = body_of(webhook, event, base)
    except ConfigError as error:
        return error.message
    headers = {"Content-Type": webhook.content_type, "User-Agent": "opsctl"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if key is not None:
        digest = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Opsctl-Signature"] = f"sha256={digest}"
    ca_file = None if webhook.ca_file is None else base / webhook.ca_file.expanduser()
    return post(url, body, headers, ca_file, webhook.timeout_s)


def refuse_address(url: str) -> str | None:
    """Say why an address is not used; plain http is for this machine alone."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return "its address is no URL"
    if "\\" in url:
        return "its address is no URL"  # what stands before and after is read in two ways
    if parts.scheme == "https" and host:
        return None
    if parts.scheme == "http" and host in LOOPBACK:
        return None
    return "its address is not https"


def body_of(webhook: Webhook, event: Ended, base: Path) -> bytes:
    """Return the body that the template makes. Raises ConfigError, also when it is no JSON but should be."""
    from opsctl.templates import render_text

    values = {**asdict(event), "text": event.text}
    path = None if webhook.template is None else base / webhook.template.expanduser()
    body = well_formed(render_text("webhook.json.j2", values, path)).encode()
    if len(body) > LARGEST_BODY:
        raise ConfigError(
            f"its body has {len(body) >> 10} KiB; {LARGEST_BODY >> 10} are sent at most"
        )
    if webhook.content_type.startswith("application/json"):
        try:
            json.loads(body)
        except ValueError as error:
            raise ConfigError(f"its template does not give JSON: {error}") from error
    return body


def post(
    url: str, body: bytes, headers: Mapping[str, str], ca_file: Path | None, timeout_s: float
) -> str | None:
    """POST once: certificates verified, no redirect followed, no proxy or netrc of the environment."""
    import requests
    import urllib3

    session = requests.Session()
    session.trust_env = False  # no netrc, no proxy that would be told the address
    try:
        with session.post(
            url,
            data=body,
            headers=dict(headers),
            timeout=timeout_s,
            allow_redirects=False,
            verify=str(ca_file) if ca_file else True,
            stream=True,
        ) as answer:
            status = answer.status_code
    except requests.exceptions.SSLError:
        return "its certificate was not accepted"
    except requests.exceptions.Timeout:
        return f"it gave no answer within {timeout_s:g} s"
    except requests.exceptions.ConnectionError:
        return "it could not be reached"
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        return f"it could not be sent: {type(error).__name__}"
    return None if 200 <= status < 300 else f"it answered with status {status}"
