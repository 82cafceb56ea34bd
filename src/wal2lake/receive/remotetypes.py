"""Chooses text or binary format, and records the publisher's types for decoders.

In: a publisher's session before streaming starts; then each gulp, before it is logged. Out: whether
to request binary format; the publisher's types in the catalog, for apply and tablesync; the end of
the run if a column arrives whose type has no decoder. Without binary = true the module does
nothing.

Binary values in the log must have a decoder, because the publisher does not send them again. Some
types have none: the text of a regclass is a name from the publisher's catalog at the time of the
write, its binary form only the OID. A subscriber can choose the format only for all columns
together. So:

    before streaming       a published column without decoder     text format is requested
    a Relation message     a column of an unknown type, or        the gulp is not logged; the run
                           without decoder                        ends, and the next queries again

A type created since is known to the next run. A type that has no decoder, or that was dropped
again, is *recorded* in the catalog, and the format stays text until everything that the server had
written at the discovery has been received. Later rows have the present columns.

Called by the walreceiver on the reader's thread. Why this way: docs/decisions/0007.

Source: logicalrep_write_tuple() in proto.c.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from wal2lake.catalog import REMOTE_TYPES, UNDECODED_TYPES, Catalog, Subscription
from wal2lake.model import INVALID_LSN, Lsn, Relation
from wal2lake.observe import get_logger
from wal2lake.pg import Publisher, list_obstacles, obstacle, published_formats
from wal2lake.pgtypes import (
    NoDecoder,
    RemoteTypes,
    check_decoder,
    remote_types_from_json,
    remote_types_to_json,
)
from wal2lake.receive.gulps import Gulp, read_relations


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Types without a decoder that a binary stream has brought."""

    oids: tuple[int, ...] = ()
    until: Lsn = INVALID_LSN
    """Rows below this position may have such types. 0 if the server's position is not known yet."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """The inverse of ``as_text``."""
        if not text:
            return cls()
        recorded = json.loads(text)
        return cls(tuple(recorded["oids"]), Lsn(recorded["until"]))

    def as_text(self) -> str:
        """Return the form for the catalog; empty if there are no types."""
        if not self.oids:
            return ""
        return json.dumps({"oids": self.oids, "until": int(self.until)})


class RemoteTypesKeeper:
    """Chooses the format and checks types for one run of the receiver."""

    def __init__(self, catalog: Catalog, subscription: Subscription) -> None:
        self._catalog = catalog
        self._subscription = subscription
        self._binary = False
        """True if binary format was requested."""
        self._known: RemoteTypes = {}
        self._decodable: set[int] = set()
        self._in_block = False
        self._events = get_logger()

    def learn(self, publisher: Publisher, *, received: Lsn, position: Lsn) -> bool:
        """Query all types. Return whether to request binary format.

        ``position``: the server's present position. ``received``: end of the received stream.
        """
        if not self._subscription.binary:
            return False
        formats = published_formats(publisher, self._subscription.publications)
        self._known = {int(t.oid): t for t in formats.types}
        before = Undecoded.parse(self._subscription.undecoded_types)
        left, reasons = self._left(before, received, position)
        # Rows that wait in the log may have a type that was dropped since.
        ever = {
            **remote_types_from_json(self._subscription.remote_types),
            **self._known,
        }
        self._record(
            {
                REMOTE_TYPES: remote_types_to_json(tuple(ever.values())),
                UNDECODED_TYPES: left.as_text(),
            }
        )
        obstacles = (*formats.obstacles, *reasons)
        self._binary = not obstacles
        if obstacles:
            self._events.info(
                f'subscription "{self._subscription.name}" receives changes in text'
                f" format: {list_obstacles(obstacles)}"
            )
        return self._binary

    def admit(self, gulp: Gulp) -> bool:
        """Check a gulp. Return False if it has a column without a decoder: then the gulp must be
        neither logged nor confirmed, and the run must end so that another one starts."""
        if not self._binary:
            return True
        relations, self._in_block = read_relations(gulp, in_block=self._in_block)
        for relation in relations:
            refused = self._refused(relation)
            if refused:
                self._give_up(refused)
                return False
        return True

    def _refused(self, relation: Relation) -> dict[int, str]:
        """Return the types without a decoder, each with the description of a column that has the
        type."""
        obstacles = {}
        for column in relation.columns:
            oid = int(column.type_oid)
            if oid in self._decodable:
                continue
            try:
                check_decoder(oid, self._known)
            except NoDecoder as reason:
                obstacles[oid] = obstacle(
                    relation.namespace, relation.name, column.name, reason
                )
            else:
                self._decodable.add(oid)
        return obstacles

    def _give_up(self, refused: dict[int, str]) -> None:
        self._events.info(
            "logical replication apply worker for subscription"
            f' "{self._subscription.name}" will restart because of a type that it does'
            f" not know: {list_obstacles(list(refused.values()))}"
        )
        self._catalog.alter_subscription(
            self._subscription.oid,
            options={UNDECODED_TYPES: Undecoded(tuple(refused)).as_text()},
        )

    def _left(
        self, before: Undecoded, received: Lsn, position: Lsn
    ) -> tuple[Undecoded, Sequence[str]]:
        """Return the types of ``before`` that still prevent binary format, and the reasons."""
        if before.until and received >= before.until:
            return Undecoded(), ()
        reasons = {}
        for oid in before.oids:
            try:
                check_decoder(oid, self._known)
            except NoDecoder as reason:
                reasons[oid] = f"Rows may come in which {reason.message}."
        if not reasons:
            return Undecoded(), ()
        return (
            Undecoded(tuple(reasons), before.until or position),
            tuple(reasons.values()),
        )

    def _record(self, options: dict[str, str]) -> None:
        subscription = self._catalog.subscription(self._subscription.oid)
        if subscription is None:
            return
        changed = {
            k: v for k, v in options.items() if subscription.options.get(k, "") != v
        }
        if changed:
            self._catalog.set_options(subscription.oid, changed)
