"""The interface of output plugins.

A plugin turns the transactions of one slot into messages. A plugin is an object. An installed
package offers its class as an entry point in the group ``wal2lake.output_plugins``, and the setting
``publish.output_plugin_libraries`` allows the plugin by that name.

Callbacks are called in PostgreSQL's order, by one thread:

    startup                       once, with the options of START_REPLICATION
      begin                       for each transaction that is not filtered, in commit order
        message                   a message of the transaction
        change | truncate         in the order in which they were made
      commit
      message                     a non-transactional message, between two transactions
    shutdown                      once

A transaction larger than logical_decoding_work_mem is passed in blocks to a plugin whose
``streams`` is true after its startup:

    stream_start                  of each block
      message                     in the first one
      change | truncate
    stream_stop
    stream_commit                 after the last block

The log has only committed transactions, so the blocks of a transaction are consecutive, and none is
aborted.

For a slot with two_phase, a plugin whose ``two_phase`` is true gets a transaction when it is
prepared, unless ``filter_prepare`` returns true:

    begin_prepare                 instead of begin
      message, change | truncate
    prepare                       instead of commit
    commit_prepared, or           when it ends
    rollback_prepared

A large prepared transaction comes in blocks, with ``stream_prepare`` after the last. If a
transaction was prepared before the slot had two_phase, all these callbacks are called when it
commits. Any other plugin gets a prepared transaction when it commits, like any transaction.

``begin``, ``change`` and ``commit`` are required. The callbacks of blocks are required if
``streams`` is true, those of prepared transactions if ``two_phase`` is true. This is checked when
the plugin is loaded, and after its startup. All other callbacks have a default in ``Base``.

Plugins write with ``context.write``. Each call writes one message. ``is_text`` is true for plugins
that write text; SQL functions that return text accept no others. An exception ends this decoding
only; the error's context has the slot's and the callback's name.

Source: PostgreSQL manual, 47.6 "Logical Decoding Output Plugins".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from wal2lake.catalog import TableDef
from wal2lake.model import Lsn, Oid, Relation, Xid
from wal2lake.publish.decoding.decoded import DecodedChange, Run, Transaction, Values
from wal2lake.publish.decoding.groups import Group
from wal2lake.publish.sending import Sending


@dataclass(slots=True)
class Context:
    """Context of the callbacks of one decoding."""

    slot: str
    plugin: str
    """The plugin's name."""
    write: Callable[[bytes, Lsn, bool], None]
    """Writes a message, with its position and whether it is the last one of its callback."""
    write_frames: Callable[[memoryview], None]
    """Writes messages that are CopyData already (``wire.encoder.frames``)."""
    sending: Callable[[Sequence[str], Lsn], Mapping[Oid, Sending]]
    """Returns the tables that publications of these names sent at a position of the log, by OID."""
    table: Callable[[Oid], TableDef | None]
    """Returns the table's present definition; None if it was dropped."""
    origin_number: Callable[[str], int]
    """Returns the number of an origin in pg_replication_origin; 0 if the name does not exist any
    more."""
    two_phase: bool = False
    """``startup`` sets this if the client requests prepared transactions. The slot then has
    two_phase."""


class OutputPlugin(Protocol):
    """An output plugin. The module describes the callbacks. ``Base`` has defaults for the optional
    ones."""

    is_text: bool
    """Whether messages are text in the client's encoding."""
    streams: bool
    """Whether large transactions are passed in blocks."""
    two_phase: bool
    """Whether the plugin has the callbacks of prepared transactions."""

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Start the plugin. Raises UsageError for unknown options."""
        ...

    def begin(self, context: Context, transaction: Transaction) -> None:
        """Begin a transaction."""
        ...

    def change(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        change: DecodedChange,
    ) -> None:
        """Write the change of a row."""
        ...

    def run(self, context: Context, transaction: Transaction, run: Run) -> bool:
        """Write many consecutive rows at once, column by column. If it returns False, ``change`` is
        called for each row. The rows contain no TRUNCATE."""
        ...

    def group(self, context: Context, group: Group) -> bool:
        """Write many small transactions at once, from begin to commit, column by column. If it
        returns False, it has written nothing, and each transaction is passed by itself."""
        ...

    def truncate(
        self,
        context: Context,
        transaction: Transaction,
        relations: tuple[Relation, ...],
        options: int,
        lsn: Lsn,
    ) -> None:
        """Write a TRUNCATE of tables. ``options``: 1 CASCADE, 2 RESTART IDENTITY."""
        ...

    def commit(self, context: Context, transaction: Transaction) -> None:
        """End a transaction."""
        ...

    def stream_start(
        self, context: Context, transaction: Transaction, first: bool
    ) -> None:
        """Begin a block of a large transaction. ``first``: whether it is the first block."""
        ...

    def stream_stop(self, context: Context, transaction: Transaction) -> None:
        """End the block."""
        ...

    def stream_commit(self, context: Context, transaction: Transaction) -> None:
        """Commit a transaction that was passed in blocks."""
        ...

    def filter_prepare(self, context: Context, xid: Xid, gid: str) -> bool:
        """Return True to get the transaction when it commits, like any transaction. Must always
        return the same value for a transaction."""
        ...

    def begin_prepare(self, context: Context, transaction: Transaction) -> None:
        """Begin a prepared transaction. ``transaction.prepared`` describes its PREPARE."""
        ...

    def prepare(self, context: Context, transaction: Transaction) -> None:
        """Prepare the transaction."""
        ...

    def stream_prepare(self, context: Context, transaction: Transaction) -> None:
        """Prepare a transaction that was passed in blocks."""
        ...

    def commit_prepared(self, context: Context, transaction: Transaction) -> None:
        """Commit a prepared transaction."""
        ...

    def rollback_prepared(self, context: Context, transaction: Transaction) -> None:
        """Roll back a prepared transaction. It may have been prepared before the client
        connected."""
        ...

    def message(
        self,
        context: Context,
        transaction: Transaction | None,
        lsn: Lsn,
        prefix: str,
        content: bytes,
    ) -> None:
        """Write a message of pg_logical_emit_message. ``transaction`` is None for a
        non-transactional message."""
        ...

    def filter_by_origin(self, origin: str | None) -> bool:
        """Return True to leave out transactions with this origin."""
        ...

    def shutdown(self, context: Context) -> None:
        """End the decoding."""
        ...


class Base:
    """Defaults of the callbacks that a plugin may leave out."""

    is_text = True
    streams = False
    two_phase = False

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Accept no options."""

    def run(self, context: Context, transaction: Transaction, run: Run) -> bool:
        """Request single rows."""
        return False

    def group(self, context: Context, group: Group) -> bool:
        """Request single transactions."""
        return False

    def truncate(
        self,
        context: Context,
        transaction: Transaction,
        relations: tuple[Relation, ...],
        options: int,
        lsn: Lsn,
    ) -> None:
        """Leave out TRUNCATE."""

    def stream_start(
        self, context: Context, transaction: Transaction, first: bool
    ) -> None:
        """Not called unless ``streams``."""

    def stream_stop(self, context: Context, transaction: Transaction) -> None:
        """Likewise."""

    def stream_commit(self, context: Context, transaction: Transaction) -> None:
        """Likewise."""

    def filter_prepare(self, context: Context, xid: Xid, gid: str) -> bool:
        """Request all prepared transactions when they are prepared."""
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
        """Leave out messages."""

    def filter_by_origin(self, origin: str | None) -> bool:
        """Accept all origins."""
        return False

    def shutdown(self, context: Context) -> None:
        """Do nothing."""


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
