"""The route of ``/metrics``: one text for all scrapers of a second.

Takes requests; returns the format that the scraper asks for. The text of a reading is made once
for each format, in the thread that reads, so that ten scrapers a second cost as much as one and
the event loop waits for none of it.

Called by: ``app``.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from wal2lake.errors import Wal2LakeError
from wal2lake.web.metrics.samples import SampleTexts, fill
from wal2lake.web.metrics.sheet import MetricSheet
from wal2lake.web.reading import NodeReading, NodeReadings

_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"


def wants_openmetrics(accept: str) -> bool:
    """Return whether an Accept header prefers OpenMetrics 1 to plain text; what makes no sense in
    it is passed over."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for item in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        values = dict(p.split("=", 1) for p in parameters if "=" in p)
        version = values.get("version", "").strip('" ')
        if kind not in weights:
            continue
        if kind != "text/plain" and version and not version.startswith(("1.", "0.0.1")):
            continue
        weights[kind] = max(weights[kind], _weight(values.get("q", "1")))
    openmetrics, plain = weights.values()
    return openmetrics > 0 and openmetrics >= plain


def _weight(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.\d{0,3})?", text) else 0.0


class MetricsRoute:
    """Answers scrapes from shared readings."""

    def __init__(self, readings: NodeReadings) -> None:
        self._readings = readings
        self._texts = SampleTexts()
        self._made: dict[bool, tuple[NodeReading, bytes]] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/metrics", self._scrape)]

    async def _scrape(self, request: Request) -> Response:
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        try:
            body = await asyncio.wrap_future(
                self._readings.submit(lambda reading: self._text(reading, openmetrics))
            )
        except Wal2LakeError as error:
            return PlainTextResponse(f"{error.message}\n", 503)
        content_type = _OPENMETRICS if openmetrics else _PLAIN
        return Response(body, headers={"content-type": content_type})

    def _text(self, reading: NodeReading, openmetrics: bool) -> bytes:
        made = self._made.get(openmetrics)
        if made is not None and made[0] is reading:
            return made[1]
        sheet = MetricSheet()
        fill(sheet, reading, self._texts)
        text = sheet.render(openmetrics=openmetrics)
        self._made[openmetrics] = reading, text
        return text
