"""Drives a plugin: calls its callbacks for transactions of the log.

In: the log, a slot's position, a plugin. Out: the plugin's messages, through ``Context.write``; the
position up to which everything has been decoded. Called by the walsender, and by the SQL functions.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from wal2lake.catalog import ReplicationSlot
from wal2lake.changelog import LogReader, Step
from wal2lake.errors import (
    CorruptLogError,
    InternalError,
    SqlSyntaxError,
    Wal2LakeError,
    words_of,
)
from wal2lake.model import Lsn
from wal2lake.publish.capture.positions import CHANGE_BYTES, end_of_message
from wal2lake.publish.decoding.decoded import (
    DecodedMessage,
    Run,
    Transaction,
    Truncation,
    changes_of,
)
from wal2lake.publish.decoding.groups import Group
from wal2lake.publish.decoding.transactions import (
    Piece,
    one_by_one,
    transactions_of,
    truncations,
)
from wal2lake.publish.plugins.loading import BUILT_IN, check_callbacks
from wal2lake.publish.plugins.port import Base, Context, OutputPlugin
from wal2lake.publish.slots import refuse_invalidated
from wal2lake.publish.statistics import Counts


class Decoding:
    """Decodes one slot from a position on."""

    def __init__(
        self,
        reader: LogReader,
        plugin: OutputPlugin,
        context: Context,
        start: Lsn,
        work_mem: int,
        *,
        together: bool = False,
    ) -> None:
        """``work_mem``: bytes above which a transaction is passed in blocks, if the plugin streams.
        ``together``: the plugin may write many transactions at once. Then ``advance`` may end after
        such a group only, and ``xid`` is not set for its transactions."""
        self._work_mem = work_mem
        self._together = together
        self._by_rows = getattr(type(plugin), "run", None) is Base.run
        """Whether the plugin takes only single rows."""
        self._reader = reader
        self._plugin = plugin
        self._context = context
        self.position = start
        """Position up to which everything has been decoded."""
        self.xid = 0
        """Number of the transaction that is being decoded; 0 if there is none."""
        self.counts = Counts()
        """Counts of the changes passed to the plugin."""
        self._two_phase_at: Lsn | None = None
        self._slot: Callable[[], ReplicationSlot | None] = lambda: None

    def begin(
        self,
        options: Iterable[tuple[str, str | None]],
        slot: Callable[[], ReplicationSlot | None],
        begin_two_phase: Callable[[Lsn], None],
    ) -> None:
        """Start the plugin. ``slot`` returns the slot's present state. ``begin_two_phase`` enables
        two_phase for the slot from a position on."""
        self._slot = slot
        plugin, context = self._plugin, self._context
        with self._callback("startup"):
            plugin.startup(context, _each_once(options))
            check_callbacks(context.plugin, plugin)
        if context.two_phase:
            begin_two_phase(self.position)
        present_slot = slot()
        if plugin.two_phase and present_slot is not None and present_slot.two_phase:
            self._two_phase_at = present_slot.two_phase_at or self.position

    def advance(self, go_on: Callable[[], bool] = lambda: True) -> int:
        """Decode the log. Return the number of transactions and non-transactional messages.

        ``go_on`` is called between two of them. Raises 55000 if the slot has been invalidated: the
        log may lack what comes next."""
        try:
            return self._advance(go_on)
        except CorruptLogError:
            self._check_slot()
            raise

    def _check_slot(self) -> None:
        slot = self._slot()
        if slot is not None:
            refuse_invalidated(slot)

    def _advance(self, go_on: Callable[[], bool]) -> int:
        count = 0
        segments = self._reader.above(self.position)
        # Checked after the listing: while the slot is valid, the log has everything that it
        # needs.
        self._check_slot()
        for item in transactions_of(self._reader, segments, self.position):
            if isinstance(item, Lsn):
                self.position = max(self.position, item)
                continue
            if isinstance(item, DecodedMessage):
                if not self._plugin.filter_by_origin(None):
                    self.xid = 0
                    self._message(None, item)
                self.position = end_of_message(item.lsn)
            elif isinstance(item, Group):
                decoded, goes_on = self._group(item, go_on)
                count += decoded
                if goes_on:
                    continue
                break
            else:
                transaction, runs = item
                if not self._plugin.filter_by_origin(transaction.origin):
                    self._decode(transaction, runs)
                self.position = transaction.end_lsn
            count += 1
            if not go_on():
                break
        return count

    def _group(self, group: Group, go_on: Callable[[], bool]) -> tuple[int, bool]:
        """Decode transactions of a group while ``go_on`` returns true. Return their number, and the
        last result of ``go_on``."""
        plugin, context = self._plugin, self._context
        count, size = group.transactions.num_rows, group.size
        none_is_large = not plugin.streams or size <= self._work_mem
        left_out = plugin.filter_by_origin(group.origin)
        if self._together and left_out:
            self.position = group.end
            return count, go_on()
        if self._together and none_is_large:
            with self._callback("change"):
                done = plugin.group(context, group)
            if done:
                self.counts.total_txns += count
                self.counts.total_bytes += size
                self.position = group.end
                return count, go_on()
        count = 0
        decode = (
            self._row_by_row if none_is_large and self._by_rows else self._run_by_run
        )
        for transaction in group.described() if left_out else decode(group):
            self.position = transaction.end_lsn
            count += 1
            if not go_on():
                return count, False
        return count, True

    def _run_by_run(self, group: Group) -> Iterator[Transaction]:
        """Yield each transaction after it has been passed to the plugin."""
        for transaction, runs in one_by_one(group):
            self._transaction(transaction, runs)
            yield transaction

    def _row_by_row(self, group: Group) -> Iterator[Transaction]:
        """Yield each transaction, likewise, without slicing the log for each."""
        plugin, context = self._plugin, self._context
        self.counts.total_bytes += group.size
        for transaction, changes in group.changes():
            self.xid = int(transaction.xid)
            self.counts.total_txns += 1
            with self._callback("begin"):
                plugin.begin(context, transaction)
            for relation, change in changes:
                with self._callback("change", change.lsn):
                    plugin.change(context, transaction, relation, change)
            with self._callback("commit"):
                plugin.commit(context, transaction)
            yield transaction

    def _decode(
        self, transaction: Transaction, runs: Iterator[Run | DecodedMessage]
    ) -> None:
        """Decode a transaction, or a step of a prepared transaction."""
        step, plugin, context = transaction.step, self._plugin, self._context
        if step is None:
            self._transaction(transaction, runs)
            return
        prepared = transaction.prepared
        since = self._two_phase_at
        filtered = since is None or plugin.filter_prepare(
            context, transaction.xid, prepared.gid
        )
        if filtered:
            if step is Step.COMMIT:
                self._transaction(transaction, runs)
            return
        assert since is not None
        # As in PostgreSQL, a transaction prepared before ``since`` is sent when it commits.
        prepared_since = prepared.prepare_lsn >= since
        if (step is Step.PREPARE and prepared_since) or (
            step is Step.COMMIT and not prepared_since
        ):
            self._transaction(transaction, runs, prepared=True)
        self.xid = int(transaction.xid)
        if step is Step.COMMIT:
            with self._callback("commit_prepared"):
                plugin.commit_prepared(context, transaction)
        elif step is Step.ROLLBACK:
            with self._callback("rollback_prepared"):
                plugin.rollback_prepared(context, transaction)

    def _transaction(
        self,
        transaction: Transaction,
        runs: Iterator[Run | DecodedMessage],
        *,
        prepared: bool = False,
    ) -> None:
        """Pass a transaction to the plugin. ``prepared``: as prepared, not as committed."""
        plugin, context = self._plugin, self._context
        self.xid = int(transaction.xid)
        self.counts.total_txns += 1
        changes = truncations(runs)
        if plugin.streams:
            pieces = _pieces(changes, self._work_mem)
            held: deque[Piece] = deque()
            size = 0
            for piece in pieces:
                held.append(piece)
                size += _size(piece)
                if size > self._work_mem:
                    rest = itertools.chain(_emptied(held), pieces)
                    self._streamed(transaction, rest, prepared=prepared)
                    return
            changes = _emptied(held)
        begin = plugin.begin_prepare if prepared else plugin.begin
        end = plugin.prepare if prepared else plugin.commit
        with self._callback(begin.__name__):
            begin(context, transaction)
        self._changes(transaction, changes)
        with self._callback(end.__name__):
            end(context, transaction)

    def _streamed(
        self, transaction: Transaction, pieces: Iterator[Piece], *, prepared: bool
    ) -> None:
        """Pass a transaction in blocks of at most ``work_mem`` bytes. The pieces of a block are not
        held in memory together."""
        plugin, context = self._plugin, self._context
        counts = self.counts
        counts.stream_txns += 1
        size, first, inside = 0, True, False
        for piece in pieces:
            if inside and size + _size(piece) > self._work_mem:
                with self._callback("stream_stop"):
                    plugin.stream_stop(context, transaction)
                inside = False
            if not inside:
                counts.stream_count += 1
                with self._callback("stream_start"):
                    plugin.stream_start(context, transaction, first)
                size, first, inside = 0, False, True
            size += _size(piece)
            counts.stream_bytes += _size(piece)
            self._changes(transaction, iter((piece,)), "stream_")
        with self._callback("stream_stop"):
            plugin.stream_stop(context, transaction)
        end = plugin.stream_prepare if prepared else plugin.stream_commit
        with self._callback(end.__name__):
            end(context, transaction)

    def _message(
        self, transaction: Transaction | None, message: DecodedMessage, prefix: str = ""
    ) -> None:
        with self._callback(f"{prefix}message"):
            self._plugin.message(
                self._context, transaction, message.lsn, message.prefix, message.content
            )

    def _changes(
        self, transaction: Transaction, changes: Iterator[Piece], prefix: str = ""
    ) -> None:
        """Pass changes to the plugin. ``prefix``: of the callbacks' names, for errors."""
        plugin, context = self._plugin, self._context
        for run in changes:
            self.counts.total_bytes += _size(run)
            if isinstance(run, DecodedMessage):
                self._message(transaction, run, prefix)
                continue
            if isinstance(run, Truncation):
                lsn = Lsn(transaction.first_lsn + CHANGE_BYTES * run.ordinal)
                with self._callback(f"{prefix}truncate", lsn):
                    plugin.truncate(
                        context, transaction, run.relations, run.options, lsn
                    )
                continue
            with self._callback(f"{prefix}change"):
                if plugin.run(context, transaction, run):
                    continue
            for change in changes_of(transaction, run):
                with self._callback(f"{prefix}change", change.lsn):
                    plugin.change(context, transaction, run.relation, change)

    @contextmanager
    def _callback(self, name: str, lsn: Lsn | None = None) -> Iterator[None]:
        """Surround a callback; errors get its context. ``lsn``: of a single change."""
        try:
            yield
        except Wal2LakeError as error:
            if error.context is None:
                error.context = callback_context(self._context, name, lsn)
            raise
        except (OSError, MemoryError):
            raise
        except Exception as error:
            if self._context.plugin in BUILT_IN:
                raise
            # The plugin is a user's, so the error has the plugin's own message.
            raise InternalError(
                words_of(error), context=callback_context(self._context, name, lsn)
            ) from error


def _pieces(changes: Iterator[Piece], most: int) -> Iterator[Piece]:
    """Split runs so that each has at most about ``most`` bytes, unless a single row has more."""
    for run in changes:
        if not isinstance(run, Run):
            yield run
            continue
        rows = run.rows
        step = max(1, rows.num_rows * most // max(1, rows.nbytes))
        for first in range(0, rows.num_rows, step):
            yield Run(run.relation, rows.slice(first, step))


def _size(piece: Piece) -> int:
    if isinstance(piece, DecodedMessage):
        return len(piece.content)
    return 0 if isinstance(piece, Truncation) else int(piece.rows.nbytes)


def _emptied(held: deque[Piece]) -> Iterator[Piece]:
    """Yield the held pieces, each released as it is read."""
    while held:
        yield held.popleft()


def _each_once(options: Iterable[tuple[str, str | None]]) -> Mapping[str, str | None]:
    options_by_name: dict[str, str | None] = {}
    for name, value in options:
        if name in options_by_name:
            raise SqlSyntaxError("conflicting or redundant options")
        options_by_name[name] = value
    return options_by_name


def callback_context(context: Context, name: str, lsn: Lsn | None) -> str:
    """Build PostgreSQL's context of an error in a callback."""
    return (
        f'slot "{context.slot}", output plugin "{context.plugin}",'
        f" in the {name} callback"
        f"{'' if lsn is None else f', associated LSN {lsn}'}"
    )
