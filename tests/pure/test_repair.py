"""A worker that holds a state writes the rows that it is handed, and waits for none longer than it
may; REPAIR is parsed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest.mock import MagicMock

import pytest

from wal2lake.apply.step.repairs.sourcerows import RepairedRow, RowRepair
from wal2lake.apply.step.statemarks import StateMark, StateMarks
from wal2lake.catalog import SnapshotVector, Subscription
from wal2lake.commands.maintenance.states import state_at_snapshot
from wal2lake.errors import SqlSyntaxError, UsageError
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.pg import Session
from wal2lake.pg.publisher import SlotCreated
from wal2lake.sql.grammar.maintenance import RepairTables
from wal2lake.sql.grammar.parser import parse
from wal2lake.sql.grammar.statements import QualifiedName

RELATION = Relation(
    Oid(7),
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", Oid(23), -1, True),),
)
REPAIR = RowRepair(Oid(2), Lsn(40), RELATION, (RepairedRow("I", ("1",)),))
VECTOR = SnapshotVector(Oid(1), Lsn(40), "2026-01-01", {})


def never() -> bool:
    return False


def test_only_a_mark_that_holds_is_held() -> None:
    marks = StateMarks()
    looks, repairs, later = (
        StateMark(Lsn(40)),
        StateMark(Lsn(40), holds=True),
        StateMark(Lsn(50), holds=True),
    )
    for mark in (looks, repairs, later):
        marks.add(mark)
    assert marks.settle(Lsn(45), lambda: VECTOR) == [repairs]
    assert repairs.vector == looks.vector == VECTOR
    # A state that was passed is not held.
    assert marks.settle(Lsn(60), lambda: SnapshotVector(Oid(1), Lsn(55), "", {})) == []
    assert later.vector is None


def test_the_worker_gets_the_rows_and_the_session_the_outcome() -> None:
    mark = StateMark(Lsn(40), holds=True)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(mark.taken, 60.0, never)
        assert mark.hand(REPAIR)
        assert waiting.result() is REPAIR
    assert not mark.wait_finished(0.0, lambda: None)
    mark.finish(UsageError("no"))
    assert mark.wait_finished(0.0, lambda: None)
    assert str(mark.error) == "no"


def test_a_worker_that_goes_on_takes_no_rows() -> None:
    late = StateMark(Lsn(40), holds=True)
    assert late.taken(0.0, never) is None
    assert not late.hand(REPAIR)
    stopped = StateMark(Lsn(40), holds=True)
    assert stopped.taken(60.0, lambda: True) is None
    assert not stopped.hand(REPAIR)


def test_a_session_that_ends_releases_the_worker() -> None:
    marks, mark = StateMarks(), StateMark(Lsn(40), holds=True)
    marks.add(mark)
    began = threading.Event()

    def taken() -> RowRepair | None:
        began.set()
        return mark.taken(60.0, never)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(taken)
        began.wait()
        marks.remove(mark)
        assert waiting.result(timeout=30) is None


class Worker:
    """An apply worker at the state of each mark; ``goes_on``: it waits for no rows."""

    def __init__(
        self, *, goes_on: bool = False, error: Exception | None = None
    ) -> None:
        self.goes_on = goes_on
        self.error = error
        self.written: list[RowRepair] = []

    def mark(self, subid: Oid, lsn: Lsn, *, holds: bool = False) -> StateMark:
        mark = StateMark(lsn, holds=holds)
        mark.settle(VECTOR)
        if self.goes_on:
            mark.hand(None)
        threading.Thread(target=self._hold, args=(mark,)).start()
        return mark

    def _hold(self, mark: StateMark) -> None:
        repair = mark.taken(60.0, never)
        if repair is not None:
            self.written.append(repair)
            mark.finish(self.error)

    def unmark(self, subid: Oid, mark: StateMark) -> None:
        mark.hand(None)


def write(worker: Worker) -> None:
    @contextmanager
    def take(attempt: int) -> Iterator[SlotCreated]:
        yield SlotCreated("v", Lsn(40), "snap")

    def opened(snapshot: str) -> Session:
        session = MagicMock(spec=Session)
        session.__enter__.return_value = session
        return session

    with ExitStack() as sessions:
        state_at_snapshot(
            worker,
            Subscription(Oid(1), "s", Oid(10), True, "", "s", ("p",)),
            take,
            opened,
            lambda: None,
            sessions,
            read=lambda session, lsn: REPAIR,
        )


def test_rows_that_come_too_late_are_not_written() -> None:
    worker = Worker(goes_on=True)
    with pytest.raises(UsageError, match="has gone on before") as caught:
        write(worker)
    assert caught.value.hint == "Repeat the statement."
    assert worker.written == []
    worker.goes_on = False
    write(worker)
    assert worker.written == [REPAIR]


def test_a_row_that_cannot_be_written_is_the_error_of_the_statement() -> None:
    worker = Worker(error=UsageError("the table cannot take it"))
    with pytest.raises(UsageError, match="the table cannot take it"):
        write(worker)


def test_repair_names_its_tables() -> None:
    assert parse("repair table t, s.u") == RepairTables(
        (QualifiedName(None, "t"), QualifiedName("s", "u"))
    )
    for text in ("repair", "repair t", "repair table", "repair table t subscription s"):
        with pytest.raises(SqlSyntaxError):
            parse(text)
