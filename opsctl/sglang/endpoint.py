"""Where a server answers: address, TLS, key, and the requests that are sent there."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import field
from urllib.parse import urlsplit

from opsctl.errors import UsageError
from opsctl.records import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server answers: scheme, address and the path in front of every route."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    verify: bool = True
    ca_file: str | None = None
    api_key: str | None = field(default=None, repr=False)
    dial: Callable[[float], socket.socket] | None = (
        None  # the way there, where it is not TCP from here
    )

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None for plain HTTP."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"the CA file {self.ca_file} cannot be used: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return one whole request, ready to be written."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "User-Agent: opsctl",
            "Accept: */*",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body or method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


API_PATHS = {
    "/generate": "generate",
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
}


def parse_url(url: str) -> tuple[Endpoint, str | None]:
    """Return the endpoint that a URL names, and the API when its path is one of the three.

    Raises:
        UsageError: when it is no http or https URL with a host.
    """
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"'{url}' is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"'{url}' is not the address of a server",
            next_step="give it as http://HOST:PORT, for example http://127.0.0.1:30000",
        )
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/")
    api = None
    for route, name in API_PATHS.items():
        if path.endswith(route):
            api, path = name, path[: -len(route)]
            break
    else:
        path = path.removesuffix("/v1")
    return Endpoint(parts.hostname, port or (443 if tls else 80), tls, path), api
