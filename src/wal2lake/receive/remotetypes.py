"""What decoders of binary values must know of the publisher's types, kept up to date.

In: a publisher's session before streaming starts; then each sealed segment. Out: the types in
the catalog, where apply and tablesync find them; an error, before anything is streamed, if
a published column has no decoder. Without binary = true it does nothing.

A type may be made while the stream runs. The first segment that has a column of it says so;
then the publisher is asked again. Until the answer is recorded apply waits, or stops at
the row and tries again.

Called by the walreceiver: ``learn`` on the reader's thread, then ``notice`` on the seal thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from wal2lake.catalog import REMOTE_TYPES, Catalog, Subscription
from wal2lake.changelog import Manifest
from wal2lake.pg import Publisher, connect, require_binary
from wal2lake.pgtypes import FIRST_NORMAL_OID, RemoteType, remote_types_to_json


class RemoteTypesKeeper:
    """For one run of the receiver."""

    def __init__(self, catalog: Catalog, subscription: Subscription) -> None:
        self._catalog = catalog
        self._subscription = subscription
        self._asked: set[int] = set()
        """OIDs that the catalog has, or that the publisher did not know."""

    def learn(self, publisher: Publisher) -> None:
        """Ask for all types; 0A000 if a published column cannot be decoded."""
        if self._subscription.binary:
            self._record(require_binary(publisher, self._subscription.publications))

    def notice(self, sealed: Manifest) -> None:
        """Ask again if the segment has a type that was made since."""
        if not self._subscription.binary:
            return
        used = {
            int(c.type_oid)
            for file in sealed.files
            for c in file.relation.columns
            if c.type_oid >= FIRST_NORMAL_OID
        }
        if used <= self._asked:
            return
        # Once for each type: one that is gone again is not found however often we ask.
        self._asked |= used
        with connect(
            self._subscription.conninfo,
            application_name=f"pg_{self._subscription.oid}_types",
            must_use_password=self._catalog.must_use_password(self._subscription),
        ) as session:
            self._record(Publisher(session).remote_types())

    def _record(self, types: Iterable[RemoteType]) -> None:
        types = tuple(types)
        self._asked |= {int(t.oid) for t in types}
        recorded = remote_types_to_json(types)
        known = self._catalog.subscription(self._subscription.oid)
        if known is not None and known.remote_types != recorded:
            self._catalog.set_options(known.oid, {REMOTE_TYPES: recorded})
