"""The route of ``/metrics``: one text for all scrapers of a second.

Takes requests; returns the format that the scraper asks for. The text of a reading is made once
for each format, in the thread that reads, so that ten scrapers a second cost as much as one and
the event loop waits for none of it.

Called by: ``app``.
"""

from __future__ import annotations

import asyncio

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from wal2lake.errors import Wal2LakeError
from wal2lake.web.metrics.samples import fill
from wal2lake.web.metrics.sheet import MetricSheet
from wal2lake.web.reading import NodeReading, NodeReadings


class MetricsRoute:
    """Answers scrapes from shared readings."""

    def __init__(self, readings: NodeReadings) -> None:
        self._readings = readings
        self._made: dict[bool, tuple[NodeReading, bytes]] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/metrics", self._scrape)]

    async def _scrape(self, request: Request) -> Response:
        _, content_type = choose_encoder(request.headers.get("accept", ""))
        openmetrics = content_type.startswith("application/openmetrics-text")
        try:
            body = await asyncio.wrap_future(
                self._readings.submit(lambda reading: self._text(reading, openmetrics))
            )
        except Wal2LakeError as error:
            return PlainTextResponse(f"{error.message}\n", 503)
        return Response(body, headers={"content-type": content_type})

    def _text(self, reading: NodeReading, openmetrics: bool) -> bytes:
        made = self._made.get(openmetrics)
        if made is not None and made[0] is reading:
            return made[1]
        sheet = MetricSheet()
        fill(sheet, reading)
        text = sheet.render(openmetrics=openmetrics)
        self._made[openmetrics] = reading, text
        return text
