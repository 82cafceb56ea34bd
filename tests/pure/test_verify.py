"""Each sabotage of a copy is found by the digests of blocks and named by its row and columns; the
worker gives a session the state of exactly the LSN that it asks for."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from decimal import Decimal
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wal2lake.apply.step.statemarks import StateMark, StateMarks
from wal2lake.catalog import SnapshotVector, Subscription
from wal2lake.cli.verify.display import displayed
from wal2lake.cli.verify.report import VerifiedTable, exit_code, lines
from wal2lake.commands.maintenance.states import state_at_snapshot
from wal2lake.commands.maintenance.verifying import described
from wal2lake.errors import ApplyError, SqlSyntaxError, UsageError, Wal2LakeError
from wal2lake.model import Lsn, Oid
from wal2lake.pg import Session
from wal2lake.pg.publisher import SlotCreated
from wal2lake.pgtypes import arrow_to_text
from wal2lake.sql.grammar.maintenance import VerifyTables
from wal2lake.sql.grammar.parser import parse
from wal2lake.sql.grammar.statements import QualifiedName
from wal2lake.verify import (
    Comparison,
    DifferenceKind,
    LakeSide,
    NotComparable,
    RowDifference,
    TableStatements,
    compare,
    form_of,
)
from wal2lake.verify.digests import BlockDigests
from wal2lake.verify.division import (
    Division,
    divided_by_hash,
    divided_by_order,
    is_ordered,
)
from wal2lake.verify.images import row_images
from wal2lake.verify.lookup3 import hash_bytes
from wal2lake.verify.rowhashes import Hashes, RowHashes, hash_rows
from wal2lake.verify.sides import RowValues

NAMES = ("id", "i", "f", "n", "t")
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("n", pa.string()),
        ("t", pa.string()),
    ]
)
FORMS = tuple(
    form_of(kind, oid)
    for kind, oid in zip(SCHEMA.types, (23, 20, 701, 1700, 25), strict=True)
)
Row = tuple[object, ...]
ROWS: list[Row] = [
    (n, n * 7, n / 8, f"{n}.0", "e\u0301" if n % 2 else "") for n in range(1, 101)
]


class RowsSide:
    """A side whose rows are in memory, in several batches."""

    def __init__(
        self, rows: Sequence[Row], key: Sequence[int], division: Division
    ) -> None:
        self._columns = [
            pa.array([row[i] for row in rows], kind)
            for i, kind in enumerate(SCHEMA.types)
        ]
        self._rows = hash_rows(self._columns, FORMS, key)
        self._division = division
        self._blocks = division.of(self._columns, self._rows)

    def divide(self) -> Division:
        return self._division

    def digests(self, division: Division) -> BlockDigests:
        digests = BlockDigests.empty(division.blocks)
        half = len(self._rows) // 2
        for part in (slice(0, half), slice(half, None)):
            rows = np.arange(len(self._rows))[part]
            digests.add(self._blocks[rows], self._rows.chosen(rows))
        return digests

    def hashes(self, division: Division, blocks: NDArray[np.int64]) -> RowHashes:
        return self._rows.chosen(np.isin(self._blocks, blocks))

    def values(self, keys: Hashes) -> list[RowValues]:
        texts = [
            arrow_to_text(column, form.type_oid)
            for column, form in zip(self._columns, FORMS, strict=True)
        ]
        return [
            RowValues(
                int(self._rows.key[n]),
                int(self._rows.first[n]),
                tuple(None if v is None else v.decode() for v in row),
            )
            for n, row in enumerate(zip(*texts, strict=True))
            if self._rows.key[n] in keys
        ]


def differences(copy: Sequence[Row], key: Sequence[int] = (0,)) -> list[str]:
    """What is said about a copy of ``ROWS``, in blocks by order and by hash."""
    found: list[list[str]] = []
    for division in (
        Division(4, (25, 50, 75)) if key else divided_by_hash(40_000),
        divided_by_hash(60_000),
    ):
        source = RowsSide(ROWS, key, division)
        result = compare(source, RowsSide(copy, key, division), NAMES, key)
        assert result.rows == len(ROWS)
        assert result.copy_rows == len(copy)
        assert result.is_equal == (not result.named)
        found.append(sorted(map(str, result.named)))
    assert found[0] == found[1]
    return found[0]


def changed(row: int, **values: object) -> list[Row]:
    """The rows, of which one has other values."""
    new = tuple(values.get(n, v) for n, v in zip(NAMES, ROWS[row], strict=True))
    return [*ROWS[:row], new, *ROWS[row + 1 :]]


def test_equal_rows_in_any_order_are_equal() -> None:
    assert differences(ROWS[::-1]) == []


def test_a_lost_row_is_missing() -> None:
    assert differences(ROWS[:-1]) == ["missing (id=100)"]


def test_a_row_that_is_there_twice_is_extra() -> None:
    assert differences([*ROWS, ROWS[9]]) == ["extra (id=10)"]


def test_a_row_that_is_there_three_times_is_extra() -> None:
    """To XOR two more of a row are none."""
    assert differences([*ROWS, ROWS[9], ROWS[9]]) == ["extra (id=10)"]


def test_values_of_two_rows_exchanged_in_one_column_are_found() -> None:
    """To a sum of linear hashes they are equal."""
    copy = changed(3, i=ROWS[4][1])
    copy[4] = (*ROWS[4][:1], ROWS[3][1], *ROWS[4][2:])
    assert differences(copy) == ["changed (id=4): i", "changed (id=5): i"]


def test_the_same_difference_twice_in_a_block_is_found() -> None:
    copy = [(id_, i, f, n, t or "x") for id_, i, f, n, t in ROWS]
    assert len(differences(copy[:4] + ROWS[4:])) == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("i", -7),
        ("i", 7 + (1 << 32)),
        ("i", None),
        ("f", -0.125),
        ("n", "1.00"),
        ("n", "-1.0"),
        ("t", "\u00e9"),
        ("t", "e\u0301 "),
        ("t", None),
        ("t", ""),
    ],
)
def test_another_value_is_found(column: str, value: object) -> None:
    """Among them what PostgreSQL's own hash functions do not tell apart: another sign of a
    numeric, and a bigint that is greater by 2^32."""
    assert differences(changed(0, **{column: value})) == [f"changed (id=1): {column}"]


def test_a_difference_is_one_line_whatever_the_key_is() -> None:
    key = (("a\nb", "x\n\x1b[2J\u00e9\\" + "y" * 40), ("c", None))
    difference = RowDifference(DifferenceKind.CHANGED, key, ("d\r",))
    assert str(difference) == (
        "changed (a\\nb=x\\n\\x1b[2J\u00e9\\\\yyyyyyyyyyyyyyyyyyyyyyyyyyyyy..., c=null): d\\r"
    )


def test_null_is_not_an_empty_text() -> None:
    assert differences(changed(1, t=None)) == ["changed (id=2): t"]


def test_minus_zero_is_not_zero() -> None:
    forms = (form_of(pa.float64(), 701),)
    zero, minus, nan, other_nan = (
        hash_rows([pa.array([value], pa.float64())], forms, ()).first[0]
        for value in (0.0, -0.0, float("nan"), -float("nan"))
    )
    assert zero != minus
    assert nan == other_nan


def test_rows_without_a_key_are_missing_or_extra() -> None:
    shown = "id=1, i={}, f=0.125, n=1.0, t=e\u0301"
    assert differences(changed(0, i=8), key=()) == [
        f"extra ({shown.format(8)})",
        f"missing ({shown.format(7)})",
    ]


def test_a_value_moved_to_another_column_is_found() -> None:
    forms = (form_of(pa.string(), 25), form_of(pa.string(), 25))
    hashes = {
        int(hash_rows([pa.array([a]), pa.array([b])], forms, ()).first[0])
        for a, b in (("ab", ""), ("a", "b"), ("", "ab"), ("b", "a"))
    }
    assert len(hashes) == 4


def test_the_image_is_what_record_send_writes() -> None:
    columns = [
        pa.array([1, None], pa.int32()),
        pa.array(["x", None]),
        pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
    ]
    forms = (
        form_of(pa.int32(), 23),
        form_of(pa.string(), 25),
        form_of(pa.decimal128(10, 2), 1700),
    )
    head = struct.pack("!i", 3)
    assert row_images(columns, forms).to_pylist() == [
        head
        + struct.pack("!iiq", 20, 8, 1)
        + struct.pack("!ii", 25, 1)
        + b"x"
        + struct.pack("!ii", 25, 4)
        + b"1.50",
        head + struct.pack("!iiiiii", 20, -1, 25, -1, 25, -1),
    ]


@given(
    values=st.lists(st.binary(max_size=60), min_size=1, max_size=40),
    start=st.integers(0, 39),
)
def test_a_hash_does_not_depend_on_its_neighbours(
    values: list[bytes], start: int
) -> None:
    array = pa.array(values, pa.binary())
    alone = [int(hash_bytes(pa.array([v], pa.binary()), (7,))[0, 0]) for v in values]
    assert hash_bytes(array, (1, 7))[1].tolist() == alone
    assert hash_bytes(array.slice(start), (7,))[0].tolist() == alone[start:]


@given(keys=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60), step=st.just(8000))
def test_each_key_is_in_the_range_of_its_block(keys: list[int], step: int) -> None:
    column = pa.array(keys, pa.int64())
    division = divided_by_order(0, np.array(keys, np.int64), step)
    hashes = hash_rows([column], (form_of(column.type, 20),), (0,))
    blocks = division.of([column], hashes).tolist()
    assert division.bounds is not None
    for key, block in zip(keys, blocks, strict=True):
        assert 0 <= block < division.blocks
        assert block == sum(bound <= key for bound in division.bounds)


@pytest.mark.parametrize(
    ("stored", "oid"),
    [(pa.string(), 790), (pa.timestamp("us"), 1184), (pa.int64(), 25)],
)
def test_what_has_no_common_form_is_not_compared(stored: pa.DataType, oid: int) -> None:
    with pytest.raises(NotComparable):
        form_of(stored, oid)


# ---- blocks with too many rows -----------------------------------------------------------


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a comparison fetch the hashes of 60 rows."""
    module = importlib.import_module("wal2lake.verify.compare")
    monkeypatch.setattr(module, "MOST_ROWS", 60)


class ChecksFetches(RowsSide):
    """A side from which no more than 60 rows are fetched."""

    def hashes(self, division: Division, blocks: NDArray[np.int64]) -> RowHashes:
        hashes = super().hashes(division, blocks)
        assert len(hashes) <= 60
        return hashes


@pytest.mark.usefixtures("few_rows")
def test_a_copy_that_lost_its_rows_is_described_by_counts() -> None:
    division = Division(1, ())
    result = compare(
        ChecksFetches(ROWS, (0,), division),
        ChecksFetches(ROWS[:10], (0,), division),
        NAMES,
        (0,),
    )
    assert not result.is_equal
    assert result.differing_rows == 90
    assert result.named == ()
    assert described(result).split("\n") == [
        "at least 90 rows in 1 of 1 blocks, which have too many rows to compare one by one",
        "all rows: 100 rows at the source, 10 in the copy",
    ]


@pytest.mark.usefixtures("few_rows")
def test_a_row_that_is_there_very_often_is_described_by_counts() -> None:
    division = divided_by_hash(1)
    result = compare(
        ChecksFetches([ROWS[0]], (), division),
        ChecksFetches([ROWS[0]] * 1000, (), division),
        NAMES,
        (),
    )
    assert result.differing_rows == 999
    assert str(result.unread[0]) == (
        "block 1 of 1: 1 rows at the source, 1000 in the copy"
    )


@pytest.mark.usefixtures("few_rows")
def test_rows_of_small_blocks_are_named_beside_a_large_one() -> None:
    """The first block has too many rows, the second one is compared by row, and the third has no
    room left."""
    division = Division(4, (70, 80, 90))
    copy = [(id_, 0, f, n, t) for id_, _, f, n, t in ROWS[60:]]
    result = compare(
        ChecksFetches(ROWS, (0,), division),
        ChecksFetches(copy + [ROWS[95]] * 50, (0,), division),
        NAMES,
        (0,),
    )
    assert [block.place for block in result.unread] == ["id < 70", "id >= 90"]
    assert result.differing_rows == 60 + 20 + 50
    lines_ = described(result).split("\n")
    assert lines_[0] == "20 changed in 2 of 4 blocks"
    assert lines_[1].startswith("at least 110 rows in 2 of 4 blocks")
    assert lines_[2].startswith("changed (id=")
    assert lines_[-2] == "id < 70: 69 rows at the source, 9 in the copy"


def test_rows_that_may_not_be_quoted_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = [*changed(0, i=8)[:30], *ROWS[31:]]
    division = Division(4, (25, 50, 75))

    def result() -> Comparison:
        sides = [RowsSide(rows, (0,), division) for rows in (ROWS, copy)]
        for side in sides:
            monkeypatch.setattr(side, "values", None)
        return compare(sides[0], sides[1], NAMES, (0,), quoted=False)

    assert result().differing_rows == 2
    assert result().named == ()
    module = importlib.import_module("wal2lake.verify.compare")
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    assert [block.place for block in result().unread] == [
        "block 1 of 4",
        "block 2 of 4",
    ]


def test_a_key_of_several_columns_is_divided_by_hash() -> None:
    """Its first column may have one value in all rows."""
    assert is_ordered(FORMS, (0,))
    assert not is_ordered(FORMS, (0, 1))
    assert not is_ordered(FORMS, (4,))
    assert not is_ordered(FORMS, ())


class InMemory:
    """Reads rows in batches of 10."""

    rows = None

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def batches(self) -> AbstractContextManager[Iterable[pa.RecordBatch]]:
        return nullcontext(self._table.to_batches(max_chunksize=10))


def test_one_row_is_read_for_each_key_however_often_it_is_there() -> None:
    table = pa.table({"t": ["a", "b"] * 40 + ["c"]})
    form = form_of(pa.string(), 25)
    side = LakeSide(InMemory(table), None, (form,), (), lambda rows: None)
    keys = hash_rows([pa.array(["a", "c", "d"])], (form,), ()).key
    assert sorted(row.texts for row in side.values(keys)) == [("a",), ("c",)]
    statement = TableStatements("public.t", ("t",), (form,), ()).values([1, 2, 3])
    assert statement.startswith("SELECT DISTINCT ON (v.key_hash)")
    assert statement.endswith(" LIMIT 3")


# ---- states ------------------------------------------------------------------------------


def vector(lsn: int) -> SnapshotVector:
    return SnapshotVector(Oid(1), Lsn(lsn), "2026-01-01T00:00:00+00:00", {})


def settled(mark: StateMark) -> bool:
    return mark.wait(0.0, lambda: None)


def test_a_mark_gets_the_state_of_its_position() -> None:
    marks, mark = StateMarks(), StateMark(Lsn(50))
    marks.add(mark)
    assert marks.next_between(Lsn(10), Lsn(90)) == Lsn(50)
    assert marks.next_between(Lsn(50), Lsn(90)) is None
    marks.settle(Lsn(40), lambda: vector(40))
    assert marks
    marks.settle(Lsn(50), lambda: vector(45))
    assert settled(mark)
    assert mark.vector == vector(45)
    assert not marks


def test_a_mark_that_was_passed_is_missed() -> None:
    marks, mark = StateMarks(), StateMark(Lsn(50))
    marks.add(mark)
    marks.settle(Lsn(60), lambda: vector(60))
    assert settled(mark)
    assert mark.vector is None


def test_a_mark_that_nobody_waits_for_is_forgotten() -> None:
    marks, mark = StateMarks(), StateMark(Lsn(50))
    marks.add(mark)
    assert not mark.wait(0.0, lambda: None)
    marks.remove(mark)
    assert not marks


def test_marks_of_a_worker_that_has_ended_are_missed() -> None:
    marks, mark, late = StateMarks(), StateMark(Lsn(50)), StateMark(Lsn(60))
    marks.add(mark)
    marks.end()
    marks.add(late)
    assert settled(mark)
    assert settled(late)
    assert (mark.vector, late.vector) == (None, None)
    assert not marks


# ---- the statement and the report ----------------------------------------------------------


def test_the_statement_is_parsed() -> None:
    assert parse("VERIFY") == VerifyTables()
    assert parse("verify table a.b, c subscription s") == VerifyTables(
        (QualifiedName("a", "b", 14), QualifiedName(None, "c", 19)), "s"
    )
    for text in ("verify a", "verify table", "verify subscription s table t"):
        with pytest.raises(SqlSyntaxError):
            parse(text)


def test_the_report_says_what_is_different() -> None:
    equal = VerifiedTable("s", "a.b", "equal", "0/1", "1", "5", "0", None)
    different = VerifiedTable(
        "s", "a.c", "different", "0/1", "1", "5", "1", "1 changed\nchanged (id=1): t"
    )
    other = VerifiedTable(
        "s", "a.d", "not comparable", None, None, None, None, "it is paused"
    )
    assert (equal.code, different.code, other.code) == (0, 1, 2)
    assert [exit_code(codes) for codes in ([0], [0, 2, 1], [0, 2])] == [0, 1, 2]
    shown = list(lines([equal, different, other]))
    assert "a.c: 1 changed" in shown
    assert "    changed (id=1): t" in shown
    assert "a.d: it is paused" in shown
    assert shown[-1] == "3 tables: 1 equal, 1 different, 1 not comparable."
    assert list(lines([equal]))[-1] == "1 table equal."


def test_a_notice_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with displayed() as display:
        display.done('table "a\x1b[2J\nb": equal')
    assert capsys.readouterr().err == 'table "a?[2J?b": equal\n'


class Worker:
    """An apply worker that settles each mark as a test wants."""

    def __init__(
        self, *states: SnapshotVector | Wal2LakeError | None, runs: bool = True
    ) -> None:
        self._states = list(states)
        self._runs = runs
        self.left: list[StateMark] = []

    def mark(self, subid: Oid, lsn: Lsn, *, holds: bool = False) -> StateMark | None:
        if not self._runs:
            return None
        mark = StateMark(lsn, holds=holds)
        self.left.append(mark)
        if self._states:
            state = self._states.pop(0)
            if isinstance(state, Wal2LakeError):
                mark.settle(None, state)
            else:
                mark.settle(state)
        return mark

    def unmark(self, subid: Oid, mark: StateMark) -> None:
        self.left.remove(mark)


SUBSCRIPTION = Subscription(Oid(1), "s", Oid(10), True, "", "s", ("p",))


class Snapshots:
    """A publisher with snapshots at 100, 101, ..."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.sessions: list[str] = []

    @contextmanager
    def take(self, attempt: int) -> Iterator[SlotCreated]:
        self.slots.append(attempt)
        yield SlotCreated("v", Lsn(100 + attempt), f"snap{attempt}")
        self.slots.remove(attempt)

    def opened(self, snapshot: str) -> Session:
        assert snapshot == f"snap{self.slots[-1]}", "the slot keeps the snapshot"
        self.sessions.append(snapshot)
        session = MagicMock(spec=Session)
        session.__enter__.return_value = session
        session.__exit__.side_effect = lambda *_: self.sessions.remove(snapshot)
        return session


def taken(worker: Worker) -> tuple[Lsn, SnapshotVector]:
    """The snapshot's position and the state, of snapshots at 100, 101, ..."""
    there = Snapshots()

    def check() -> None:
        assert not there.slots, "no slot exists while the state is awaited"

    with ExitStack() as sessions:
        _, lsn, state = state_at_snapshot(
            worker,
            SUBSCRIPTION,
            there.take,
            there.opened,
            check,
            sessions,
            seconds=0.0,
        )
        assert not there.slots
        assert there.sessions == [f"snap{int(lsn) - 100}"]
    assert not there.sessions
    assert not worker.left
    return lsn, state


def test_a_snapshot_that_was_passed_is_replaced() -> None:
    assert taken(Worker(None, vector(101))) == (Lsn(101), vector(101))


@pytest.mark.parametrize(
    ("worker", "message", "hint"),
    [
        (
            Worker(runs=False),
            'subscription "s" has no running apply worker',
            "SELECT * FROM wal2lake.problems says why its tables stand still.",
        ),
        (
            Worker(),
            'subscription "s" has not reached 0/64 within 0 s',
            "SELECT * FROM wal2lake.problems says why its tables stand still.",
        ),
        (
            Worker(ApplyError("conflict detected"), vector(101)),
            'subscription "s" has stopped before 0/64',
            "SELECT * FROM wal2lake.problems says why its tables stand still.",
        ),
        (
            Worker(*[None] * 9),
            'subscription "s" was ahead of each of 5 snapshots',
            "Repeat the statement when fewer transactions commit at the source.",
        ),
    ],
)
def test_a_state_that_is_not_to_be_had(worker: Worker, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        taken(worker)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.sqlstate == "55000"
