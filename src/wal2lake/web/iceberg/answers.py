"""Answers of the Iceberg catalog: JSON, and errors in the specification's form.

    {"error": {"message": "...", "type": "NoSuchTableException", "code": 404}}

Clients make exceptions of their own of code and type, and show the message.

Called by: the other modules of this room.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response


class CatalogRefusal(Exception):
    """A request that is not answered as it asks. ``str()`` is the message."""

    def __init__(
        self,
        code: int,
        kind: str,
        message: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.kind, self.message = code, kind, message
        self.headers = headers

    def response(self) -> Response:
        """Return the answer."""
        error = {"message": self.message, "type": self.kind, "code": self.code}
        return json_answer({"error": error}, self.code, self.headers)


def bad_request(message: str) -> CatalogRefusal:
    """Return 400."""
    return CatalogRefusal(400, "BadRequestException", message)


def not_authorized(message: str) -> CatalogRefusal:
    """Return 401."""
    challenge = {"www-authenticate": 'Bearer realm="wal2lake"'}
    return CatalogRefusal(401, "NotAuthorizedException", message, challenge)


def forbidden(message: str) -> CatalogRefusal:
    """Return 403."""
    return CatalogRefusal(403, "ForbiddenException", message)


def no_such_namespace(name: str) -> CatalogRefusal:
    """Return 404."""
    return CatalogRefusal(
        404, "NoSuchNamespaceException", f"Namespace does not exist: {name}"
    )


def no_such_table(name: str, reason: str = "") -> CatalogRefusal:
    """Return 404; ``reason`` says why a table that the node has is not there."""
    message = f"Table does not exist: {name}"
    if reason:
        message += f": {reason}"
    return CatalogRefusal(404, "NoSuchTableException", message)


def unsupported() -> CatalogRefusal:
    """Return 406: a write, or a path that this catalog does not have. A body is not read."""
    return CatalogRefusal(
        406,
        "UnsupportedOperationException",
        "this catalog is read-only: it has namespaces and tables, and nothing is written through"
        " Iceberg",
        {"connection": "close"},
    )


def json_answer(
    document: object, code: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a document as JSON."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Response(
        body.encode("utf-8", "replace"),
        code,
        headers=headers,
        media_type="application/json",
    )
