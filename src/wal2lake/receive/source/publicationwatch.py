"""Detects tables whose publication has changed since their copy.

In: gulps, before they are logged. Out: tables that are no longer trusted, in the catalog.

As long as every change of a table's rows is sent, the source's key guarantees that an inserted row
does not exist here. ALTER PUBLICATION may withhold changes: a row filter, fewer operations, a table
that is dropped from the publication and added again. pgoutput does not report that, but afterwards
it sends a new Relation message before the next row of the table (as it also does after VACUUM and
at each connection). Then the server is queried for the marks of the table's publications
(``Publisher.publication_marks``), which differ after each change, even after a change that was
reverted. Rows inserted into a table whose marks differ from those at its copy are compared with the
existing rows.

Called by the journal thread, like ``schemas``, so that the catalog is updated before the rows are
logged. If the server cannot be queried, the publication is assumed to have changed.

Sources: rel_sync_cache_publication_cb() in pgoutput.c; InvalidatePublicationRels().
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
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
"""Offsets of the relation's OID in a message: it follows the xid if the message is streamed. Both
offsets are read, because querying a table too many does no harm."""


class PublicationKeeper:
    """Watches the publications of one run of the receiver."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        session: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        """``session`` gives a session to the publisher for one look."""
        self._catalog = catalog
        self._subscription = subscription
        self._session = session
        self._events = get_logger()

    def record(self, gulp: Gulp) -> None:
        """Record tables whose publication has changed. If it raises StorageError, the gulp must not
        be logged."""
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
        # A server that refuses connections, or does not answer, does not stop the stream.
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
    """Return the OIDs that Relation messages may contain."""
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
