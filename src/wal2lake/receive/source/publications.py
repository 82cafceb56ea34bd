"""Whether tables are published now as they were when they were copied.

In: gulps, before they get into the log. Out: tables that are no longer trusted, in the catalog.

A key of the source says that an inserted row meets none here, as long as every change of the rows
is sent. ALTER PUBLICATION may keep changes back: a row filter, fewer operations, a table that is
taken out and put in again. pgoutput does not say so, but after each of them the next row of the
table comes behind a new Relation message (so it does after VACUUM and at each connection). Then the
server is asked for the marks of the table's publications (``Publisher.publication_marks``), which
are other ones after each change, also if it has been taken back. What is inserted into a table with
other marks than at its copy is compared with the rows that are there.

Called by the journal thread, as ``schemas``: the catalog has it before the log has the rows. Of a
server that cannot be asked the worst is assumed.

Sources: rel_sync_cache_publication_cb() in pgoutput.c; InvalidatePublicationRels().
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel
from wal2lake.errors import PublisherError
from wal2lake.model import Oid
from wal2lake.observe import get_logger
from wal2lake.pg import Publisher, Session
from wal2lake.receive.gulps import Gulp
from wal2lake.wire.copyboth import XLOGDATA_HEADER

_RELATION: Final = ord("R")

_PLACES: Final = (1, 5)
"""Offsets of the relation's OID in a message: behind the xid if the message is streamed. Both
offsets are read: asking about a table too many does no harm."""


class PublicationKeeper:
    """For one run of the receiver."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        session: Callable[[], Session],
    ) -> None:
        """``session`` opens one to the publisher."""
        self._catalog = catalog
        self._subscription = subscription
        self._session = session
        self._events = get_logger()

    def note(self, gulp: Gulp) -> None:
        """Raises StorageError: then the gulp must not get into the log."""
        relids = _relations(gulp)
        if not relids:
            return
        watched = {
            rel.copied_from: rel
            for rel in self._catalog.rels(self._subscription.oid)
            if rel.trusted and rel.published_as is not None
            if rel.copied_from is not None and rel.copied_from in relids
        }
        if not watched:
            return
        marks: dict[Oid, str] = {}
        # A server that lets nobody in, or does not answer, does not stop the stream.
        with suppress(PublisherError), self._session() as session:
            marks = Publisher(session).publication_marks(
                tuple(watched), self._subscription.publications
            )
        for relid, rel in watched.items():
            if marks.get(relid) != rel.published_as:
                self._distrust(rel)

    def _distrust(self, rel: SubscriptionRel) -> None:
        self._catalog.update_rel(rel.subid, rel.relid, trusted=False)
        self._events.info(
            f'publication of table "{rel.remote_namespace}.{rel.remote_name}" may have been'
            " altered: rows inserted into it are compared with those that are there"
        )


def _relations(gulp: Gulp) -> set[Oid]:
    """OIDs that Relation messages may name."""
    sizes = gulp.lengths.astype(np.int64)
    ends = np.cumsum(sizes)
    whole = np.flatnonzero(sizes > XLOGDATA_HEADER)
    starts = (ends - sizes)[whole] + XLOGDATA_HEADER
    chosen = np.frombuffer(gulp.data, np.uint8)[starts] == _RELATION
    return {
        Oid(int.from_bytes(gulp.data[start + place : start + place + 4], "big"))
        for start in starts[chosen].tolist()
        for place in _PLACES
    }
