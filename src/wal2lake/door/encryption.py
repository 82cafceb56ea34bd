"""TLS at the front door: the certificate and the rules of a handshake.

Takes settings and the administrator's files; returns an ``Encryption``, or None if TLS is off, and
the facts about a client after its handshake. Errors name the file and the remedy.

Source: src/backend/libpq/be-secure-openssl.c; PostgreSQL manual, sections 18.9 and 19.3.3;
RFC 5929, section 4.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wal2lake.login.certificate import server_context, unusable
from wal2lake.settings import Settings

ALPN: Final = "postgresql"
"""Protocol that a client must name if it begins with TLS at once (sslnegotiation=direct)."""
HANDSHAKE_BYTE: Final = 0x16
"""First byte of a TLS connection. As a startup packet it would exceed the length limit."""

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
}


@dataclass(frozen=True, slots=True)
class Encryption:
    """Certificate and key for handshakes."""

    context: ssl.SSLContext
    end_point: bytes | None
    """tls-server-end-point of the certificate; None if its signature algorithm has no hash."""


@dataclass(frozen=True, slots=True)
class Encrypted:
    """An encrypted connection."""

    version: str
    cipher: str
    bits: int
    certified: bool
    """True if an authority of ``ssl_ca_file`` has signed the client's certificate."""
    common_name: str | None
    """Common name in the certificate."""
    subject: str | None
    """Distinguished name of the certificate, as X509_NAME_oneline() prints it."""
    end_point: bytes | None
    """Channel-binding hash of the server's certificate, as in ``Encryption``."""


def make_encryption(settings: Settings) -> Encryption | None:
    """Load the files for later handshakes; ConfigurationError if one is missing or invalid."""
    node = settings.node
    if not node.ssl:
        return None
    context = server_context(settings)
    context.set_alpn_protocols([ALPN])
    if node.ssl_ca_file:
        authorities = settings.directory / node.ssl_ca_file
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError) as error:
            raise unusable("root certificate", authorities, error) from error
        # pg_hba.conf decides which clients need a certificate.
        context.verify_mode = ssl.CERT_OPTIONAL
    certificate = settings.directory / node.ssl_cert_file
    return Encryption(context, _end_point(certificate))


def describe(tls: ssl.SSLObject, encryption: Encryption) -> Encrypted:
    """Describe the result of the handshake."""
    cipher = tls.cipher()
    certificate: dict[str, Any] = dict(tls.getpeercert() or {})
    subject = [
        (str(name), str(value))
        for rdn in certificate.get("subject", ())
        for name, value in rdn
    ]
    names = [value for name, value in subject if name == "commonName"]
    shown = (f"/{_SHORT_NAMES.get(name, name)}={value}" for name, value in subject)
    return Encrypted(
        tls.version() or "",
        cipher[0] if cipher else "",
        cipher[2] if cipher else 0,
        bool(certificate),
        names[-1] if names else None,
        "".join(shown) or None,
        encryption.end_point,
    )


def _end_point(certificate: Path) -> bytes | None:
    """Return the channel-binding hash of the file's first certificate, the server's own.

    The file has been loaded before."""
    # Imported here, because only a node with TLS needs it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    own = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    algorithm = own.signature_hash_algorithm
    if isinstance(algorithm, hashes.MD5 | hashes.SHA1):
        algorithm = hashes.SHA256()
    return None if algorithm is None else own.fingerprint(algorithm)
