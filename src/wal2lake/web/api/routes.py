"""The page's routes.

    /                        the page; /static/... its files
    /api/state               node, subscriptions, copies, publisher, problems
    /api/tables              all tables, one array each
    /api/table/<oid>         one table's history
    /api/history             rates and lag over time of one subscription
    /api/events              server-sent events

In: GET requests. Out: JSON, files. The web process includes ``PageApi.routes()`` behind its
authentication, and calls ``start`` and ``stop`` in its lifespan. A parameter that makes no sense
is answered with 400 and a sentence. Everything is answered from the last reading, except a table's
history: one thread asks the catalog, and keeps each answer for a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from wal2lake.catalog import Catalog
from wal2lake.errors import Wal2LakeError
from wal2lake.model import Oid
from wal2lake.web.api import documents
from wal2lake.web.api.events import STREAMS, EventStream, rows
from wal2lake.web.api.feed import PageFeed, encode
from wal2lake.web.api.history import CAPACITY
from wal2lake.web.api.tablepage import table_document

STATIC: Final = Path(__file__).parent.parent / "static"

POINTS: Final = 600
"""Points of a chart: more than a chart has pixels to show."""

_Endpoint = Callable[[Request], Awaitable[Response]]

_KEPT_SECONDS: Final = 1.0
_KEPT_TABLES: Final = 64


class PageApi:
    """The page and its data, for one node."""

    def __init__(
        self,
        feed: PageFeed,
        open_catalog: Callable[[], Catalog],
        *,
        streams: int = STREAMS,
    ) -> None:
        """``open_catalog`` is called by the thread that reads tables' histories."""
        self.feed = feed
        self._open_catalog = open_catalog
        self._streams = streams
        self._open_streams = 0
        self._catalog: Catalog | None = None
        self._reader = ThreadPoolExecutor(1, "tablepage")
        self._kept: dict[Oid, tuple[float, bytes | None]] = {}

    def start(self) -> None:
        """Begin to read; called on the event loop."""
        self.feed.start()

    def stop(self) -> None:
        """End the streams and the threads."""
        self.feed.stop()
        self._reader.submit(self._close_catalog)
        self._reader.shutdown(wait=False)

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes, for a Starlette application."""
        return [
            Route("/", _page),
            Mount("/static", _PageFiles(directory=STATIC), name="static"),
            Route("/api/state", _answered(self._state)),
            Route("/api/tables", _answered(self._tables)),
            Route("/api/table/{oid}", _answered(self._table)),
            Route("/api/history", _answered(self._history)),
            Route("/api/events", _answered(self._events)),
        ]

    # ---- documents --------------------------------------------------------------

    async def _state(self, request: Request) -> Response:
        self.feed.look()
        reading = self.feed.latest
        return _json(
            b'{"state":%b,"problems":%b,"trouble":%b}'
            % (reading.state, reading.problems, encode(reading.trouble))
        )

    async def _tables(self, request: Request) -> Response:
        self.feed.look()
        reading = self.feed.latest
        return _json(
            b'{"columns":%b,"rows":%b}'
            % (encode(documents.TABLE_COLUMNS), rows(reading, reading.tables))
        )

    async def _history(self, request: Request) -> Response:
        self.feed.look()
        oid = _number(request.query_params.get("subscription"), "subscription", 2**32)
        seconds = _number(request.query_params.get("seconds", "900"), "seconds", 86400)
        points = _number(
            request.query_params.get("points", str(POINTS)), "points", 3600
        )
        facts = self.feed.latest.facts
        now = time.time() if facts is None else facts.taken_at.timestamp()
        since = now - min(seconds, CAPACITY * 5)
        return _json(encode(self.feed.history.columns(Oid(oid), since, points)))

    async def _table(self, request: Request) -> Response:
        self.feed.look()
        oid = Oid(_number(request.path_params["oid"], "OID", 2**32))
        loop = asyncio.get_running_loop()
        try:
            body = await loop.run_in_executor(self._reader, self._table_bytes, oid)
        except Wal2LakeError as error:
            raise HTTPException(503, error.message) from None
        if body is None:
            raise HTTPException(404, f"no table has the OID {oid}")
        return _json(body)

    def _table_bytes(self, oid: Oid) -> bytes | None:
        """Return a table's document; runs in the reader's thread."""
        now = time.monotonic()
        kept = self._kept.get(oid)
        if kept is not None and now - kept[0] < _KEPT_SECONDS:
            return kept[1]
        if self._catalog is None:
            self._catalog = self._open_catalog()
        document = table_document(self._catalog, self.feed.latest.facts, oid)
        body = None if document is None else encode(document)
        if len(self._kept) >= _KEPT_TABLES:
            self._kept.clear()
        self._kept[oid] = (now, body)
        return body

    def _close_catalog(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    async def _events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._open_streams >= self._streams:
            raise HTTPException(
                503,
                f"{self._streams} pages are open, which is the limit",
                headers={"Retry-After": "10"},
            )
        return _StreamResponse(self)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one stream of events."""
        self._open_streams += 1
        try:
            await EventStream(self.feed)(scope, receive, send)
        finally:
            self._open_streams -= 1


class _StreamResponse(Response):
    """A stream of events in the place of a response."""

    def __init__(self, api: PageApi) -> None:
        super().__init__()
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._api.stream(scope, receive, send)


class _PageFiles(StaticFiles):
    """The page's files, which a browser keeps and asks for again: an upgrade changes them."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _number(text: str | None, name: str, limit: int) -> int:
    """Read a positive number of a request; HTTPException 400 otherwise."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 10:
        raise HTTPException(400, f"{name} must be a number")
    number = int(text)
    if not 0 < number < limit:
        raise HTTPException(400, f"{name} must be from 1 to {limit - 1}")
    return number


def _answered(endpoint: _Endpoint) -> _Endpoint:
    """Answer an endpoint's HTTPException as JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HTTPException as error:
            return JSONResponse(
                {"error": error.detail},
                status_code=error.status_code,
                headers=error.headers,
            )

    return answer
