"""Transactions into the segments of the publisher's log.

In: one transaction after the other, its rows by relation as batches. Out: segments; where the log
ends. One thread owns a LogWriter.

Rows carry the position of their commit, which is above all changes, and how many there are is
known when the last one has been read. So it is taken far enough ahead for as many as there can be,
and a transaction of any size goes by as a stream: its rows wait as the segment writer keeps them,
in memory and, beyond ``segment_bytes``, in files.

What is prepared has its rows twice, where it is prepared and where it commits, so a decoder never
goes back. Segments know what is prepared and has no end: a step that is asked for again, after a
crash, is not taken twice.
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
"""Rows of one relation, or a TRUNCATE of it, with these options (1 CASCADE, 2 RESTART IDENTITY)."""


class PublisherLogWriter:
    """The publisher's log, from its end on."""

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        xids: TransactionNumbers,
        *,
        unread: bool = False,
    ) -> None:
        """Continue the log in ``directory``, which is made if there is none. ``xids``: numbers of
        transactions that bring none. ``unread``: no slot needs what is there, damaged or not."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segments: SegmentWriter = open_writer(
            directory, segment_bytes=segment_bytes, unread=unread
        )
        self._end = max(self._segments.sealed_lsn, FIRST)
        found = self._segments.captured
        self.versions = {} if found is None else dict(found.versions)
        """Each table's version up to which it is captured."""
        self._xids = xids
        self._last_xid = 0 if found is None else found.last_xid
        """The highest number in the log."""
        xids.begin_above(self._last_xid)
        self.prepared = {} if found is None else dict(found.prepared)
        """Transactions that have been prepared and have no end, by number."""
        handed_on = () if found is None else found.handed_on
        self.handed_on = {one.key: one for one in handed_on}
        """Transactions that subscriptions have prepared and that are in the log, until their
        publisher has ended them."""
        self._steps: dict[Lsn, tuple[Step, TwoPhase]] = {}
        self.origins: dict[str, Lsn] = {}
        """By origin the end of its last transaction that was added since the node started."""

    @property
    def end(self) -> Lsn:
        """Where the next transaction begins."""
        return self._end

    @property
    def sealed(self) -> Lsn:
        """Everything below is in segments."""
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
        """Add one; returns the number of its changes, 0: there was none and nothing is added.
        A message is one of them. ``prepared``: the number of a transaction that commits with it.
        ``xid``: the transaction's ID, if it has one.

        ``time_us``: since 2000-01-01 UTC. There are no more than ``at_most`` changes.
        ``captured``: the versions of its tables that it is; a segment that has it says so. After
        an exception nothing of it is there.
        """
        commit = commit_of(self._end, at_most)
        count, messages = self._rows(changes, commit, at_most)
        # Memory may ask for a segment before all is added that was found together.
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
        """Add transactions of another log, each with its own commit; returns how many have changes:
        the others are left out. ``changes`` have the commit_lsn and ordinal that they have there,
        in this order for each relation. ``ends``: which of them, by commit_lsn, commit what was
        handed on when it was prepared; these have changes. Otherwise as ``transaction``.

        ``transactions``: commit_lsn, end_lsn, commit_time, changes (at most), in their order."""
        theirs = transactions.column("commit_lsn").to_numpy()
        most = transactions.column("changes").to_numpy()
        commits = commits_of(self._end, most)
        present = np.zeros(len(theirs), np.bool_)
        try:
            for relation, batch in changes:
                lsn = batch.column("commit_lsn").to_numpy()
                number = np.searchsorted(theirs, lsn)
                ordinal = batch.column("ordinal").to_numpy()
                if (
                    number[-1] >= len(theirs)
                    or (theirs[number] != lsn).any()
                    or (ordinal >= most[number]).any()
                ):
                    raise InternalError("a change is of no transaction of its log")
                present[number] = True
                at = batch.schema.get_field_index("commit_lsn")
                placed = batch.set_column(at, "commit_lsn", pa.array(commits[number]))
                self._take(ChangeBlock(relation, {}, placed))
            told = transactions.filter(pa.array(present))
        except BaseException:
            self._segments.discard_open()
            raise
        self.versions.update(captured)
        if told.num_rows:
            steps = {}
            for lsn, one in (ends or {}).items():
                del self.handed_on[one.key]
                at = int(np.searchsorted(theirs, lsn))
                if one.two_phase is not None and present[at]:
                    steps[Lsn(commits[at])] = Step.COMMIT, one.two_phase
            self._steps |= steps
            ended = self._ended(told, commits[present], origin)
            self._end = Lsn(ended.column("end_lsn")[-1].as_py())
            self.origins[origin] = self._end
            self._segments.add(Decoded([], no_messages(), ended, self._end))
        self._note()
        return int(told.num_rows)

    def hand_on(
        self,
        one: HandedOn,
        gid: str,
        transaction: pa.Table,
        origin: str,
        changes: Iterator[tuple[Relation, pa.RecordBatch]],
    ) -> bool:
        """Add a PREPARE of another log, the one ``transaction``, if it has changes; for the rest
        see ``replay``. ``gid``: as it is known here."""
        (most,) = transaction.column("changes").to_pylist()
        (time_us,) = transaction.column("commit_time").to_pylist()
        commit = commit_of(self._end, most)
        found = TwoPhase(gid, self._next_xid(), commit, end_of(commit), time_us)
        self._steps[commit] = Step.PREPARE, found
        self.handed_on[one.key] = replace(one, two_phase=found)
        told = 0
        try:
            told = self.replay(transaction, origin, changes, {})
        finally:
            if not told:
                del self._steps[commit], self.handed_on[one.key]
                self._note()
        return told > 0

    def withdraw(self, one: HandedOn, time_us: int) -> None:
        """Roll back here what was handed on: its rows, if they come, come as a commit."""
        if one.two_phase is not None:
            commit = commit_of(self._end, 0)
            self._steps[commit] = Step.ROLLBACK, one.two_phase
            self.handed_on[one.key] = replace(one, two_phase=None)
            origin = f"pg_{one.subid}", one.prepare_lsn
            self._commit(time_us, origin, commit, 0, {})
            self._note()

    def forget(self, one: HandedOn) -> None:
        """Forget a withdrawn transaction: it has ended at its publisher."""
        del self.handed_on[one.key]
        self._note()

    def _ended(self, told: pa.Table, commits: Any, origin: str) -> pa.RecordBatch:
        """Transactions of another log, with their commits here."""
        count = told.num_rows
        fresh = np.isin(commits, [int(lsn) for lsn in self._steps], invert=True)
        numbers = int(fresh.sum())
        first = self._next_xid(numbers) if numbers else 0
        xids = first - 1 + np.cumsum(fresh)
        for lsn, (_, one) in self._steps.items():
            xids[commits == int(lsn)] = one.xid
        return pa.RecordBatch.from_pydict(
            {
                "xid": xids,
                "commit_lsn": commits,
                "end_lsn": commits + COMMIT_BYTES,
                "commit_time": told.column("commit_time").combine_chunks(),
                "origin": pa.array([origin] * count, pa.string()),
                "origin_lsn": told.column("end_lsn").combine_chunks(),
                "changes": told.column("changes").combine_chunks(),
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
        """Add one that is prepared, if it is not there; also one without changes. For the rest
        see ``transaction``."""
        if number in self.prepared:
            return self.prepared[number]
        commit = commit_of(self._end, at_most)
        count, messages = self._rows(changes, commit, at_most)
        found = TwoPhase(gid, xid, commit, end_of(commit), time_us)
        self.prepared[number] = found
        self._steps[commit] = Step.PREPARE, found
        self._commit(time_us, None, commit, count, messages)
        self._note()
        return found

    def roll_back(self, number: int, time_us: int) -> None:
        """Add the end of one that was prepared, if there is one."""
        before = self.prepared.pop(number, None)
        if before is not None:
            commit = commit_of(self._end, 0)
            self._steps[commit] = Step.ROLLBACK, before
            self._commit(time_us, None, commit, 0, {})
            self._note()

    def empty(self, time_us: int, xid: int | None = None) -> None:
        """Add one in which nothing is."""
        self._commit(time_us, None, commit_of(self._end, 0), 0, {}, xid)
        self._note()

    def _next_xid(self, count: int = 1) -> int:
        """The first of ``count`` new numbers."""
        first = xid_of(self._xids.take(count))
        self._last_xid = first + count - 1
        return first

    def _rows(
        self,
        changes: Iterator[Change | Emitted],
        commit: Lsn,
        at_most: int,
    ) -> tuple[int, dict[int, Emitted]]:
        """Add rows; how many changes there are, and messages, by their number among them."""
        count = 0
        messages = {}
        try:
            for one in changes:
                if isinstance(one, Emitted):
                    messages[count] = one
                    count += 1
                    continue
                relation, batch = one
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
        """Add one that belongs to no transaction; its position."""
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
        placed = {Lsn(first + CHANGE_BYTES * k): one for k, one in messages.items()}
        added = _messages(placed, commit) if messages else no_messages()
        self._segments.add(Decoded([], added, ended, end_of(commit)))
        self._end = end_of(commit)
        if origin is not None:
            self.origins[origin[0]] = self._end

    def seal(self, *, note: bool) -> Manifest | None:
        """Make all that was added visible and durable, with ``versions`` as they are now.
        ``note``: also if nothing was added, for there are tables that no segment knows."""
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
                "prefix": one.prefix,
                "content": one.content,
            }
            for lsn, one in messages.items()
        ],
        schema=MESSAGES_SCHEMA,
    )


def _truncation(columns: int, options: int) -> pa.RecordBatch:
    none = pa.nulls(1, pa.binary())
    some = {"options": pa.array([options], pa.uint8())} if options else {}
    return pa.RecordBatch.from_pydict(
        {
            "op": pa.array([_TRUNCATE], pa.uint8()),
            "old": pa.array([0], pa.uint8()),
            **some,
            **{f"c{i}": none for i in range(columns)},
        }
    )
