"""The application: which path is answered by what.

Takes a ``WebContext``, which every route gets; returns an ASGI application for one kind of address.
A later surface adds its routes to ``_routes``, and nothing elsewhere.

Called by: ``__main__``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from wal2lake.settings import Settings
from wal2lake.web import checks
from wal2lake.web.api import PageApi
from wal2lake.web.guard import Guard
from wal2lake.web.iceberg import IcebergCatalog
from wal2lake.web.metrics import MetricsRoute
from wal2lake.web.reading import NodeReadings
from wal2lake.web.visitors import Visitors


@dataclass(frozen=True, slots=True)
class WebContext:
    """The parts of the process that routes need."""

    settings: Callable[[], Settings]
    """Returns the settings in force."""
    readings: NodeReadings
    """The node's state, read at most once a second for all routes."""
    page: PageApi
    """The page and its data, for all addresses."""
    iceberg: IcebergCatalog
    """The Iceberg REST catalog, for all addresses."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process ends: an endless answer must end, too."""


def _routes(context: WebContext) -> list[BaseRoute]:
    return [
        *checks.routes(context.readings),
        *MetricsRoute(context.readings).routes(),
        *context.page.routes(),
        *context.iceberg.routes(),
    ]


def make_app(context: WebContext, visitors: Visitors | None) -> ASGIApp:
    """Return the application for other machines' ``visitors``; None: for this machine."""
    return Guard(Starlette(routes=_routes(context)), visitors)
