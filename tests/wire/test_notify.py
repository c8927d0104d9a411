"""Webhooks against servers on this machine: told, bounded, verified; and no run changes by it."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http.server
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opsctl.notify import notify
from opsctl.site import Site
from opsctl.site_notify import Webhook
from tests.unit.test_notify import EVENT
from tests.wire.ground import Ground, make_ground

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]
KEY, TOKEN, PATH = "hmac-key-5f2a", "bearer-77aa", "/services/T0SECRET"


@dataclass
class Received:
    """What a server was sent."""

    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    status: int = 200
    delay_s: float = 0.0
    location: str = ""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[tuple[int, Received]]:
    """Serve on a port of this machine; yields it, and what arrives."""
    received = Received()
    done = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.requests.append((self.path, dict(self.headers), body))
            done.wait(received.delay_s)
            self.send_response(received.status)
            if received.location:
                self.send_header("Location", received.location)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *args: Any) -> None:
            """A client that does not trust us goes away; that is meant."""

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], received
    finally:
        done.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with make_ground(tmp_path) as made:
        yield made


def with_notify(ground: Ground, url: str, **more: Any) -> None:
    """Add one webhook to the site, its address and keys in files."""
    import yaml

    for name, text in (("url", url), ("key", KEY), ("token", TOKEN)):
        (ground.folder / name).write_text(text)
    body = yaml.safe_load(ground.site.read_text())
    body["notify"] = {
        "team": {
            "url": {"file": str(ground.folder / "url")},
            "secret": {"file": str(ground.folder / "key")},
            "token": {"file": str(ground.folder / "token")},
            "timeout_s": 2,
            **more,
        }
    }
    ground.site.write_text(yaml.safe_dump(body))


def problems(document: dict[str, Any]) -> list[str]:
    return [f["text"] for f in document["findings"] if f["code"] == "webhook-failed"]


def everything_kept(ground: Ground) -> bytes:
    """Return all bytes of the ledger, the runs and the host's state."""
    files = [
        path for name in ("state", "host", "logs") for path in (ground.folder / name).rglob("*")
    ]
    return b"".join(path.read_bytes() for path in files if path.is_file())


def test_a_webhook_is_told_how_runs_end(ground: Ground) -> None:
    """Restart, smoke, stop: signed, with the run's id; no secret in the ledger, a log or what is printed."""
    with serving() as (port, received):
        with_notify(ground, f"http://127.0.0.1:{port}{PATH}")
        documents = [
            ground.json("restart", "one", "--yes", "--no-smoke", "--reason", "nightly"),
            ground.json("smoke", "one", "--levels", "1", "--requests", "1", "--idle", "0"),
            ground.json("stop", "one", "--yes"),
        ]
        dry = ground.json("restart", "one", "--dry-run")

    told = [json.loads(body) for _, _, body in received.requests]
    path, headers, body = received.requests[0]
    digest = hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
    assert dry["outcome"] == "planned"
    assert [(one["command"], one["run"], one["exit_code"]) for one in told] == [
        (name, document["run"], document["exit_code"])
        for name, document in zip(("restart", "smoke", "stop"), documents, strict=True)
    ]
    assert told[0]["text"].startswith("restart one: done (exit 0); the new server runs")
    assert "because: nightly" in told[0]["text"]
    assert path == PATH
    assert headers["X-Opsctl-Signature"] == f"sha256={digest}"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert [problems(document) for document in documents] == [[], [], []]
    kept = everything_kept(ground) + json.dumps(documents).encode()
    assert not [secret for secret in (KEY, TOKEN, PATH) if secret.encode() in kept]


def test_a_webhook_that_fails_changes_nothing_but_is_told(ground: Ground) -> None:
    """Status 500, a redirect (not followed), no answer in time: exit 0 as the run, one finding each."""
    with serving() as (other, elsewhere), serving() as (port, received):
        with_notify(ground, f"http://127.0.0.1:{port}{PATH}")
        received.status = 500
        broken = ground.json("restart", "one", "--yes", "--no-smoke")
        received.status, received.location = 307, f"http://127.0.0.1:{other}/"
        moved = ground.json("run", "evidence", "one", "--yes")
        received.delay_s = 300.0
        begun = time.monotonic()
        silent = ground.json("run", "evidence", "one", "--yes")
        seconds = time.monotonic() - begun

    assert [d["exit_code"] for d in (broken, moved, silent)] == [0, 0, 0]
    assert [d["outcome"] for d in (broken, moved, silent)] == ["done"] * 3
    assert problems(broken) == ["it answered with status 500"]
    assert problems(moved) == ["it answered with status 307"]
    assert problems(silent) == ["it gave no answer within 2 s"]
    assert elsewhere.requests == []
    assert seconds < 100  # its two seconds, on a loaded machine; the answer would take 300
    done = ground.opsctl("run", "evidence", "one", "--yes")
    assert done.returncode == 0
    assert "team: it could not be reached" in done.stderr
    assert PATH not in done.stderr + done.stdout


def test_an_answer_that_never_ends_is_left_behind() -> None:
    """A server that sends a byte now and then keeps nobody beyond the webhook's time."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            while not stop.wait(0.1):
                peer.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        hook = Webhook.model_validate({"url": {"env": "HOOK"}, "timeout_s": 1})
        os.environ["HOOK"] = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        begun = time.monotonic()
        try:
            found = notify(Site(notify={"team": hook}), EVENT)
        finally:
            seconds = time.monotonic() - begun
            stop.set()
            del os.environ["HOOK"]
        thread.join(10)

    assert [finding.text for finding in found] == ["it gave no answer in its time"]
    assert seconds < 60  # one and one of grace, on a loaded machine; it never ends by itself


def test_only_failures_are_told_when_so_asked_errors_too(ground: Ground) -> None:
    """`when: failure` hears of a crash and of an error before any step; not of a good run."""
    with serving() as (port, received):
        with_notify(ground, f"http://127.0.0.1:{port}/", when="failure")
        assert ground.json("run", "evidence", "one", "--yes")["exit_code"] == 0
        assert received.requests == []
        refused = ground.json("smoke", "one")

    told = [json.loads(body) for _, _, body in received.requests]
    assert refused["exit_code"] != 0
    assert [(one["command"], one["exit_code"]) for one in told] == [("smoke", refused["exit_code"])]
    assert told[0]["findings"][0]["text"] == refused["findings"][0]["text"]


def test_a_certificate_is_verified(ground: Ground, tmp_path: Path) -> None:
    """One that nobody vouches for gets nothing; with its authority named it is told."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(make_certificate(tmp_path))
    with serving(context) as (port, received):
        with_notify(ground, f"https://127.0.0.1:{port}/")
        stranger = ground.json("run", "evidence", "one", "--yes")
        assert received.requests == []
        with_notify(ground, f"https://127.0.0.1:{port}/", ca_file="server.pem")
        known = ground.json("run", "evidence", "one", "--yes")

    assert problems(stranger) == ["its certificate was not accepted"]
    assert problems(known) == []
    assert len(received.requests) == 1


def test_plain_http_to_another_machine_and_a_missing_secret_are_refused(ground: Ground) -> None:
    """Nothing leaves; `config check` names the secret that cannot be read."""
    with_notify(ground, f"http://192.0.2.1{PATH}")
    plain = ground.json("run", "evidence", "one", "--yes")
    (ground.folder / "key").unlink()
    missing = ground.json("run", "evidence", "one", "--yes")
    checked = ground.json("config", "check")

    assert problems(plain) == ["its address is not https"]
    assert "No such file" in problems(missing)[0]
    assert checked["exit_code"] == 10
    assert checked["findings"][0]["subject"] == "notify.team.secret"


def make_certificate(folder: Path) -> Path:
    """Make a certificate for 127.0.0.1 with its key, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path
