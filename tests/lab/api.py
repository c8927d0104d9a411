"""What the control machine knows of the lab node's API: its CA, fingerprint, token and password."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.lab.instance import Instance

TOKEN_ID = "ops@pve!opsctl"
USER = "ops@pve"


def folder(instance: Instance) -> Path:
    """Return where the control machine keeps what it knows of the API."""
    return instance.dir / "api"


def ca_file(instance: Instance) -> Path:
    """Return the CA, the same text as /etc/pve/pve-root-ca.pem of the node."""
    return folder(instance) / "pve-root-ca.pem"


def secret_file(instance: Instance, kind: str) -> Path:
    """Return the file with the token's or the user's secret (kind: token, password)."""
    return folder(instance) / kind


def make(instance: Instance, names: tuple[str, ...], addresses: tuple[str, ...]) -> None:
    """Make CA, certificate and secrets, once."""
    where = folder(instance)
    if (where / "node.key").exists():
        return
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_key, node_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, "Proxmox Virtual Environment lab")]
    )
    ca = _builder(ca_name, ca_name, ca_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca_signed = ca.add_extension(usage, critical=True).sign(ca_key, hashes.SHA256())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    known = [
        *(x509.DNSName(name) for name in names),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
    ]
    node = _builder(subject, ca_name, node_key).add_extension(
        x509.SubjectAlternativeName(known), critical=False
    )
    node_signed = node.sign(ca_key, hashes.SHA256())
    ca_file(instance).write_bytes(ca_signed.public_bytes(serialization.Encoding.PEM))
    pem = node_signed.public_bytes(serialization.Encoding.PEM)
    (where / "node.pem").write_bytes(pem)
    for kind in ("token", "password"):
        _private(secret_file(instance, kind), secrets.token_hex(16).encode())
    key = node_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _private(where / "node.key", key)


def fingerprint(instance: Instance) -> str:
    """Return the SHA-256 of the node's certificate, as the node's own pages show it."""
    certificate = x509.load_pem_x509_certificate((folder(instance) / "node.pem").read_bytes())
    digest = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    return ":".join(digest[at : at + 2] for at in range(0, 64, 2)).upper()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
    )


def _private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
