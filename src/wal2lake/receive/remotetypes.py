"""In which format values are asked for, and what their decoders know of the publisher's types.

In: a publisher's session before streaming starts; then each gulp, before it gets into the log.
Out: whether to ask for binary format; the publisher's types in the catalog, where apply and
tablesync find them; an end of the run if a column comes whose type has no decoder. Without
binary = true it does nothing.

What is in the log in binary form must have a decoder, because nobody sends it again. And
some types have none: the text of a regclass is a name in the publisher's catalog as it
was when the row was written, its binary form the OID alone. pgoutput lets a subscriber choose
for all columns only. So:

    before streaming       a published column without decoder     the stream is asked for as text
    a Relation message     a column of a type that nobody knows   nothing of it is taken; the run
                           here, or without decoder               ends, the next one asks again

A type that was made since is known to the next run. One that has no decoder, or that is gone
again, stays *recorded* in the catalog, and the stream text, until all that the server had
written when this was found has been received: what comes behind that has the tables of today.

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
from wal2lake.receive.gulps import Gulp, described


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Types that a binary stream has brought and nobody could decode."""

    oids: tuple[int, ...] = ()
    until: Lsn = INVALID_LSN
    """Below this rows may have them; 0: the server was not asked yet how far it is."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """The inverse of ``as_text``."""
        if not text:
            return cls()
        recorded = json.loads(text)
        return cls(tuple(recorded["oids"]), Lsn(recorded["until"]))

    def as_text(self) -> str:
        """For the catalog; empty: nothing."""
        if not self.oids:
            return ""
        return json.dumps({"oids": self.oids, "until": int(self.until)})


class RemoteTypesKeeper:
    """For one run of the receiver."""

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
        """Ask for all types; whether to ask for binary format.

        ``position``: how far the server is, ``received``: how far what it has sent.
        """
        if not self._subscription.binary:
            return False
        formats = published_formats(publisher, self._subscription.publications)
        self._known = {int(t.oid): t for t in formats.types}
        before = Undecoded.parse(self._subscription.undecoded_types)
        left, reasons = self._left(before, received, position)
        # Rows that wait in the log may be of a type that is gone by now.
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
        """False: it has a column that nobody could decode. It must not get into the log,
        nothing may be confirmed for it, and the run has to end: another one is due."""
        if not self._binary:
            return True
        relations, self._in_block = described(gulp, in_block=self._in_block)
        for relation in relations:
            refused = self._refused(relation)
            if refused:
                self._give_up(refused)
                return False
        return True

    def _refused(self, relation: Relation) -> dict[int, str]:
        """Types without decoder, and what to say of a column that has it."""
        found = {}
        for column in relation.columns:
            oid = int(column.type_oid)
            if oid in self._decodable:
                continue
            try:
                check_decoder(oid, self._known)
            except NoDecoder as reason:
                found[oid] = obstacle(
                    relation.namespace, relation.name, column.name, reason
                )
            else:
                self._decodable.add(oid)
        return found

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
        """Return the part of ``before`` that still stands in the way, and the reason."""
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
        known = self._catalog.subscription(self._subscription.oid)
        if known is None:
            return
        changed = {k: v for k, v in options.items() if known.options.get(k, "") != v}
        if changed:
            self._catalog.set_options(known.oid, changed)
