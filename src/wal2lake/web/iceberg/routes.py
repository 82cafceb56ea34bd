"""The Iceberg catalog's paths.

    GET   /v1/config?warehouse=...                                 the prefix of a moment
    POST  /v1/oauth/tokens                                         a token for a role's password
    GET   /v1/{prefix}/namespaces                                  schemas
    GET   /v1/{prefix}/namespaces/{namespace}                      one of them; HEAD
    GET   /v1/{prefix}/namespaces/{namespace}/tables               its tables
    GET   /v1/{prefix}/namespaces/{namespace}/tables/{table}       metadata; HEAD

All else is 406: this catalog is read-only. Only the token's form is read as a body, within limits
of size and time. Paths are split before they are decoded, since a name may have a slash.

One thread answers, with its own connection to the catalog, so a slow disk holds up this room alone.
Called by: ``app``; ``guard`` leaves these paths to it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import parse_qs, unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from wal2lake.catalog import Catalog, MomentReader, Role, ShownTables
from wal2lake.errors import StorageError
from wal2lake.observe import get_logger
from wal2lake.settings import Settings
from wal2lake.web.iceberg.answers import (
    CatalogRefusal,
    bad_request,
    json_answer,
    no_such_namespace,
    unsupported,
)
from wal2lake.web.iceberg.moments import (
    LATEST,
    NoSuchMoment,
    moment_of,
    prefix_of,
)
from wal2lake.web.iceberg.properties import reader_properties
from wal2lake.web.iceberg.tokens import (
    CLIENT_CREDENTIALS,
    TOKEN_EXCHANGE,
    Tokens,
    bearer,
    read_key,
)
from wal2lake.web.iceberg.view import RoleView
from wal2lake.web.visitors import Visitors

CATALOG_PATHS: Final = "/v1/"

FORM_BYTES: Final = 16 * 1024
"""Largest form of a client that asks for a token."""

FORM_SECONDS: Final = 10.0
"""Most time for the form to arrive."""

MOST_NAMES: Final = 1_000
"""Most names of a page, for clients that ask for pages."""

_ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
"""Paths that a client may use; one that is not told assumes that there are more."""

MOST_ANSWERS: Final = 8
"""Answers that are made or being sent at the same time, since one may have megabytes; others wait.
A client that takes none of its answer is cut (``bounds``)."""

_LEVELS: Final = "\x1f"
"""Separates the levels of a namespace. A schema is one level."""


class IcebergCatalog:
    """The catalog, for all addresses."""

    def __init__(self, settings: Callable[[], Settings], visitors: Visitors) -> None:
        """``settings`` returns those in force; ``visitors`` checks passwords."""
        self._settings = settings
        self._visitors = visitors
        self._answers = asyncio.Semaphore(MOST_ANSWERS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="iceberg")
        self._catalog: Catalog | None = None
        self._tokens: Tokens | None = None
        directory = settings().iceberg_directory
        self._moments = MomentReader(directory)
        self._shown = ShownTables(directory)

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes, for a Starlette application."""
        methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        return [Route(f"{CATALOG_PATHS}{{path:path}}", self, methods=methods)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        path = [unquote(segment) for segment in _segments(request)]
        if request.method not in ("GET", "HEAD"):
            response = await self._refused(self._posted(request, path))
            await response(scope, receive, send)
            return
        async with self._answers:
            loop = asyncio.get_running_loop()
            answer = loop.run_in_executor(self._thread, self._read, request, path)
            response = await self._refused(answer)
            await response(scope, receive, send)

    def stop(self) -> None:
        """End the thread, without waiting for what it does."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    async def _refused(self, answer: Awaitable[Response]) -> Response:
        """Return an answer, or the error that it has come to."""
        try:
            return await answer
        except CatalogRefusal as refusal:
            return refusal.response()
        except (StorageError, OSError) as error:
            get_logger().error("could not answer a reader of Iceberg", error=error)
            return CatalogRefusal(
                503, "ServiceUnavailableException", "the node's files cannot be read"
            ).response()

    # ---- tokens -----------------------------------------------------------------------

    async def _posted(self, request: Request, path: Sequence[str]) -> Response:
        if request.method != "POST" or path != ["oauth", "tokens"]:
            raise unsupported()
        form = await _form(request)
        name, password = _credentials(request.headers.get("authorization"), form)
        grant = form.get("grant_type", "")
        loop = asyncio.get_running_loop()
        if grant == TOKEN_EXCHANGE and name is None:
            token = form.get("subject_token", "")
            return await loop.run_in_executor(self._thread, self._exchanged, token)
        if grant not in (CLIENT_CREDENTIALS, TOKEN_EXCHANGE):
            return _oauth_error(
                "unsupported_grant_type", "the grant type is client_credentials", 400
            )
        if name is None or password is None:
            return _oauth_error(
                "invalid_client", "client_id and client_secret are a role's", 401
            )
        address = request.client.host if request.client else ""
        role = await self._visitors.login(name, password, address)
        if isinstance(role, float):
            seconds = str(int(role) + 1)
            return _oauth_error(
                "invalid_client",
                f"too many failed logins; try again in {seconds} s",
                429,
                {"retry-after": seconds},
            )
        if role is None:
            return _oauth_error("invalid_client", "wrong name or password", 401)
        return await loop.run_in_executor(self._thread, self._issued, role)

    # ---- in the thread ----------------------------------------------------------------

    def _issued(self, role: Role) -> Response:
        return _uncached(self._open_tokens().issue(role))

    def _exchanged(self, token: str) -> Response:
        try:
            role = self._open_tokens().role(token, self._open())
        except CatalogRefusal as refusal:
            return _oauth_error("invalid_grant", refusal.message, 400)
        return self._issued(role)

    def _read(self, request: Request, path: Sequence[str]) -> Response:
        if path == ["oauth", "tokens"]:
            raise unsupported()
        catalog = self._open()
        token = bearer(request.headers.get("authorization"))
        role = self._open_tokens().role(token, catalog)
        moments = self._moments.read()
        names = {sub.oid: sub.name for sub in catalog.subscriptions()}
        if path == ["config"]:
            warehouse = request.query_params.get("warehouse") or LATEST
            moment = moment_of(warehouse, moments, names)
            return json_answer(_config(prefix_of(warehouse, moment)))
        if len(path) < 2 or path[1] != "namespaces":
            raise unsupported()
        try:
            moment = moment_of(path[0], moments, names)
        except NoSuchMoment as error:
            # After a 404 clients say that there is no such table, and not why.
            raise bad_request(error.message) from None
        view = RoleView(catalog, self._shown, role, moment)
        match path[2:]:
            case []:
                return _namespaces(view, request)
            case [namespace]:
                view.namespace(namespace)
                return _described(request, {"namespace": [namespace], "properties": {}})
            case [namespace, "tables"]:
                return _tables(view, namespace, request)
            case [namespace, "tables", table]:
                return self._table(view, namespace, table, request)
        raise unsupported()

    def _table(
        self, view: RoleView, namespace: str, name: str, request: Request
    ) -> Response:
        shown = view.table(namespace, name)
        if request.method == "HEAD":
            return Response(status_code=204)
        mode = request.query_params.get("snapshots", "all")
        if mode not in ("all", "refs"):
            raise bad_request(f'snapshots is "all" or "refs", not "{mode}"')
        body = shown.loaded(
            reader_properties(self._settings()), only_refs=mode == "refs"
        )
        digest = hashlib.sha256(body).hexdigest()[:32]
        headers = {"etag": f'"{digest}"'}
        if _is_unchanged(digest, request.headers.get("if-none-match")):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    def _open(self) -> Catalog:
        if self._catalog is None:
            now = self._settings()
            self._catalog = Catalog(now.catalog_file, now.warehouse)
        return self._catalog

    def _open_tokens(self) -> Tokens:
        if self._tokens is None:
            self._tokens = Tokens(read_key(self._settings().iceberg_directory))
        return self._tokens

    def _close(self) -> None:
        self._moments.close()
        if self._catalog is not None:
            self._catalog.close()


def _segments(request: Request) -> list[str]:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("latin-1").split("?", 1)[0]
    return path.removeprefix(CATALOG_PATHS).removesuffix("/").split("/")


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises 400 if it is too large or too slow."""
    content = b""
    try:
        async with asyncio.timeout(FORM_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > FORM_BYTES:
                    raise _closing("the form is too large")
    except (TimeoutError, ClientDisconnect):
        raise _closing("the form has not arrived") from None
    try:
        fields = parse_qs(
            content.decode("ascii"), keep_blank_values=True, max_num_fields=20
        )
    except ValueError:
        raise bad_request("the body is no form") from None
    return {name: values[0] for name, values in fields.items()}


def _closing(message: str) -> CatalogRefusal:
    return CatalogRefusal(400, "BadRequestException", message, {"connection": "close"})


def _credentials(
    header: str | None, form: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """Return name and password, of basic authentication or of the form."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() == "basic":
        try:
            text = base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            return None, None
        name, separator, password = text.partition(":")
        return (name, password) if separator and "\0" not in text else (None, None)
    pair = form.get("client_id"), form.get("client_secret")
    return (None, None) if any("\0" in (text or "") for text in pair) else pair


def _oauth_error(
    error: str, message: str, code: int, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error in the form of RFC 6749, section 5.2, with what Iceberg's clients show."""
    document = {
        "error": error,
        "error_description": message,
    }
    return json_answer(document, code, headers)


def _uncached(document: Mapping[str, object]) -> Response:
    return json_answer(document, 200, {"cache-control": "no-store"})


def _config(prefix: str) -> Mapping[str, object]:
    # pyiceberg takes a warehouse for a URL, and the colons of a time for a scheme's.
    return {
        "defaults": {},
        "overrides": {"prefix": prefix, "warehouse": prefix},
        "endpoints": list(_ENDPOINTS),
    }


def _described(request: Request, document: Mapping[str, object]) -> Response:
    if request.method == "HEAD":
        return Response(status_code=204)
    return json_answer(document)


def _namespaces(view: RoleView, request: Request) -> Response:
    parent = request.query_params.get("parent", "")
    if parent:
        # A schema has no schemas in it.
        view.namespace(parent)
        names: list[str] = []
    else:
        names = view.namespaces()
    page, token = _page(names, request)
    document = {
        "namespaces": [[name] for name in page],
        "next-page-token": token,
    }
    return json_answer(document)


def _tables(view: RoleView, namespace: str, request: Request) -> Response:
    if _LEVELS in namespace:
        raise no_such_namespace(namespace.replace(_LEVELS, "."))
    page, token = _page(view.tables(namespace), request)
    document = {
        "identifiers": [{"namespace": [namespace], "name": name} for name in page],
        "next-page-token": token,
    }
    return json_answer(document)


def _page(names: Sequence[str], request: Request) -> tuple[Sequence[str], str | None]:
    """Return the part of sorted names that is asked for, and the token of the next part: the last
    name, so that names which come or go in between do not matter."""
    token = request.query_params.get("pageToken")
    size = request.query_params.get("pageSize")
    if token is None and size is None:
        return names, None
    try:
        most = MOST_NAMES if size is None else min(int(size), MOST_NAMES)
        after = base64.b64decode(token or "", b"-_", validate=True).decode("utf-8")
    except ValueError:
        raise bad_request("pageToken or pageSize is not valid") from None
    if most < 1:
        raise bad_request("pageSize must be at least 1")
    rest = [name for name in names if not token or name > after]
    page = rest[:most]
    if len(rest) <= most:
        return page, None
    return page, base64.urlsafe_b64encode(page[-1].encode()).decode()


def _is_unchanged(digest: str, header: str | None) -> bool:
    """Whether If-None-Match has this version."""
    tags = [tag.strip().removeprefix("W/") for tag in (header or "").split(",")]
    return "*" in tags or f'"{digest}"' in tags
