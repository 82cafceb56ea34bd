"""Logins of the Iceberg catalog: OAuth 2 client credentials for a role of the node.

    client credentials    the role's name and password, in the form or as basic authentication
    token exchange        a token that is still valid, for a new one: clients refresh theirs so;
                          with basic authentication the old token does not matter

A bearer token is ``OID.time.mac``: the role, the Unix time at which it ends, and a MAC over both
and the role's password verifier. Nothing is stored: another password, another key or the end of the
role ends the token. Whether the role may still log in is looked at for each request.

The key is in ``run/iceberg/tokens.key``, so that tokens outlive a restart of the process.

Called by: ``routes``.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from wal2lake.catalog import Role
from wal2lake.login import has_expired
from wal2lake.model import Oid
from wal2lake.web.iceberg.answers import CatalogRefusal, not_authorized

TOKEN_SECONDS: Final = 3600
"""Lifetime of a token. A client asks for the next one before its end."""

CLIENT_CREDENTIALS: Final = "client_credentials"
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"

_KEY_BYTES: Final = 32
_KEY_FILE: Final = "tokens.key"


class RolesByOid(Protocol):
    """The part of the catalog that a token is checked against."""

    def role_by_oid(self, oid: Oid) -> Role | None:
        """Return a role."""


class Tokens:
    """Makes and checks tokens."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._clock = clock

    def issue(self, role: Role) -> Mapping[str, object]:
        """Return the answer to a client that has proved to be a role."""
        ends = int(self._clock()) + TOKEN_SECONDS
        return {
            "access_token": f"{role.oid}.{ends}.{self._mac(role, ends)}",
            "token_type": "bearer",
            "expires_in": TOKEN_SECONDS,
            "issued_token_type": ACCESS_TOKEN,
        }

    def role(self, token: str, roles: RolesByOid) -> Role:
        """Return the role of a token. Raises CatalogRefusal (401)."""
        oid, _, rest = token.partition(".")
        ends, _, mac = rest.partition(".")
        if not (_is_number(oid) and _is_number(ends) and mac.isascii()):
            raise _invalid()
        role = roles.role_by_oid(Oid(int(oid)))
        if role is None or not hmac.compare_digest(mac, self._mac(role, int(ends))):
            raise _invalid()
        if int(ends) <= self._clock() or not role.login or has_expired(role):
            raise not_authorized("the token has expired, or the role may not log in")
        return role

    def _mac(self, role: Role, ends: int) -> str:
        text = f"{role.oid}\0{ends}\0{role.password}".encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


def bearer(header: str | None) -> str:
    """Return the token of an Authorization header. Raises CatalogRefusal (401)."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise not_authorized(
            "a token is needed: ask /v1/oauth/tokens for one with a role's name and password"
        )
    return token.strip()


def read_key(directory: Path) -> bytes:
    """Return the node's key, which is made if there is none. OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / _KEY_FILE
    with contextlib.suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
    key = secrets.token_bytes(_KEY_BYTES)
    draft = path.with_name(f".{_KEY_FILE}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, key)
    finally:
        os.close(descriptor)
    draft.replace(path)
    return key


def _is_number(text: str) -> bool:
    """Whether this is an unsigned number of 32 bits."""
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 2**32


def _invalid() -> CatalogRefusal:
    return not_authorized("the token is not valid")
