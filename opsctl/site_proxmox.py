"""How a site says that a node's Proxmox API is to be used, and with which secret."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, model_validator

from opsctl.secret import SecretRef, Strict

_FINGERPRINT = re.compile(r"([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}")


class ProxmoxAccess(Strict):
    """The Proxmox side of a node's host entry; without ``api`` its own pvesh is used."""

    api: str | None = Field(
        None, description="https://NODE:8006. Without it: pvesh on the node, over its transport."
    )
    node: str | None = Field(
        None, description="The node's name in Proxmox. Default: the only node, or its host name."
    )
    token_id: str | None = Field(None, description="API token, user@realm!name.")
    token: SecretRef | None = Field(None, description="The token's secret, by reference.")
    user: str | None = Field(None, description="user@realm, instead of a token.")
    password: SecretRef | None = Field(None, description="The user's password, by reference.")
    ca_file: Path | None = Field(None, description="CA of the node: /etc/pve/pve-root-ca.pem.")
    fingerprint: str | None = Field(
        None, description="SHA-256 of the node's certificate, with a token instead of ca_file."
    )

    @model_validator(mode="after")
    def _one_login(self) -> ProxmoxAccess:
        if (self.token is None) != (self.token_id is None):
            raise ValueError("token_id and token go together")
        if (self.password is None) != (self.user is None):
            raise ValueError("user and password go together")
        logins = [one for one in (self.token, self.password) if one is not None]
        if self.api is None and (logins or self.ca_file or self.fingerprint):
            raise ValueError("'api' is missing: https://NODE:8006")
        if self.api is not None and len(logins) != 1:
            raise ValueError(
                "api goes with exactly one login: token_id and token, or user and password"
            )
        if self.token_id is not None and not re.fullmatch(r"[^@!]+@[^@!]+![\w.-]+", self.token_id):
            raise ValueError("token_id is written user@realm!name")
        if self.fingerprint is not None:
            if not _FINGERPRINT.fullmatch(self.fingerprint):
                raise ValueError("fingerprint is a SHA-256: 32 pairs of hex digits")
            if self.token is None:
                raise ValueError("a fingerprint goes with a token; with a password name a ca_file")
        return self
