"""The interface of output plugins.

A plugin turns the transactions of one slot into messages. It is an object; an installed package
offers a class of such objects as an entry point in the group ``wal2lake.output_plugins``, and the
setting ``publish.output_plugin_libraries`` allows it by that name.

Callbacks come in PostgreSQL's order, from one thread:

    startup                       once, with the options of START_REPLICATION
      begin                       for each transaction that is not filtered, in commit order
        message                   those of the transaction, before its rows
        change | truncate         in the order in which they were made
      commit
      message                     one that belongs to no transaction, between two of them
    shutdown                      once

A transaction that has more than logical_decoding_work_mem is given in blocks to a plugin whose
``streams`` is true after its startup:

    stream_start                  of each block
      message                     in the first one
      change | truncate
    stream_stop
    stream_commit                 behind the last block

The log has only transactions that have committed, so the blocks of one follow each other, and none
is aborted.

Of a slot that is for two phases, a plugin whose ``two_phase`` is true is told of a transaction when
it is prepared, unless its ``filter_prepare`` wants it when it commits:

    begin_prepare                 instead of begin
      message, change | truncate
    prepare                       instead of commit
    commit_prepared, or           once it ends
    rollback_prepared

A large one comes in blocks, with ``stream_prepare`` behind the last. One that was prepared before
the slot knew of two phases is given so when it commits, all at once. Any other plugin is given what
was prepared when it commits, as any transaction.

``begin``, ``change`` and ``commit`` must be there; those of blocks and of prepared transactions, if
``streams`` or ``two_phase`` is true. This is checked when the plugin is loaded, and after its
startup. All else has a default in ``Base``.

Output goes to ``context.write``; what one callback writes in several calls are several messages.
Text plugins say so in ``is_text``: the SQL functions that return text take no others. An exception
ends this decoding, with the slot's and the callback's name as context, and nothing else.

Source: PostgreSQL manual, 47.6 "Logical Decoding Output Plugins".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from wal2lake.catalog import TableDef
from wal2lake.model import Lsn, Oid, Relation, Xid
from wal2lake.publish.decoding.changes import DecodedChange, Run, Transaction, Values
from wal2lake.publish.decoding.groups import Group
from wal2lake.publish.sending import Sending


@dataclass(slots=True)
class Context:
    """Context of the callbacks."""

    slot: str
    plugin: str
    """The plugin's name."""
    write: Callable[[bytes, Lsn, bool], None]
    """A message, its position, and whether it is the last one of its callback."""
    write_frames: Callable[[memoryview], None]
    """Messages that are CopyData already (``wire.encoder.frames``)."""
    sending: Callable[[Sequence[str], Lsn], Mapping[Oid, Sending]]
    """Tables that publications of these names sent at a position of the log, by OID."""
    table: Callable[[Oid], TableDef | None]
    """The table's definition now; None: it was dropped."""
    origin_number: Callable[[str], int]
    """Number of an origin, as pg_replication_origin has it; 0: the name does not exist any more."""
    two_phase: bool = False
    """The client has asked for prepared transactions as such: to be set by ``startup``. The slot
    has that from then on."""


class OutputPlugin(Protocol):
    """An output plugin; the module describes the callbacks. ``Base`` has a default for those that
    are optional."""

    is_text: bool
    """Messages are text in the client's encoding."""
    streams: bool
    """Large transactions are wanted in blocks."""
    two_phase: bool
    """It has the callbacks of prepared transactions."""

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Begin; raises UsageError for options that it does not have."""
        ...

    def begin(self, context: Context, transaction: Transaction) -> None:
        """A transaction begins."""
        ...

    def change(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        change: DecodedChange,
    ) -> None:
        """A row."""
        ...

    def run(self, context: Context, transaction: Transaction, run: Run) -> bool:
        """Many neighbouring rows at once, column by column; False: call ``change`` for each. A
        TRUNCATE is not among them."""
        ...

    def group(self, context: Context, group: Group) -> bool:
        """Many small transactions at once, from begin to commit, column by column; False, and
        nothing is written: each comes by itself."""
        ...

    def truncate(
        self,
        context: Context,
        transaction: Transaction,
        relations: tuple[Relation, ...],
        options: int,
        lsn: Lsn,
    ) -> None:
        """TRUNCATE of tables; ``options``: 1 CASCADE, 2 RESTART IDENTITY."""
        ...

    def commit(self, context: Context, transaction: Transaction) -> None:
        """It ends."""
        ...

    def stream_start(
        self, context: Context, transaction: Transaction, first: bool
    ) -> None:
        """A block of a large transaction; ``first``: its first one."""
        ...

    def stream_stop(self, context: Context, transaction: Transaction) -> None:
        """The block ends."""
        ...

    def stream_commit(self, context: Context, transaction: Transaction) -> None:
        """Called when a transaction that came in blocks has committed."""
        ...

    def filter_prepare(self, context: Context, xid: Xid, gid: str) -> bool:
        """True: this one is wanted when it commits, as any transaction. The same answer whenever
        it is asked."""
        ...

    def begin_prepare(self, context: Context, transaction: Transaction) -> None:
        """A prepared transaction begins; ``transaction.prepared`` has its PREPARE."""
        ...

    def prepare(self, context: Context, transaction: Transaction) -> None:
        """It is prepared."""
        ...

    def stream_prepare(self, context: Context, transaction: Transaction) -> None:
        """Called when a transaction that came in blocks is prepared."""
        ...

    def commit_prepared(self, context: Context, transaction: Transaction) -> None:
        """Called when a prepared transaction has committed."""
        ...

    def rollback_prepared(self, context: Context, transaction: Transaction) -> None:
        """Called when a prepared transaction is rolled back; it may have been prepared before the
        client was there."""
        ...

    def message(
        self,
        context: Context,
        transaction: Transaction | None,
        lsn: Lsn,
        prefix: str,
        content: bytes,
    ) -> None:
        """pg_logical_emit_message; without a transaction where it belongs to none."""
        ...

    def filter_by_origin(self, origin: str | None) -> bool:
        """True: transactions that came through it are not wanted."""
        ...

    def shutdown(self, context: Context) -> None:
        """The end."""
        ...


class Base:
    """Defaults of the callbacks that a plugin may leave out."""

    is_text = True
    streams = False
    two_phase = False

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Takes no options."""

    def run(self, context: Context, transaction: Transaction, run: Run) -> bool:
        """Row by row."""
        return False

    def group(self, context: Context, group: Group) -> bool:
        """One by one."""
        return False

    def truncate(
        self,
        context: Context,
        transaction: Transaction,
        relations: tuple[Relation, ...],
        options: int,
        lsn: Lsn,
    ) -> None:
        """TRUNCATE is left out."""

    def stream_start(
        self, context: Context, transaction: Transaction, first: bool
    ) -> None:
        """Not called unless ``streams``."""

    def stream_stop(self, context: Context, transaction: Transaction) -> None:
        """Likewise."""

    def stream_commit(self, context: Context, transaction: Transaction) -> None:
        """Likewise."""

    def filter_prepare(self, context: Context, xid: Xid, gid: str) -> bool:
        """All are wanted when they are prepared."""
        return False

    def begin_prepare(self, context: Context, transaction: Transaction) -> None:
        """Not called unless ``two_phase``."""

    def prepare(self, context: Context, transaction: Transaction) -> None:
        """Likewise."""

    def stream_prepare(self, context: Context, transaction: Transaction) -> None:
        """Likewise."""

    def commit_prepared(self, context: Context, transaction: Transaction) -> None:
        """Likewise."""

    def rollback_prepared(self, context: Context, transaction: Transaction) -> None:
        """Likewise."""

    def message(
        self,
        context: Context,
        transaction: Transaction | None,
        lsn: Lsn,
        prefix: str,
        content: bytes,
    ) -> None:
        """Messages are left out."""

    def filter_by_origin(self, origin: str | None) -> bool:
        """All are wanted."""
        return False

    def shutdown(self, context: Context) -> None:
        """Nothing to do."""


__all__ = [
    "Base",
    "Context",
    "DecodedChange",
    "Group",
    "OutputPlugin",
    "Run",
    "Transaction",
    "Values",
]
