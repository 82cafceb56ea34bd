"""Names the row files of a batch as sources, for the engine and for executors of a cluster.

In: files of the log's manifests. Out: sources with paths on this machine; with URLs in the log's
store, if executors read it there. Called by ``applier``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wal2lake.archive import StoredLog
from wal2lake.catalog import Subscription
from wal2lake.changelog import LogReader, RowsFile
from wal2lake.lake.staging import LogSource
from wal2lake.settings import Settings


def sources_of(reader: LogReader, files: Sequence[RowsFile]) -> list[LogSource]:
    """Return the sources on this machine."""
    inserts = itertools.accumulate((f.inserts for f in files), initial=0)
    return [
        LogSource(
            str(reader.path(f.file)),
            f.relation,
            f.rows,
            f.file.size,
            f.commit_lsn,
            f.rolled_back,
            before,
            f.constants,
        )
        for f, before in zip(files, inserts, strict=False)
    ]


class PlacedSources:
    """Sources of one subscription as executors find them in the store. Thread-safe."""

    def __init__(self, settings: Settings, subscription: Subscription) -> None:
        self._log = StoredLog(settings, subscription)

    def place(self, sources: Sequence[LogSource]) -> list[LogSource]:
        """Return the sources with URLs, once all are in the store. Raises StorageError."""
        names = [Path(source.path).name for source in sources]
        urls = self._log.urls(names)
        return [
            replace(source, path=urls[name])
            for source, name in zip(sources, names, strict=True)
        ]


def placed_sources(
    settings: Settings, subscription: Subscription
) -> PlacedSources | None:
    """Return the subscription's sources in the store; None if executors find them where the engine
    does."""
    if settings.executors_store is None:
        return None
    return PlacedSources(settings, subscription)
