"""Asks the publisher's catalog about relations whose Relation messages arrive.

In: gulps, before they get into the log. Out: ``SentSchema`` values in the catalog, where apply
finds them. Only for subscriptions with schema_changes = follow.

    B ... R ... C            asked when R comes: what is sent here has been committed
    S R ... E ... c          asked when the commit comes: until then nobody else sees what
    b R ... P ... K          an ALTER in that transaction has done

K may come in another run than P: at P the relations are kept in the catalog until then.

They are recorded for the commit LSN of their transaction. ALTER TABLE excludes everybody else who
writes to the table until it commits, so whatever commits before has the columns of before, and what
commits later those of now. The server may be further already; apply sees that. How far it was
is noted with them, for NOT NULL says nothing of rows that come before that.

Called by the journal thread: it may wait for the server, the reader must not. A failure ends the
run, and all of it is sent again: a relation's columns that are in the log have been asked for.

Source: pgoutput.c (maybe_send_schema: a streamed transaction has a Relation message of its own).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from wal2lake.catalog import Catalog, Subscription
from wal2lake.errors import ProtocolViolation
from wal2lake.model import Lsn, Oid, Relation, RemoteSchema, SentSchema, Xid
from wal2lake.observe import failpoint
from wal2lake.pg import Publisher, Session
from wal2lake.pgtypes import FIRST_NORMAL_OID
from wal2lake.receive.gulps import Gulp
from wal2lake.wire.copyboth import XLOGDATA_HEADER
from wal2lake.wire.pgoutput import (
    BeginPrepare,
    CommitPrepared,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    read_message,
)

_BEGIN: Final = ord("B")
_RELATION: Final = ord("R")
_START: Final = ord("S")
_STOP: Final = ord("E")
_COMMITS: Final = struct.Struct(">xQ")
"""A Begin up to the LSN of its commit."""

_OPENS: Final = b"BbSE"
_ALWAYS: Final = _OPENS + b"R"
_ENDS: Final = b"cAKrPp"


class SchemaKeeper:
    """For one run of the receiver."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        session: Callable[[], Session],
        look_at_labels: Callable[[], None] = lambda: None,
    ) -> None:
        """``session`` opens one to the publisher; ``look_at_labels`` is called before columns
        whose types are not built in are noted."""
        self._catalog = catalog
        self._subscription = subscription
        self._session = session
        self._look_at_labels = look_at_labels
        self._opened = b""
        """The last Begin, Begin Prepare, Stream Start or Stream Stop."""
        self._in_block = False
        self._deferred: dict[Xid, dict[tuple[Oid, Xid], Relation]] = {}
        """Relations of transactions that have not committed, by relation and subtransaction; the
        newest of a relation last."""
        self._prepared: set[Xid] | None = None
        """Transactions whose relations the catalog keeps until their end; None: not looked up."""
        self._ended: list[Xid] = []
        """Transactions of these that end in the present gulp."""

    def begin(self) -> None:
        """Record the columns of tables that were not followed before, as they are now: for the
        first run after SET (schema_changes = follow). Called before streaming starts, so that
        every later Relation message is noted.

        The log may hold rows with columns that our table does not have; nobody has noted
        where they begin. Such a column is noted for the subscription's floor: it is added
        here, and the table is copied anew. Raises PublisherError.
        """
        ours = self._subscription
        if not ours.follows_schema:
            return
        followed = self._catalog.followed_schemas(ours.oid)
        new = {
            (rel.remote_namespace, rel.remote_name): rel.relid
            for rel in self._catalog.rels(ours.oid)
            if rel.relid not in followed
        }
        if not new:
            return
        with self._session() as session:
            publisher = Publisher(session)
            remote = publisher.tables(tuple(new), ours.publications)
            settled = publisher.position()
        found: dict[Oid, RemoteSchema] = {}
        lacking = []
        for name, one in remote.items():
            table = self._catalog.table_by_oid(new[name])
            if table is None:
                continue
            known = one.schema.with_columns({c.name for c in table.columns})
            found[new[name]] = known
            if known != one.schema:
                relation = one.schema.as_relation()
                lacking.append(SentSchema(ours.floor, relation, one.schema, settled))
        self._catalog.start_following(ours.oid, found, ours.floor)
        self._catalog.note_sent(ours.oid, lacking)

    def note(self, gulp: Gulp) -> None:
        """Raises PublisherError, StorageError: then the gulp must not get into the log."""
        if not self._subscription.follows_schema:
            if self._prepared is None:
                # Those that an earlier run has kept may end while this one does not look.
                self._catalog.forget_prepared(self._subscription.oid)
                self._prepared = set()
            return
        if self._prepared is None:
            self._prepared = set(
                self._catalog.prepared_transactions(self._subscription.oid)
            )
        found: list[tuple[Lsn, Relation]] = []
        self._ended = []
        for body in self._messages(gulp):
            try:
                found += self._read(body)
            except ProtocolViolation:
                # Whoever decodes it says what is wrong.
                return
        if found:
            self._ask(found)
        elif self._ended:
            self._catalog.note_sent(self._subscription.oid, (), self._ended)
        self._prepared.difference_update(self._ended)

    def _messages(self, gulp: Gulp) -> Iterable[bytes]:
        """Yield the messages that matter here."""
        sizes = gulp.lengths.astype(np.int64)
        ends = np.cumsum(sizes)
        whole = np.flatnonzero(sizes > XLOGDATA_HEADER)
        starts = (ends - sizes)[whole] + XLOGDATA_HEADER
        kinds = np.frombuffer(gulp.data, np.uint8)[starts]
        wanted = np.zeros(256, np.bool_)
        wanted[list(_ALWAYS + _ENDS)] = True
        chosen = wanted[kinds]
        if not (kinds[chosen] == _RELATION).any() and not self._open:
            # Of transactions that have nothing for us the last one may go on.
            last = np.flatnonzero(np.isin(kinds, list(_OPENS)))[-1:]
            chosen = np.zeros(len(kinds), np.bool_)
            chosen[last] = True
        for i in np.flatnonzero(chosen).tolist():
            yield gulp.data[int(starts[i]) : int(ends[whole[i]])]

    def _read(self, body: bytes) -> list[tuple[Lsn, Relation]]:
        kind = body[0]
        if kind in _OPENS:
            self._opened = body
            self._in_block = kind == _START
            return []
        if kind == _RELATION:
            return self._relation(body)
        if not self._open:
            return []
        ended = read_message(body, parallel=self._is_parallel(body))
        if isinstance(ended, StreamCommit):
            return [(ended.commit_lsn, one) for one in self._newest(ended.xid)]
        if isinstance(ended, CommitPrepared):
            return [(ended.commit_lsn, one) for one in self._end(ended.xid)]
        if isinstance(ended, Prepare | StreamPrepare):
            self._keep(ended.xid, self._newest(ended.xid))
        elif isinstance(ended, RollbackPrepared):
            self._end(ended.xid)
        elif isinstance(ended, StreamAbort) and ended.xid == ended.subxid:
            self._deferred.pop(ended.xid, None)
        elif isinstance(ended, StreamAbort):
            # The columns that a subtransaction had made have never been.
            deferred = self._deferred.get(ended.xid, {})
            for key in [key for key in deferred if key[1] == ended.subxid]:
                del deferred[key]
        return []

    @property
    def _open(self) -> bool:
        """There are relations of transactions that have not ended."""
        return bool(self._deferred or self._prepared)

    def _newest(self, xid: Xid) -> list[Relation]:
        deferred = self._deferred.pop(xid, {})
        return list({relid: one for (relid, _), one in deferred.items()}.values())

    def _keep(self, xid: Xid, relations: Sequence[Relation]) -> None:
        """Keep the relations of a prepared transaction until its end."""
        if relations and self._prepared is not None:
            self._catalog.keep_prepared(self._subscription.oid, xid, relations)
            self._prepared.add(xid)

    def _end(self, xid: Xid) -> Sequence[Relation]:
        """Return the relations kept of a transaction. They are forgotten once the end has been
        noted: a run that fails before sees the end again."""
        if xid not in (self._prepared or ()):
            return ()
        self._ended.append(xid)
        return self._catalog.prepared_relations(self._subscription.oid, xid)

    def _relation(self, body: bytes) -> list[tuple[Lsn, Relation]]:
        message = read_message(body, in_stream=self._in_block)
        assert isinstance(message, RelationMessage)
        relation = message.relation
        if self._opened[:1] == b"B":
            return [(Lsn(_COMMITS.unpack_from(self._opened)[0]), relation)]
        opened = read_message(self._opened)
        if isinstance(opened, StreamStart | BeginPrepare):
            key = (relation.relid, message.xid or opened.xid)
            deferred = self._deferred.setdefault(opened.xid, {})
            deferred.pop(key, None)
            deferred[key] = relation
        return []

    @staticmethod
    def _is_parallel(body: bytes) -> bool:
        """A Stream Abort with LSN and time."""
        return len(body) > 9

    def _ask(self, found: list[tuple[Lsn, Relation]]) -> None:
        relids = tuple(dict.fromkeys(one.relid for _, one in found))
        with self._session() as session:
            publisher = Publisher(session)
            schemas = publisher.schemas(relids)
            settled = publisher.position()
        failpoint("schemas.asked")
        if any(
            column.type_oid >= FIRST_NORMAL_OID
            for _, relation in found
            for column in relation.columns
        ):
            self._look_at_labels()
        self._catalog.note_sent(
            self._subscription.oid,
            [
                SentSchema(
                    at,
                    relation,
                    schemas[relation.relid].published(relation),
                    settled,
                )
                for at, relation in found
                # One that is gone will not get any further rows.
                if relation.relid in schemas
            ],
            self._ended,
        )
