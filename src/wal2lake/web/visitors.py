"""Visitors from other machines: HTTP basic authentication of a role of the node.

A visitor is let in as a role that may log in, has the password, and is a superuser or has the
privileges of pg_monitor. Role and memberships are read for each request, so that a REVOKE, an ALTER
ROLE and VALID UNTIL hold at once; only the result of the password's costly check is remembered.
To the visitor, an unknown role, a wrong password and an expired one look alike.

    no or malformed credentials     401
    wrong                           401, counted against the address
    right, but no pg_monitor        403
    address has failed too often    429, with Retry-After; the password is not looked at

Takes headers and addresses; returns None or the refusal. Called by: ``guard``.
Source: RFC 7617, RFC 6585 section 4.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Final, Protocol

from starlette.responses import PlainTextResponse

from wal2lake.catalog import Authority, Role
from wal2lake.errors import StorageError
from wal2lake.login import Throttle, has_expired, is_password
from wal2lake.observe import get_logger

_MONITOR: Final = "pg_monitor"

_REMEMBERED: Final = 256
"""Passwords whose check is remembered: more than a node has visitors."""

_CHALLENGE: Final = {"www-authenticate": 'Basic realm="wal2lake", charset="UTF-8"'}


class RoleCatalog(Protocol):
    """The part of the catalog that a login reads; called from a thread."""

    def role(self, name: str) -> Role | None:
        """Return a role by name."""

    def authority(self) -> Authority:
        """Return all roles and memberships."""


class _Verdict(Enum):
    ADMITTED = "admitted"
    WRONG = "wrong"
    DENIED = "denied"


class Visitors:
    """Decides who may read from another machine. Used in one event loop."""

    def __init__(
        self, catalog: RoleCatalog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._throttle = Throttle()
        self._key = secrets.token_bytes(32)
        self._proved: OrderedDict[bytes, None] = OrderedDict()
        # One thread: passwords are checked one after another, whatever arrives.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="logins")

    async def refusal(
        self, header: str | None, address: str
    ) -> PlainTextResponse | None:
        """Return the answer to a visitor who is not let in; None for one who is.

        ``header`` is the request's Authorization."""
        credentials = None if header is None else _credentials(header)
        if credentials is None:
            return PlainTextResponse("Log in.\n", 401, headers=_CHALLENGE)
        name, password = credentials
        loop = asyncio.get_running_loop()
        try:
            verdict = await loop.run_in_executor(
                self._thread, self._attempt, name, password, address
            )
        except StorageError as error:
            get_logger().error("could not read the catalog", error=error)
            return PlainTextResponse("The catalog cannot be read.\n", 503)
        if isinstance(verdict, float):
            return _too_often(verdict)
        if verdict is _Verdict.WRONG:
            get_logger().warning(
                f'password authentication failed for user "{name}"', client=address
            )
            return PlainTextResponse(
                "Wrong name or password.\n", 401, headers=_CHALLENGE
            )
        if verdict is _Verdict.DENIED:
            return PlainTextResponse(
                f"permission denied: this needs the privileges of {_MONITOR}\n", 403
            )
        return None

    async def login(
        self, name: str, password: str, address: str
    ) -> Role | float | None:
        """Return the role of a visitor who logs in for more than reading the node's state; None for
        a wrong name or password, seconds if the address has failed too often. StorageError."""
        loop = asyncio.get_running_loop()
        role = await loop.run_in_executor(
            self._thread, self._prove, name, password, address
        )
        if role is None:
            get_logger().warning(
                f'password authentication failed for user "{name}"', client=address
            )
        return role

    # ---- in the thread ----------------------------------------------------------------

    def _attempt(self, name: str, password: str, address: str) -> _Verdict | float:
        """Decide about one visitor, or return the time until the address may try again."""
        role = self._prove(name, password, address)
        if isinstance(role, float):
            return role
        if role is None:
            return _Verdict.WRONG
        authority = self._catalog.authority()
        monitor = authority.by_name[_MONITOR]
        if role.login and authority.has_privileges_of(role.oid, monitor.oid):
            return _Verdict.ADMITTED
        return _Verdict.DENIED

    def _prove(self, name: str, password: str, address: str) -> Role | float | None:
        """Look at one password, or return the time until the address may try again.

        It is counted before the next one is looked at, however many come at once."""
        if not self._is_proved(name, password):
            wait = self._throttle.wait_seconds(address, self._clock())
            if wait > 0:
                return wait
        role = self._catalog.role(name)
        if not self._fits(role, password) or role is None:
            self._throttle.failed(address, self._clock())
            return None
        self._throttle.succeeded(address)
        return role

    def _is_proved(self, name: str, password: str) -> bool:
        role = self._catalog.role(name)
        return role is not None and self._digest(role, password) in self._proved

    def _fits(self, role: Role | None, password: str) -> bool:
        digest = None if role is None else self._digest(role, password)
        if digest is not None and digest in self._proved:
            self._proved.move_to_end(digest)
            # VALID UNTIL may have come since.
            return role is not None and not has_expired(role)
        if not is_password(role, password):
            return False
        if digest is not None:
            self._proved[digest] = None
            if len(self._proved) > _REMEMBERED:
                self._proved.popitem(last=False)
        return True

    def _digest(self, role: Role, password: str) -> bytes:
        # The verifier is part of it: another password ends what was remembered.
        text = f"{int(role.oid)}\0{role.password}\0{password}".encode()
        return hmac.digest(self._key, text, hashlib.sha256)


def _credentials(header: str) -> tuple[str, str] | None:
    """Return name and password; None if the header is not of basic authentication."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None
    name, separator, password = text.partition(":")
    return (name, password) if separator and "\0" not in text else None


def _too_often(wait: float) -> PlainTextResponse:
    seconds = math.ceil(wait)
    return PlainTextResponse(
        f"Too many failed logins; try again in {seconds} s.\n",
        429,
        headers={"retry-after": str(seconds)},
    )
