"""PostgreSQL's example plugin: a line of text for each event.

Options as in PostgreSQL: include-xids, include-timestamp, force-binary, skip-empty-xacts,
only-local, include-rewrites, stream-changes.

Source: contrib/test_decoding/test_decoding.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.model import Lsn, Relation, Xid
from wal2lake.pgtypes.keywords import quote_identifier, quote_literal
from wal2lake.pgtypes.registry.pg_type import format_type
from wal2lake.publish.decoding.decoded import Transaction
from wal2lake.publish.plugins.port import Base, Context, DecodedChange, Values

_BARE: Final = frozenset({20, 21, 23, 26, 700, 701, 1700})
"""Types whose values are printed without quotes."""

_BITS: Final = frozenset({1560, 1562})

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

_TRUE: Final = ("true", "yes", "on", "1", "t", "y", "tru", "tr", "ye")
_FALSE: Final = ("false", "no", "off", "0", "f", "n", "fals", "fal", "fa", "of")


class TestDecoding(Base):
    """The plugin test_decoding; the module describes it."""

    __test__ = False
    two_phase = True

    def __init__(self) -> None:
        self._xids = True
        self._timestamp = False
        self._skip_empty = False
        self._only_local = False
        self._begun = False
        """Whether the line that opens this transaction, or its present block, was written."""
        self._block = False
        self._streamed = False
        """Whether this transaction has written a change in a block."""

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Read the options."""
        for name, value in options.items():
            if name == "include-xids":
                self._xids = boolean(name, value)
            elif name == "include-timestamp":
                self._timestamp = boolean(name, value)
            elif name == "skip-empty-xacts":
                self._skip_empty = boolean(name, value)
            elif name == "only-local":
                self._only_local = boolean(name, value)
            elif name == "force-binary":
                self.is_text = not boolean(name, value, missing=False)
            elif name == "stream-changes":
                self.streams = boolean(name, value, missing=False)
            elif name == "include-rewrites":
                # There are no rewrites of tables here.
                boolean(name, value, missing=False)
            else:
                raise UsageError(
                    f'option "{name}" = "{"(null)" if value is None else value}" is unknown',
                    sqlstate="22023",
                )

    def filter_by_origin(self, origin: str | None) -> bool:
        """Leave out transactions with an origin if only-local is set."""
        return self._only_local and origin is not None

    def begin(self, context: Context, transaction: Transaction) -> None:
        """Write BEGIN, at once or before the first change."""
        self._begun = False
        if not self._skip_empty:
            self._begin(context, transaction)

    def _begin(self, context: Context, transaction: Transaction) -> None:
        self._begun = True
        text = f"BEGIN {int(transaction.xid)}" if self._xids else "BEGIN"
        context.write(text.encode(), transaction.first_lsn, True)

    def commit(self, context: Context, transaction: Transaction) -> None:
        """Write COMMIT."""
        if not self._begun:
            return
        text = f"COMMIT {int(transaction.xid)}" if self._xids else "COMMIT"
        if self._timestamp:
            text += f" (at {timestamp(transaction.commit_time)})"
        context.write(text.encode(), transaction.end_lsn, True)

    def filter_prepare(self, context: Context, xid: Xid, gid: str) -> bool:
        """Return True, as PostgreSQL does, if the transaction's name contains ``_nodecode``."""
        return "_nodecode" in gid

    def begin_prepare(self, context: Context, transaction: Transaction) -> None:
        """Write BEGIN, as for any transaction."""
        self.begin(context, transaction)

    def prepare(self, context: Context, transaction: Transaction) -> None:
        """``PREPARE TRANSACTION 'g', txid 7``"""
        if self._begun:
            two_phase = transaction.prepared
            time, end = two_phase.prepare_time, two_phase.prepare_end
            self._step(context, transaction, "PREPARE TRANSACTION", time, end)

    def commit_prepared(self, context: Context, transaction: Transaction) -> None:
        """``COMMIT PREPARED 'g', txid 7``"""
        time, end = transaction.commit_time, transaction.end_lsn
        self._step(context, transaction, "COMMIT PREPARED", time, end)

    def rollback_prepared(self, context: Context, transaction: Transaction) -> None:
        """``ROLLBACK PREPARED 'g', txid 7``"""
        time, end = transaction.commit_time, transaction.end_lsn
        self._step(context, transaction, "ROLLBACK PREPARED", time, end)

    def _step(
        self,
        context: Context,
        transaction: Transaction,
        verb: str,
        time: int,
        lsn: Lsn,
    ) -> None:
        text = f"{verb} {quote_literal(transaction.prepared.gid)}"
        if self._xids:
            text += f", txid {int(transaction.xid)}"
        if self._timestamp:
            text += f" (at {timestamp(time)})"
        context.write(text.encode(), lsn, True)

    def stream_start(
        self, context: Context, transaction: Transaction, first: bool
    ) -> None:
        """``opening a streamed block for transaction TXN 7``"""
        self._block, self._begun = True, False
        if first:
            self._streamed = False
        if not self._skip_empty:
            self._open(context, transaction)

    def stream_stop(self, context: Context, transaction: Transaction) -> None:
        """``closing a streamed block for transaction TXN 7``"""
        self._block = False
        if self._begun:
            text = f"closing a streamed block for {self._named(transaction)}"
            context.write(text.encode(), transaction.first_lsn, True)

    def stream_commit(self, context: Context, transaction: Transaction) -> None:
        """``committing streamed transaction TXN 7``"""
        if self._skip_empty and not self._streamed:
            return
        text = f"committing streamed {self._named(transaction)}"
        if self._timestamp:
            text += f" (at {timestamp(transaction.commit_time)})"
        context.write(text.encode(), transaction.end_lsn, True)

    def stream_prepare(self, context: Context, transaction: Transaction) -> None:
        """``preparing streamed transaction TXN 'g', txid 7``"""
        if self._skip_empty and not self._streamed:
            return
        gid = quote_literal(transaction.prepared.gid)
        text = f"preparing streamed transaction TXN {gid}"
        if self._xids:
            text += f", txid {int(transaction.xid)}"
        else:
            text = f"preparing streamed transaction {gid}"
        if self._timestamp:
            text += f" (at {timestamp(transaction.prepared.prepare_time)})"
        context.write(text.encode(), transaction.prepared.prepare_end, True)

    def _named(self, transaction: Transaction) -> str:
        return (
            f"transaction TXN {int(transaction.xid)}" if self._xids else "transaction"
        )

    def _open(self, context: Context, transaction: Transaction) -> None:
        """Write the line that precedes the first change, unless it was written."""
        if self._begun:
            return
        if not self._block:
            self._begin(context, transaction)
            return
        self._begun = True
        text = f"opening a streamed block for {self._named(transaction)}"
        context.write(text.encode(), transaction.first_lsn, True)

    def _in_block(
        self, context: Context, transaction: Transaction, kind: str, lsn: Lsn
    ) -> None:
        """Write the line of a change in a block, which has no details."""
        self._streamed = True
        of = f"TXN {int(transaction.xid)}" if self._xids else "transaction"
        context.write(f"streaming {kind} for {of}".encode(), lsn, True)

    def change(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        change: DecodedChange,
    ) -> None:
        """``table s.t: UPDATE: old-key: ... new-tuple: ...``"""
        self._open(context, transaction)
        if self._block:
            self._in_block(context, transaction, "change", change.lsn)
            return
        text = f"table {_name(relation)}:".encode()
        if change.op == "I":
            text += b" INSERT:" + _tuple(relation, change.new)
        elif change.op == "U":
            text += b" UPDATE:"
            if change.old is not None:
                text += b" old-key:" + _tuple(relation, change.old, skip_nulls=True)
                text += b" new-tuple:"
            text += _tuple(relation, change.new)
        else:
            text += b" DELETE:"
            if change.old is None:
                text += b" (no-tuple-data)"
            else:
                text += _tuple(relation, change.old, skip_nulls=True)
        context.write(text, change.lsn, True)

    def truncate(
        self,
        context: Context,
        transaction: Transaction,
        relations: tuple[Relation, ...],
        options: int,
        lsn: Lsn,
    ) -> None:
        """``table s.a, s.b: TRUNCATE: (no-flags)``"""
        self._open(context, transaction)
        if self._block:
            self._in_block(context, transaction, "truncate", lsn)
            return
        names = ", ".join(map(_name, relations))
        flags = [
            word for bit, word in ((2, "restart_seqs"), (1, "cascade")) if options & bit
        ]
        shown = " ".join(flags) or "(no-flags)"
        context.write(f"table {names}: TRUNCATE: {shown}".encode(), lsn, True)

    def message(
        self,
        context: Context,
        transaction: Transaction | None,
        lsn: Lsn,
        prefix: str,
        content: bytes,
    ) -> None:
        """``message: transactional: 1 prefix: p, sz: 3 content:abc``"""
        if transaction is not None:
            self._open(context, transaction)
        if transaction is not None and self._block:
            # The message may yet be rolled back, so PostgreSQL does not write its content here.
            text = f"streaming message: transactional: 1 prefix: {prefix}, sz: {len(content)}"
            self._streamed = True
            context.write(text.encode(), lsn, True)
            return
        head = (
            f"message: transactional: {int(transaction is not None)} prefix: {prefix},"
            f" sz: {len(content)} content:"
        )
        context.write(head.encode() + content, lsn, True)


def timestamp(time: int) -> str:
    """Format a timestamptz in UTC. ``time``: microseconds since 2000-01-01 UTC."""
    moment = _EPOCH + timedelta(microseconds=time)
    shown = moment.strftime("%Y-%m-%d %H:%M:%S")
    if moment.microsecond:
        shown += f".{moment.microsecond:06}".rstrip("0")
    return f"{shown}+00"


def boolean(name: str, value: str | None, *, missing: bool = True) -> bool:
    """Parse an option's boolean. ``missing``: its value if none is given. Raises 22023."""
    if value is None:
        return missing
    lowered = value.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise UsageError(
        f'could not parse value "{value}" for parameter "{name}"', sqlstate="22023"
    )


def _name(relation: Relation) -> str:
    return f"{quote_identifier(relation.namespace)}.{quote_identifier(relation.name)}"


def _tuple(
    relation: Relation, values: Values | None, *, skip_nulls: bool = False
) -> bytes:
    if values is None:
        return b" (no-tuple-data)"
    parts = []
    for column, value in zip(relation.columns, values, strict=True):
        if value is None and skip_nulls:
            continue
        kind = format_type(column.type_oid)
        head = f" {quote_identifier(column.name)}[{kind}]:".encode()
        if value is None:
            parts.append(head + b"null")
        elif int(column.type_oid) in _BARE:
            parts.append(head + value)
        elif int(column.type_oid) in _BITS:
            parts.append(head + b"B'" + value + b"'")
        elif int(column.type_oid) == 16:
            parts.append(head + (b"true" if value == b"t" else b"false"))
        else:
            parts.append(head + b"'" + value.replace(b"'", b"''") + b"'")
    return b"".join(parts)
