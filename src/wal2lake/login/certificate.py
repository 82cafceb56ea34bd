"""The node's certificate and key, as a context for TLS servers.

Takes settings and the administrator's files; returns an ``SSLContext``. Errors name the file and
the remedy.

Called by: the front door (``encryption``), the web process. Source: src/backend/libpq/
be-secure-openssl.c, be-secure-common.c (check_ssl_key_file_permissions).
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.settings import Settings

_VERSIONS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


def server_context(settings: Settings) -> ssl.SSLContext:
    """Return a context with the certificate; ConfigurationError if a file is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    """Have later handshakes use the files and the oldest version of the settings."""
    certificate = settings.directory / settings.node.ssl_cert_file
    key = settings.directory / settings.node.ssl_key_file
    _check_permissions(key)
    try:
        # Never ask the terminal for a passphrase.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise unusable(
            "server certificate or private key", certificate, error
        ) from error
    context.minimum_version = _VERSIONS[settings.node.ssl_min_protocol_version]


def _check_permissions(key: Path) -> None:
    try:
        status = key.stat()
    except OSError as error:
        raise ConfigurationError(
            f'could not access private key file "{key}": {error.strerror}',
            hint='Set "ssl_key_file" and "ssl_cert_file" of [node], or "ssl" to false.',
        ) from error
    allowed = 0o640 if status.st_uid == 0 and os.geteuid() != 0 else 0o600
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f'private key file "{key}" is not a regular file')
    if stat.S_IMODE(status.st_mode) & 0o777 & ~(allowed | 0o100):
        raise ConfigurationError(
            f'private key file "{key}" has group or world access',
            detail="File must have permissions u=rw (0600) or less if owned by the database"
            " user, or permissions u=rw,g=r (0640) or less if owned by root.",
        )


def unusable(description: str, path: Path, error: Exception) -> ConfigurationError:
    """Return the error for a file that TLS cannot use."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return ConfigurationError(
        f'could not load {description} file "{path}": {reason or error}',
        hint="Both must be in PEM format; the key must fit the certificate and have no"
        " passphrase.",
    )
