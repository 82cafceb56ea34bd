"""Has the publisher renamed a label of an enum? Asked on an ordinary connection, now and then.

ALTER TYPE ... RENAME VALUE changes every row that has the label, and says so to nobody: no row is
written, and no Relation message comes. Rows here hold labels as text. In: the tables that the
subscription follows. Out: ``KnownLabels`` in the catalog, where apply finds renames and has the
tables copied anew.

    before streaming                    the first look: labels as they are
    every ten seconds                   another one, if a followed column is of a type
                                        that is not built in
    a Relation message with such a      one before the message is noted: a new column may have
    type                                brought another enum

Between a rename and the look that notices it, an UPDATE that names its row by the label finds none
(update_missing). The copy mends that: it is taken at a position above the rename.

The lock: a rename that is seen is in the catalog before a Relation message that comes later is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wal2lake.catalog import ENUM_LABELS, Catalog, Subscription
from wal2lake.errors import Wal2LakeError
from wal2lake.model import KnownLabels
from wal2lake.observe import get_logger
from wal2lake.pg import Publisher, Session
from wal2lake.pgtypes import FIRST_NORMAL_OID

_LOOK_SECONDS: Final = 10.0
"""A value that is added, stored and renamed between two looks is not noticed. A guess at what a
publisher does not mind."""


class LabelWatch:
    """For one run of the receiver. ``look`` is safe for many threads."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        session: Callable[[], Session],
        stop: threading.Event,
    ) -> None:
        """``session`` opens one to the publisher."""
        self._catalog = catalog
        self._subscription = subscription
        self._session = session
        self._stop = stop
        self._lock = threading.Lock()
        self._reported = False

    def work(self) -> None:
        """The thread."""
        if not self._subscription.follows_schema:
            return
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self.look()
                self._reported = False
            except Exception as error:
                # What comes is received all the same; the next look may find the server.
                self._warn(error)

    def look(self) -> None:
        """Record labels and renames. Raises PublisherError, StorageError."""
        if not self._subscription.follows_schema:
            return
        with self._lock:
            followed = self._catalog.followed_schemas(self._subscription.oid).values()
            relids = [
                one.schema.relid
                for one in followed
                if any(
                    a.declared_oid >= FIRST_NORMAL_OID for a in one.schema.attributes
                )
            ]
            subscription = self._catalog.subscription(self._subscription.oid)
            if not relids or subscription is None:
                return
            with self._session() as session:
                publisher = Publisher(session)
                seen = publisher.enums(relids)
                at = publisher.position()
            text = subscription.options.get(ENUM_LABELS)
            known = KnownLabels.parse(text)
            oldest = min(one.begins for one in followed)
            now = known.then(seen, at).since(oldest).as_json()
            if now != text:
                self._catalog.set_options(subscription.oid, {ENUM_LABELS: now})

    def _warn(self, error: Exception) -> None:
        """Once until it works again."""
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
