"""Rules that every request passes, before any route sees it.

    rule                              answer otherwise
    -----------------------------     --------------------------------
    GET or HEAD                       405
    loopback: Host is this machine    403 (DNS rebinding: a page of another site that a browser
                                      shows would read ours under that site's name)
    elsewhere: a role's password      401, 403, 429 (``visitors``); /health/ needs none, and then
                                      gives no reasons in words
    /v1/: the Iceberg catalog         its own methods and logins, on all addresses (``iceberg``)

Every response carries the headers that keep a browser from doing more with it than showing it:
scripts, styles and connections of this server alone, no frames, no guessing of types, no copies.
There are no CORS headers, so no other site's script can read an answer.

Called by: ``app``.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wal2lake.web.iceberg import CATALOG_PATHS
from wal2lake.web.visitors import Visitors

_METHODS: Final = ("GET", "HEAD")

_OPEN: Final = "/health/"
"""Paths that need no login: a load balancer has none."""

ADMITTED: Final = "admitted"
"""Key of a request's state: whether the client may read everything."""

_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)

SECURITY_HEADERS: Final = (
    ("content-security-policy", _CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)


class Guard:
    """ASGI middleware around the routes of one kind of address."""

    def __init__(self, app: ASGIApp, visitors: Visitors | None) -> None:
        """``visitors`` decides who is let in; None on addresses of this machine."""
        self._app = app
        self._visitors = visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on."""
        if scope["type"] != "http":
            return
        refusal = await self._refusal(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS:
                    headers.setdefault(name, value)
                if refusal is not None:
                    # Its body, if it has one, is not read.
                    headers["connection"] = "close"
            await send(message)

        await (refusal or self._app)(scope, receive, guarded)

    async def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        is_catalog = scope["path"].startswith(CATALOG_PATHS)
        if scope["method"] not in _METHODS and not is_catalog:
            return PlainTextResponse(
                "Only GET and HEAD are allowed.\n",
                405,
                headers={"allow": ", ".join(_METHODS)},
            )
        headers = Headers(scope=scope)
        if self._visitors is None:
            host = headers.get("host")
            is_own_host = host is None or _is_this_machine(host)
            scope.setdefault("state", {})[ADMITTED] = is_own_host
            return None if is_own_host else _foreign_host()
        if is_catalog:
            scope.setdefault("state", {})[ADMITTED] = False
            return None
        client = scope.get("client")
        refusal = await self._visitors.refusal(
            headers.get("authorization"), client[0] if client else ""
        )
        scope.setdefault("state", {})[ADMITTED] = refusal is None
        return None if scope["path"].startswith(_OPEN) else refusal


def _foreign_host() -> PlainTextResponse:
    return PlainTextResponse(
        "The Host header must be localhost or a loopback address.\n"
        "A proxy on this machine must set it.\n",
        403,
    )


def _is_this_machine(host: str) -> bool:
    """True if the Host header names a loopback address, with any port (a tunnel's)."""
    name, separator, port = host.rpartition(":")
    if not separator or host.endswith("]"):
        name, port = host, ""
    if port and not (port.isascii() and port.isdecimal()):
        return False
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(
            name.removeprefix("[").removesuffix("]")
        ).is_loopback
    except ValueError:
        return False
