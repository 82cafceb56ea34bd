"""The page's routes over facts that a test chooses, served by a real Uvicorn in a thread.

The catalog is a real, empty one, in which a test may make tables.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType

import uvicorn
from starlette.applications import Starlette
from tests.fakes.scenes import Scene, SceneAt, calm

from wal2lake.catalog import Catalog
from wal2lake.health import NodeFacts
from wal2lake.testing.waits import wait_until
from wal2lake.web.api import PageApi, PageFeed
from wal2lake.web.api.documents import totals
from wal2lake.web.api.feed import sample
from wal2lake.web.api.rates import RateWindow
from wal2lake.web.guard import Guard


class PageServer:
    """A server of the page; a context manager."""

    def __init__(
        self,
        catalog: Path,
        scene: SceneAt = calm,
        *,
        port: int = 0,
        streams: int = 32,
        interval_seconds: float = 0.25,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.scene = scene
        self.failure: Exception | None = None
        self._clock = clock
        self.feed = PageFeed(self._read, interval_seconds=interval_seconds)
        self.api = PageApi(self.feed, lambda: Catalog(catalog), streams=streams)
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        app = Guard(Starlette(routes=self.api.routes()), None)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, lifespan="off", log_level="error", timeout_graceful_shutdown=1
            )
        )
        self._thread = threading.Thread(target=self._run)

    def _read(self) -> Scene:
        if self.failure is not None:
            raise self.failure
        return self.scene(self._clock())

    def _run(self) -> None:
        async def serve() -> None:
            self.api.start()
            await self._server.serve([self._socket])

        asyncio.run(serve())

    def remember(self, seconds: int, step: int = 1) -> None:
        """Fill the history with the last ``seconds`` of the scene."""
        # No sample of the feed may come between.
        self.failure = RuntimeError("the past is being made")
        self.read_again()
        now = self._clock()
        self.feed.history.add(now.timestamp(), {})
        rates = RateWindow()
        for back in range(seconds, 0, -step):
            facts: NodeFacts = self.scene(now - timedelta(seconds=back))[0]
            moment = facts.taken_at.timestamp()
            per_second = rates.add(moment, totals(facts))
            self.feed.history.add(
                moment, {s.oid: sample(s, per_second) for s in facts.subscriptions}
            )
        self.failure = None

    def __enter__(self) -> PageServer:
        self._thread.start()
        wait_until(
            lambda: self._server.started and self.feed.latest.number > 0,
            timeout_seconds=20,
            describe=lambda: "the page is served",
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = self.feed.loop
        assert loop is not None
        loop.call_soon_threadsafe(self.api.stop)
        self._server.should_exit = True
        self._thread.join(10)

    def show(self, scene: SceneAt) -> None:
        """Show another scene; returns when the feed has it."""
        self.scene = scene
        self.failure = None
        self.read_again()

    def read_again(self) -> None:
        """Wait until two more readings have been made: the second began after the call."""
        number = self.feed.latest.number
        end = time.monotonic() + 20
        while self.feed.latest.number < number + 2:
            assert time.monotonic() < end, "no reading"
            time.sleep(0.02)
