"""``/health/live`` and ``/health/ready``, for service managers and load balancers.

``live`` is 200 while the supervisor runs (this process dies with it, so every answer is 200).
``ready`` is 200 if the node accepts clients, else 503; the reasons are JSON:

    {"status": "not ready", "reasons": [{"kind": "node", "message": "the node is starting"}]}

Called by: ``app``.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from wal2lake.launch import read_lock
from wal2lake.settings import Settings


def routes(settings: Callable[[], Settings]) -> list[BaseRoute]:
    """Return the routes."""

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(request: Request) -> Response:
        lock = read_lock(settings().directory)
        state = "stopped" if lock is None else lock.state
        if state == "ready":
            return JSONResponse({"status": "ready", "reasons": []})
        reason = {"kind": "node"}
        if request.state.admitted:
            reason["message"] = f"the node is {state}"
        reasons = [reason]
        return JSONResponse({"status": "not ready", "reasons": reasons}, 503)

    return [Route("/health/live", live), Route("/health/ready", ready)]
