"""``/health/live`` and ``/health/ready``, for service managers and load balancers.

``live`` is 200 while the supervisor runs: this process dies with it. ``ready`` is 200 if the node
accepts clients and nothing has stopped (no problem of severity error), else 503. A certificate that
expires soon has stopped nothing. The reasons are JSON, the node's state first:

    {"status": "not ready", "reasons": [{"kind": "node", "message": "the node is starting"}]}

A client that has not logged in, where that is needed, gets the kinds alone.

Called by: ``app``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from wal2lake.errors import Wal2LakeError
from wal2lake.health import ProblemKind, Severity
from wal2lake.web.guard import ADMITTED
from wal2lake.web.reading import NodeReading, NodeReadings

_NOT_YET: Final = ProblemKind.CERTIFICATE


def routes(readings: NodeReadings) -> list[BaseRoute]:
    """Return the routes."""

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(request: Request) -> Response:
        try:
            reasons = await asyncio.wrap_future(
                readings.submit(lambda reading: list(_reasons(reading)))
            )
        except Wal2LakeError as error:
            reasons = [{"kind": "unreadable", "message": error.message}]
        if not getattr(request.state, ADMITTED):
            kinds = dict.fromkeys(reason["kind"] for reason in reasons)
            reasons = [{"kind": kind} for kind in kinds]
        status = "not ready" if reasons else "ready"
        return JSONResponse(
            {"status": status, "reasons": reasons}, 503 if reasons else 200
        )

    return [Route("/health/live", live), Route("/health/ready", ready)]


def _reasons(reading: NodeReading) -> Iterator[dict[str, str]]:
    state = reading.facts.state
    if state != "ready":
        yield {"kind": "node", "message": f"the node is {state}"}
    for problem in reading.problems:
        if problem.severity is Severity.ERROR and problem.kind != _NOT_YET:
            reason = {
                "kind": problem.kind,
                "message": problem.message,
                "subscription": problem.subscription,
                "table": problem.table,
                "since": problem.since and problem.since.isoformat(),
            }
            yield {name: text for name, text in reason.items() if text}
