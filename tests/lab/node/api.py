#!/usr/bin/python3 -IS
"""The lab node's API on port 8006: TLS, tokens with privileges, tickets that expire, background tasks.

The paths are pvesh's, and the work is pct's on real LXC. Refusals have Proxmox VE's status and words.
"""

import hashlib
import hmac
import http.server
import json
import os
import ssl
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import paths
import switches
import tasks
from pve import Die

PORT = 8006
CERTIFICATE, KEY = "/etc/pve/local/pve-ssl.pem", "/etc/pve/local/pve-ssl.key"
USERS = "/etc/pve/priv/lab-users.json"
VERBS = {"GET": "get", "POST": "create", "PUT": "set", "DELETE": "delete"}
TICKET_TTL_S = 7200
SEAL = os.urandom(32)  # of this start; another start knows no old tickets


def read_users():
    """Return users and tokens: those that `up` wrote, and those of the switches."""
    with open(USERS) as file:
        known = json.load(file)
    return {kind: {**known[kind], **switches.read(kind, {})} for kind in ("users", "tokens")}


class Caller:
    """Who asks: a user who may do everything, or a token with its own list of privileges."""

    def __init__(self, user, acl):
        self.user = user
        self._acl = acl

    def has(self, path, privilege):
        return any(
            privilege in privileges
            for granted, privileges in self._acl.items()
            if granted == "/" or path == granted or path.startswith(granted + "/")
        )

    def held(self):
        return self._acl

    def run_task(self, kind, vmid, argv):
        task = tasks.begin(kind, vmid, self.user)
        threading.Thread(target=tasks.work, args=(task, argv), daemon=True).start()
        return task["upid"]


def make_ticket(user):
    body = f"PVE:{user}:{time.time_ns() // 1_000_000:X}"
    return f"{body}::{_seal(body)}"


def user_of_ticket(ticket):
    """Return whose ticket it is; None for one that is too old, or not ours."""
    body, _, seal = ticket.rpartition("::")
    if not hmac.compare_digest(seal, _seal(body)):
        return None
    _, user, stamp = body.split(":")
    made_s = int(stamp, 16) / 1000
    is_old = time.time() - made_s > TICKET_TTL_S
    return None if is_old or made_s < switches.read("tickets_gone_before_s", 0) else user


def _seal(text):
    return hmac.new(SEAL, text.encode(), hashlib.sha256).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self):
        self._answer()

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_args):
        """Say nothing; the tests look at what was answered."""

    def _answer(self):
        address = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        text = address.query + "&" + self.rfile.read(length).decode()
        options = dict(urllib.parse.parse_qsl(text, keep_blank_values=True))
        path = urllib.parse.unquote(address.path.removeprefix("/api2/json"))
        try:
            if (self.command, path) == ("POST", "/access/ticket"):
                data = log_in(options)
            else:
                data = paths.answer(self._caller(), VERBS[self.command], path, options)
            self._send(200, "OK", {"data": data})
        except paths.Refused as error:
            self._send(error.status, str(error), {"data": None, "message": f"{error}\n"})
        except Die as error:
            first = str(error).splitlines()[0]
            self._send(500, first, {"data": None, "message": f"{error}\n"})

    def _caller(self):
        given = self.headers.get("Authorization", "")
        if given.startswith("PVEAPIToken="):
            return caller_of_token(given.removeprefix("PVEAPIToken="))
        cookies = dict(
            part.strip().split("=", 1)
            for part in self.headers.get("Cookie", "").split(";")
            if "=" in part
        )
        ticket = urllib.parse.unquote(cookies.get("PVEAuthCookie", "")).strip('"')
        if not ticket:
            raise paths.Refused(401, "No ticket")
        user = user_of_ticket(ticket)
        if user is None:
            raise paths.Refused(401, "permission denied - invalid PVE ticket")
        if self.command != "GET" and self.headers.get("CSRFPreventionToken") != csrf_of(user):
            raise paths.Refused(401, "Permission denied - invalid csrf token")
        return Caller(user, {"/": paths.Root().held()["/"]})

    def _send(self, status, reason, document):
        body = json.dumps(document).encode()
        self.send_response(status, reason.replace("\n", " "))
        self.send_header("Content-Type", "application/json;charset=UTF-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def caller_of_token(given):
    """Return the caller of ``user@realm!name=secret``."""
    identity, _, secret = given.partition("=")
    known = read_users()["tokens"].get(identity)
    if known is None:
        user, _, name = identity.partition("!")
        raise paths.Refused(401, f"no such token '{name}' for user '{user}'")
    if not hmac.compare_digest(known["secret"], secret):
        raise paths.Refused(401, "invalid token value!")
    return Caller(identity, known["acl"])


def csrf_of(user):
    return f"{_seal('csrf ' + user)[:40]}"


def log_in(options):
    """Give a ticket for a password, or for a ticket that is still good, as PVE renews."""
    user, password = options.get("username", ""), options.get("password", "")
    known = read_users()["users"].get(user)
    renews = password.startswith("PVE:") and user_of_ticket(password) == user
    if known is None or not (renews or hmac.compare_digest(known, password)):
        raise paths.Refused(401, "authentication failure")
    return {"username": user, "ticket": make_ticket(user), "CSRFPreventionToken": csrf_of(user)}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, _request, _address):
        """A client that hangs up, or trusts another certificate, is no event here."""


def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    server = Server(("0.0.0.0", PORT), Handler)
    # the handshake belongs to the connection's own thread
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.serve_forever()


if __name__ == "__main__":
    main()
