"""Writes transactions to the segments of the publisher's log.

In: transactions, one after the other, with rows as batches by relation. Out: segments; the end of
the log. A single thread uses a writer.

Rows carry the position of their commit, which is above all changes, but the number of changes is
known only after the last one was read. So the position leaves room for the maximum number of
changes, and a transaction of any size is processed as a stream: the segment writer keeps its rows
in memory and, beyond ``segment_bytes``, in files.

A prepared transaction has its rows twice, at its PREPARE and at its commit, so a decoder never
reads backwards. Segments record prepared transactions without an end, so a step that is repeated
after a crash is not added twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from wal2lake.catalog.xids import TransactionNumbers, xid_of
from wal2lake.changelog import (
    CaptureState,
    HandedOn,
    Manifest,
    SegmentWriter,
    Step,
    TwoPhase,
    open_writer,
)
from wal2lake.errors import InternalError
from wal2lake.lake.capture import Emitted
from wal2lake.model import Lsn, Relation
from wal2lake.publish.capture.positions import (
    CHANGE_BYTES,
    COMMIT_BYTES,
    FIRST,
    commit_of,
    commits_of,
    end_of,
    end_of_message,
    start_of,
)
from wal2lake.wire.columnar import (
    MESSAGES_SCHEMA,
    ChangeBlock,
    Decoded,
    no_messages,
    no_transactions,
)
from wal2lake.wire.columnar.timeline import TRANSACTIONS_SCHEMA

_TRUNCATE = ord("T")

Change = tuple[Relation, pa.RecordBatch | int]
"""Rows of one relation, or the options of a TRUNCATE of it (1 CASCADE, 2 RESTART IDENTITY)."""


class PublisherLogWriter:
    """Appends to the publisher's log."""

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        xids: TransactionNumbers,
        *,
        unread: bool = False,
    ) -> None:
        """Continue the log in ``directory``, which is created if missing. ``xids``: source of
        numbers for transactions without one. ``unread``: no slot needs the existing contents, so
        damage is ignored."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segments: SegmentWriter = open_writer(
            directory, segment_bytes=segment_bytes, unread=unread
        )
        self._end = max(self._segments.sealed_lsn, FIRST)
        captured = self._segments.captured
        self.versions = {} if captured is None else dict(captured.versions)
        """Captured version of each table."""
        self._xids = xids
        self._last_xid = 0 if captured is None else captured.last_xid
        """Highest transaction number in the log."""
        xids.begin_above(self._last_xid)
        self.prepared = {} if captured is None else dict(captured.prepared)
        """Prepared transactions without an end, by number."""
        handed_on = () if captured is None else captured.handed_on
        self.handed_on = {entry.key: entry for entry in handed_on}
        """Prepared transactions of subscriptions that are in the log, until their publisher ends
        them."""
        self._steps: dict[Lsn, tuple[Step, TwoPhase]] = {}
        self.origins: dict[str, Lsn] = {}
        """For each origin, the end of its last transaction added since the node started."""

    @property
    def end(self) -> Lsn:
        """Position where the next transaction begins."""
        return self._end

    @property
    def sealed(self) -> Lsn:
        """Position below which everything is in segments."""
        return max(self._segments.sealed_lsn, FIRST)

    def transaction(
        self,
        time_us: int,
        origin: tuple[str, Lsn] | None,
        changes: Iterator[Change | Emitted],
        at_most: int,
        captured: Mapping[int, int],
        *,
        prepared: int | None = None,
        xid: int | None = None,
    ) -> int:
        """Add a transaction. Return the number of its changes, messages included; with 0 changes,
        nothing is added. ``prepared``: number of a prepared transaction that commits with it.
        ``xid``: the transaction's ID, if it has one.

        ``time_us``: microseconds since 2000-01-01 UTC. ``at_most``: maximum number of changes.
        ``captured``: versions of the tables after the transaction, which the segment records. After
        an exception, nothing of the transaction was added.
        """
        commit = commit_of(self._end, at_most)
        count, messages = self._rows(changes, commit, at_most)
        # A full buffer may seal a segment before all transactions of the same look are added.
        self.versions.update(captured)
        before = None if prepared is None else self.prepared.pop(prepared, None)
        if before is not None:
            self._steps[commit] = Step.COMMIT, before
        if count or before is not None:
            self._commit(time_us, origin, commit, count, messages, xid)
        self._note()
        return count

    def replay(
        self,
        transactions: pa.Table,
        origin: str,
        changes: Iterator[tuple[Relation, pa.RecordBatch]],
        captured: Mapping[int, int],
        ends: Mapping[int, HandedOn] | None = None,
    ) -> int:
        """Add transactions of another log, each with its own commit. Return how many have changes;
        the others are left out. ``changes`` have the other log's commit_lsn and ordinal, in this
        order for each relation. ``ends``: by commit_lsn, the transactions that commit a handed-on
        PREPARE; they have changes. Otherwise as in ``transaction``.

        ``transactions``: commit_lsn, end_lsn, commit_time, changes (maximum), in order."""
        their_commits = transactions.column("commit_lsn").to_numpy()
        most = transactions.column("changes").to_numpy()
        commits = commits_of(self._end, most)
        present = np.zeros(len(their_commits), np.bool_)
        try:
            for relation, batch in changes:
                lsn = batch.column("commit_lsn").to_numpy()
                number = np.searchsorted(their_commits, lsn)
                ordinal = batch.column("ordinal").to_numpy()
                if (
                    number[-1] >= len(their_commits)
                    or (their_commits[number] != lsn).any()
                    or (ordinal >= most[number]).any()
                ):
                    raise InternalError("a change is of no transaction of its log")
                present[number] = True
                place = batch.schema.get_field_index("commit_lsn")
                placed = batch.set_column(
                    place, "commit_lsn", pa.array(commits[number])
                )
                self._take(ChangeBlock(relation, {}, placed))
            with_changes = transactions.filter(pa.array(present))
        except BaseException:
            self._segments.discard_open()
            raise
        self.versions.update(captured)
        if with_changes.num_rows:
            steps = {}
            for lsn, handed_on in (ends or {}).items():
                del self.handed_on[handed_on.key]
                place = int(np.searchsorted(their_commits, lsn))
                if handed_on.two_phase is not None and present[place]:
                    steps[Lsn(commits[place])] = Step.COMMIT, handed_on.two_phase
            self._steps |= steps
            ended = self._ended(with_changes, commits[present], origin)
            self._end = Lsn(ended.column("end_lsn")[-1].as_py())
            self.origins[origin] = self._end
            self._segments.add(Decoded([], no_messages(), ended, self._end))
        self._note()
        return int(with_changes.num_rows)

    def hand_on(
        self,
        handed_on: HandedOn,
        gid: str,
        transaction: pa.Table,
        origin: str,
        changes: Iterator[tuple[Relation, pa.RecordBatch]],
    ) -> bool:
        """Add a PREPARE of another log if it has changes. ``transaction`` has a single row.
        ``gid``: the transaction's name here. Otherwise as in ``replay``."""
        (most,) = transaction.column("changes").to_pylist()
        (time_us,) = transaction.column("commit_time").to_pylist()
        commit = commit_of(self._end, most)
        two_phase = TwoPhase(gid, self._next_xid(), commit, end_of(commit), time_us)
        self._steps[commit] = Step.PREPARE, two_phase
        self.handed_on[handed_on.key] = replace(handed_on, two_phase=two_phase)
        added = 0
        try:
            added = self.replay(transaction, origin, changes, {})
        finally:
            if not added:
                del self._steps[commit], self.handed_on[handed_on.key]
                self._note()
        return added > 0

    def withdraw(self, handed_on: HandedOn, time_us: int) -> None:
        """Roll back a handed-on transaction here. If it commits later, its rows are sent with the
        commit."""
        if handed_on.two_phase is not None:
            commit = commit_of(self._end, 0)
            self._steps[commit] = Step.ROLLBACK, handed_on.two_phase
            self.handed_on[handed_on.key] = replace(handed_on, two_phase=None)
            origin = f"pg_{handed_on.subid}", handed_on.prepare_lsn
            self._commit(time_us, origin, commit, 0, {})
            self._note()

    def forget(self, handed_on: HandedOn) -> None:
        """Forget a withdrawn transaction that has ended at its publisher."""
        del self.handed_on[handed_on.key]
        self._note()

    def _ended(
        self, transactions: pa.Table, commits: Any, origin: str
    ) -> pa.RecordBatch:
        """Build the rows of another log's transactions, with their commits here."""
        count = transactions.num_rows
        fresh = np.isin(commits, [int(lsn) for lsn in self._steps], invert=True)
        numbers = int(fresh.sum())
        first = self._next_xid(numbers) if numbers else 0
        xids = first - 1 + np.cumsum(fresh)
        for lsn, (_, two_phase) in self._steps.items():
            xids[commits == int(lsn)] = two_phase.xid
        return pa.RecordBatch.from_pydict(
            {
                "xid": xids,
                "commit_lsn": commits,
                "end_lsn": commits + COMMIT_BYTES,
                "commit_time": transactions.column("commit_time").combine_chunks(),
                "origin": pa.array([origin] * count, pa.string()),
                "origin_lsn": transactions.column("end_lsn").combine_chunks(),
                "changes": transactions.column("changes").combine_chunks(),
            },
            schema=TRANSACTIONS_SCHEMA,
        )

    def prepare(
        self,
        number: int,
        gid: str,
        time_us: int,
        changes: Iterator[Change | Emitted],
        at_most: int,
        xid: int,
    ) -> TwoPhase:
        """Add a prepared transaction, unless the log has it; also one without changes. Otherwise as
        in ``transaction``."""
        if number in self.prepared:
            return self.prepared[number]
        commit = commit_of(self._end, at_most)
        count, messages = self._rows(changes, commit, at_most)
        two_phase = TwoPhase(gid, xid, commit, end_of(commit), time_us)
        self.prepared[number] = two_phase
        self._steps[commit] = Step.PREPARE, two_phase
        self._commit(time_us, None, commit, count, messages)
        self._note()
        return two_phase

    def roll_back(self, number: int, time_us: int) -> None:
        """Add the rollback of a prepared transaction, if there is one."""
        before = self.prepared.pop(number, None)
        if before is not None:
            commit = commit_of(self._end, 0)
            self._steps[commit] = Step.ROLLBACK, before
            self._commit(time_us, None, commit, 0, {})
            self._note()

    def empty(self, time_us: int, xid: int | None = None) -> None:
        """Add an empty transaction."""
        self._commit(time_us, None, commit_of(self._end, 0), 0, {}, xid)
        self._note()

    def _next_xid(self, count: int = 1) -> int:
        """Take ``count`` new numbers and return the first."""
        first = xid_of(self._xids.take(count))
        self._last_xid = first + count - 1
        return first

    def _rows(
        self,
        changes: Iterator[Change | Emitted],
        commit: Lsn,
        at_most: int,
    ) -> tuple[int, dict[int, Emitted]]:
        """Add rows. Return the number of changes, and the messages by their place among the
        changes."""
        count = 0
        messages = {}
        try:
            for change in changes:
                if isinstance(change, Emitted):
                    messages[count] = change
                    count += 1
                    continue
                relation, batch = change
                if isinstance(batch, int):
                    batch = _truncation(len(relation.columns), batch)
                if batch.num_rows:
                    self._add(relation, batch, commit, count)
                    count += batch.num_rows
            if count > at_most:
                raise InternalError(
                    f"a transaction of {at_most} changes at most has {count}"
                )
        except BaseException:
            self._segments.discard_open()
            raise
        return count, messages

    def _note(self) -> None:
        sealed = self.sealed
        self._steps = {lsn: step for lsn, step in self._steps.items() if lsn >= sealed}
        self._segments.captured = CaptureState(
            dict(self.versions),
            self._last_xid,
            dict(self.prepared),
            dict(self._steps),
            tuple(self.handed_on.values()),
        )

    def _add(
        self, relation: Relation, batch: pa.RecordBatch, commit: Lsn, first: int
    ) -> None:
        rows = batch.num_rows
        placed = batch.add_column(
            0, "ordinal", pa.array(np.arange(first, first + rows))
        ).add_column(0, "commit_lsn", pa.array(np.full(rows, int(commit), np.int64)))
        self._take(ChangeBlock(relation, {}, placed))

    def _take(self, block: ChangeBlock) -> None:
        self._segments.add(Decoded([block], no_messages(), no_transactions(), None))
        self._segments.relieve()

    def message(self, message: Emitted) -> Lsn:
        """Add a non-transactional message. Return its position."""
        lsn = Lsn(self._end + CHANGE_BYTES)
        added = _messages({lsn: message}, None)
        self._segments.add(Decoded([], added, no_transactions(), lsn))
        self._end = end_of_message(lsn)
        self._segments.reach(self._end)
        return lsn

    def _commit(
        self,
        time_us: int,
        origin: tuple[str, Lsn] | None,
        commit: Lsn,
        count: int,
        messages: Mapping[int, Emitted],
        xid: int | None = None,
    ) -> None:
        step = self._steps.get(commit)
        if step is not None:
            xid = step[1].xid
        elif xid is None:
            xid = self._next_xid()
        self._last_xid = max(self._last_xid, xid)
        ended = pa.RecordBatch.from_pylist(
            [
                {
                    "xid": xid,
                    "commit_lsn": int(commit),
                    "end_lsn": int(end_of(commit)),
                    "commit_time": time_us,
                    "origin": None if origin is None else origin[0],
                    "origin_lsn": None if origin is None else int(origin[1]),
                    "changes": count,
                }
            ],
            schema=TRANSACTIONS_SCHEMA,
        )
        first = start_of(commit, count)
        placed = {
            Lsn(first + CHANGE_BYTES * k): message for k, message in messages.items()
        }
        added = _messages(placed, commit) if messages else no_messages()
        self._segments.add(Decoded([], added, ended, end_of(commit)))
        self._end = end_of(commit)
        if origin is not None:
            self.origins[origin[0]] = self._end

    def seal(self, *, note: bool) -> Manifest | None:
        """Make everything added visible and durable, with the present ``versions``. ``note``: also
        if nothing was added, because no segment has the versions of some tables."""
        self._note()
        if note and self._end <= self.sealed:
            self._end = Lsn(self.sealed + CHANGE_BYTES)
            self._segments.reach(self._end)
        return self._segments.seal()


def _messages(messages: Mapping[Lsn, Emitted], commit: Lsn | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "lsn": int(lsn),
                "commit_lsn": None if commit is None else int(commit),
                "transactional": commit is not None,
                "prefix": message.prefix,
                "content": message.content,
            }
            for lsn, message in messages.items()
        ],
        schema=MESSAGES_SCHEMA,
    )


def _truncation(columns: int, options: int) -> pa.RecordBatch:
    none = pa.nulls(1, pa.binary())
    options_column = {"options": pa.array([options], pa.uint8())} if options else {}
    return pa.RecordBatch.from_pydict(
        {
            "op": pa.array([_TRUNCATE], pa.uint8()),
            "old": pa.array([0], pa.uint8()),
            **options_column,
            **{f"c{i}": none for i in range(columns)},
        }
    )
