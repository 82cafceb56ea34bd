"""Reads the publisher's catalog entries of relations whose Relation messages arrive.

In: gulps, before they are logged. Out: ``SentSchema`` values in the catalog, for apply. Only for
subscriptions with schema_changes = follow.

    B ... R ... C            read at R: the transaction has committed
    S R ... E ... c          read at the commit (c, K): until then other sessions do not see
    b R ... P ... K          an ALTER in the transaction

K may arrive in another run than P, so at P the relations are stored in the catalog.

Schemas are recorded for the commit LSN of their transaction. ALTER TABLE excludes other writers of
the table until it commits, so rows of earlier commits have the old columns, and rows of later
commits the new ones. The catalog may already be newer than the message; apply detects that. The
server's position at the read is recorded, too, because NOT NULL does not hold for rows below that
position.

Called by the journal thread, which may wait for the server; the reader must not. A failure ends the
run, and the publisher sends everything again. So the schema of every logged relation has been
recorded.

Source: pgoutput.c (maybe_send_schema: a streamed transaction has a Relation message of its own).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
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
"""The fields of a Begin up to the LSN of its commit."""

_OPENS: Final = b"BbSE"
_ALWAYS: Final = _OPENS + b"R"
_ENDS: Final = b"cAKrPp"


class SchemaKeeper:
    """Records schemas for one run of the receiver."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        session: Callable[[], AbstractContextManager[Session]],
        look_at_labels: Callable[[], None] = lambda: None,
    ) -> None:
        """``session`` gives a session to the publisher for one look. ``look_at_labels`` is called
        before columns are recorded whose types are not built in."""
        self._catalog = catalog
        self._subscription = subscription
        self._session = session
        self._look_at_labels = look_at_labels
        self._opened = b""
        """The last Begin, Begin Prepare, Stream Start or Stream Stop."""
        self._in_block = False
        self._deferred: dict[Xid, dict[tuple[Oid, Xid], Relation]] = {}
        """For each uncommitted transaction, its relations by relation and subtransaction. The
        newest message of a relation is last."""
        self._prepared: set[Xid] | None = None
        """Prepared transactions whose relations the catalog stores until their end. None if not
        read yet."""
        self._ended: list[Xid] = []
        """Prepared transactions that end in the present gulp."""

    def begin(self) -> None:
        """Record the present columns of tables that were not followed before, for the first run
        after SET (schema_changes = follow). Called before streaming starts, so that every later
        Relation message is recorded.

        The log may hold rows with columns that the local table lacks, and where such rows begin was
        not recorded. Such a column is recorded for the subscription's floor: it is added here, and
        the table is copied anew. Raises PublisherError.
        """
        subscription = self._subscription
        if not subscription.follows_schema:
            return
        followed = self._catalog.followed_schemas(subscription.oid)
        new = {
            (rel.remote_namespace, rel.remote_name): rel.relid
            for rel in self._catalog.rels(subscription.oid)
            if rel.relid not in followed
        }
        if not new:
            return
        with self._session() as session:
            publisher = Publisher(session)
            remote = publisher.tables(tuple(new), subscription.publications)
            settled = publisher.position()
        present: dict[Oid, RemoteSchema] = {}
        lacking = []
        for name, remote_table in remote.items():
            table = self._catalog.table_by_oid(new[name])
            if table is None:
                continue
            local_schema = remote_table.schema.with_columns(
                {c.name for c in table.columns}
            )
            present[new[name]] = local_schema
            if local_schema != remote_table.schema:
                relation = remote_table.schema.as_relation()
                lacking.append(
                    SentSchema(
                        subscription.floor, relation, remote_table.schema, settled
                    )
                )
        self._catalog.start_following(subscription.oid, present, subscription.floor)
        self._catalog.note_sent(subscription.oid, lacking)

    def record(self, gulp: Gulp) -> None:
        """Record the schemas of a gulp. If it raises PublisherError or StorageError, the gulp must
        not be logged."""
        if not self._subscription.follows_schema:
            if self._prepared is None:
                # Transactions stored by an earlier run may end unnoticed in this one.
                self._catalog.forget_prepared(self._subscription.oid)
                self._prepared = set()
            return
        if self._prepared is None:
            self._prepared = set(
                self._catalog.prepared_transactions(self._subscription.oid)
            )
        committed: list[tuple[Lsn, Relation]] = []
        self._ended = []
        for body in self._messages(gulp):
            try:
                committed += self._read(body)
            except ProtocolViolation:
                # The decoder reports the violation. Transactions before it are logged.
                break
        if committed:
            self._read_schemas(committed)
        elif self._ended:
            self._catalog.note_sent(self._subscription.oid, (), self._ended)
        self._prepared.difference_update(self._ended)

    def _messages(self, gulp: Gulp) -> Iterable[bytes]:
        """Yield the messages that matter for schemas."""
        sizes = gulp.lengths.astype(np.int64)
        ends = np.cumsum(sizes)
        whole = np.flatnonzero(sizes > XLOGDATA_HEADER)
        starts = (ends - sizes)[whole] + XLOGDATA_HEADER
        kinds = np.frombuffer(gulp.data, np.uint8)[starts]
        wanted = np.zeros(256, np.bool_)
        wanted[list(_ALWAYS + _ENDS)] = True
        chosen = wanted[kinds]
        if not (kinds[chosen] == _RELATION).any() and not self._open:
            # No transaction of the gulp matters so far, but the last one may go on.
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
            return [
                (ended.commit_lsn, relation) for relation in self._newest(ended.xid)
            ]
        if isinstance(ended, CommitPrepared):
            return [(ended.commit_lsn, relation) for relation in self._end(ended.xid)]
        if isinstance(ended, Prepare | StreamPrepare):
            self._keep(ended.xid, self._newest(ended.xid))
        elif isinstance(ended, RollbackPrepared):
            self._end(ended.xid)
        elif isinstance(ended, StreamAbort) and ended.xid == ended.subxid:
            self._deferred.pop(ended.xid, None)
        elif isinstance(ended, StreamAbort):
            # Columns added by an aborted subtransaction never existed.
            deferred = self._deferred.get(ended.xid, {})
            for key in [key for key in deferred if key[1] == ended.subxid]:
                del deferred[key]
        return []

    @property
    def _open(self) -> bool:
        """Whether there are relations of transactions that have not ended."""
        return bool(self._deferred or self._prepared)

    def _newest(self, xid: Xid) -> list[Relation]:
        deferred = self._deferred.pop(xid, {})
        return list(
            {relid: relation for (relid, _), relation in deferred.items()}.values()
        )

    def _keep(self, xid: Xid, relations: Sequence[Relation]) -> None:
        """Store the relations of a prepared transaction until its end."""
        if relations and self._prepared is not None:
            self._catalog.keep_prepared(self._subscription.oid, xid, relations)
            self._prepared.add(xid)

    def _end(self, xid: Xid) -> Sequence[Relation]:
        """Return the stored relations of a transaction. They are removed once its end has been
        recorded: a run that fails before receives the end again."""
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
        """Whether a Stream Abort has LSN and time."""
        return len(body) > 9

    def _read_schemas(self, committed: list[tuple[Lsn, Relation]]) -> None:
        relids = tuple(dict.fromkeys(relation.relid for _, relation in committed))
        with self._session() as session:
            publisher = Publisher(session)
            schemas = publisher.schemas(relids)
            settled = publisher.position()
        failpoint("schemas.asked")
        if any(
            column.type_oid >= FIRST_NORMAL_OID
            for _, relation in committed
            for column in relation.columns
        ):
            self._look_at_labels()
        self._catalog.note_sent(
            self._subscription.oid,
            [
                SentSchema(
                    commit_lsn,
                    relation,
                    schemas[relation.relid].published(relation),
                    settled,
                )
                for commit_lsn, relation in committed
                # A dropped relation gets no further rows.
                if relation.relid in schemas
            ],
            self._ended,
        )
