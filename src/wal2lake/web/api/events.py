"""Server-sent events of the page.

In: readings of the feed. Out: a stream of events for each browser.

    hello      once, the whole picture: state, problems, all tables
    state      every reading
    problems   when they have changed
    tables     rows that have changed, and those that are gone
    trouble    when the node cannot be read, with the reason; null when it can again

A browser that does not read is dropped: by its queue, which holds ``QUEUE_READINGS`` readings, or
by a write that takes longer than ``WRITE_SECONDS``. The page connects again and gets the whole
picture. All browsers share the same bytes, so a queue costs references only. There are at most
``STREAMS`` streams; a further browser gets 503 and asks again later.

Source: HTML standard, 9.2 (server-sent events).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from wal2lake.web.api.feed import PageFeed, Reading, TableKey, encode

STREAMS: Final = 32
"""Streams at once. A guess: some screens on walls, and their owners."""

QUEUE_READINGS: Final = 8
"""Readings that wait for a browser: eight seconds of a stalled network."""

WRITE_SECONDS: Final = 15.0
"""Bound of one write to a browser."""

HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Proxies would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
)


class EventStream:
    """One browser's stream, as an ASGI application."""

    def __init__(
        self,
        feed: PageFeed,
        *,
        queue_readings: int = QUEUE_READINGS,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        """Nothing begins before the call."""
        self._feed = feed
        self._write_seconds = write_seconds
        self._queue: asyncio.Queue[Reading | None] = asyncio.Queue(queue_readings)
        self._dropped = asyncio.Event()
        self._problems = b""
        self._trouble: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser leaves, is dropped, or the feed ends."""
        first = self._feed.latest
        number = self._feed.subscribe(self._take)
        tasks = [
            asyncio.create_task(self._events(first, send)),
            asyncio.create_task(_left(receive)),
            asyncio.create_task(self._dropped.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.unsubscribe(number)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, reading: Reading | None) -> None:
        """Queue a reading; called on the event loop."""
        try:
            self._queue.put_nowait(reading)
        except asyncio.QueueFull:
            self._dropped.set()

    async def _events(self, first: Reading, send: Send) -> None:
        await self._write(
            send,
            {"type": "http.response.start", "status": 200, "headers": [*HEADERS]},
        )
        reading: Reading | None = first
        body = self._hello(first)
        while reading is not None:
            await self._write(
                send, {"type": "http.response.body", "body": body, "more_body": True}
            )
            reading = await self._queue.get()
            if reading is not None:
                body = self._changes(reading)
        await self._write(
            send, {"type": "http.response.body", "body": b"", "more_body": False}
        )

    async def _write(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._write_seconds):
            await send(message)

    def _hello(self, reading: Reading) -> bytes:
        self._problems, self._trouble = reading.problems, reading.trouble
        return _event(
            b"hello",
            b'{"state":%b,"problems":%b,"tables":%b,"trouble":%b}'
            % (
                reading.state,
                reading.problems,
                rows(reading, reading.tables),
                encode(reading.trouble),
            ),
        )

    def _changes(self, reading: Reading) -> bytes:
        parts = []
        if reading.trouble != self._trouble:
            self._trouble = reading.trouble
            parts.append(_event(b"trouble", encode(reading.trouble)))
        if reading.trouble is None:
            parts.append(_event(b"state", reading.state))
        if reading.problems != self._problems:
            self._problems = reading.problems
            parts.append(_event(b"problems", reading.problems))
        if reading.changed or reading.gone:
            parts.append(
                _event(
                    b"tables",
                    b'{"rows":%b,"gone":%b}'
                    % (rows(reading, reading.changed), encode(reading.gone)),
                )
            )
        # A comment keeps the connection alive, and tells the page that the server is there.
        return b"".join(parts) or b": alive\n\n"


def rows(reading: Reading, keys: Iterable[TableKey]) -> bytes:
    """Return the JSON array of some tables' rows."""
    return b"[" + b",".join(reading.tables[key] for key in keys) + b"]"


def _event(name: bytes, data: bytes) -> bytes:
    # JSON of one line has no line break, which would end the data.
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
