"""The page's part of the process: its readings, for all addresses.

In: the process's readings, and the settings in force. Out: ``open_page``, whose routes ``app``
includes.

Called by: ``__main__``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wal2lake.catalog import Catalog
from wal2lake.health import NodeFacts, Problem
from wal2lake.settings import Settings
from wal2lake.web.api import PageApi, PageFeed
from wal2lake.web.reading import NodeReadings


def open_page(readings: NodeReadings, settings: Callable[[], Settings]) -> PageApi:
    """Return the page of the node; it reads once it is started."""

    def read() -> tuple[NodeFacts, Sequence[Problem]]:
        reading = readings.read()
        return reading.facts, reading.problems

    def open_catalog() -> Catalog:
        now = settings()
        return Catalog(now.catalog_file, now.warehouse)

    return PageApi(PageFeed(read), open_catalog)
