"""Watches for renamed labels of the publisher's enum types, on an ordinary connection.

ALTER TYPE ... RENAME VALUE changes every row that has the label, but sends no row and no Relation
message. Rows here hold labels as text. In: the tables that the subscription follows. Out:
``KnownLabels`` in the catalog, where apply finds renames and has the tables copied anew.

    before streaming                    the first look: present labels
    a table's copy                      labels of its types in the copy's snapshot (``tablesync``)
    every ten seconds                   another look, if a followed column has a type
                                        that is not built in
    a Relation message with such a      a look before the message is recorded: a new column may
    type                                have another enum type

Between a rename and the look that notices it, an UPDATE that identifies its row by the label finds
no row (update_missing). The copy repairs that, because it is taken at a position above the rename.

The lock ensures that a rename is recorded before a Relation message that arrives later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wal2lake.catalog import Catalog, Subscription
from wal2lake.errors import Wal2LakeError
from wal2lake.observe import get_logger
from wal2lake.pg import Publisher, Session
from wal2lake.pgtypes import FIRST_NORMAL_OID

_LOOK_SECONDS: Final = 10.0
"""A value that is added, stored and renamed between two looks is not noticed. Chosen arbitrarily,
to keep the publisher's load negligible."""


class LabelWatch:
    """Watches labels for one run of the receiver. Any thread may call ``check``."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        session: Callable[[], Session],
        stop: threading.Event,
    ) -> None:
        """``session`` opens a session to the publisher."""
        self._catalog = catalog
        self._subscription = subscription
        self._session = session
        self._stop = stop
        self._lock = threading.Lock()
        self._reported = False

    def work(self) -> None:
        """Run the thread: look at labels at intervals."""
        if not self._subscription.follows_schema:
            return
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self.check()
                self._reported = False
            except Exception as error:
                # Receiving goes on; the next look may reach the server.
                self._warn(error)

    def check(self) -> None:
        """Record labels and renames. Raises PublisherError, StorageError."""
        if not self._subscription.follows_schema:
            return
        with self._lock:
            followed = self._catalog.followed_schemas(self._subscription.oid).values()
            relids = [
                followed_schema.schema.relid
                for followed_schema in followed
                if any(
                    a.declared_oid >= FIRST_NORMAL_OID
                    for a in followed_schema.schema.attributes
                )
            ]
            if not relids:
                return
            with self._session() as session:
                publisher = Publisher(session)
                seen = publisher.enums(relids)
                position = publisher.position()
            self._catalog.note_labels(self._subscription.oid, seen, position)

    def _warn(self, error: Exception) -> None:
        """Log a warning, once until a look succeeds again."""
        if self._reported or self._stop.is_set():
            return
        self._reported = True
        text = (
            "could not look for renamed labels of enum types of subscription"
            f' "{self._subscription.name}"'
        )
        if isinstance(error, Wal2LakeError):
            get_logger().warning(text, error=error)
        else:
            get_logger().warning(text, exc_info=error)
