"""What the statements of a transaction have done, as a file: whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.lake.capture.commitfacts import (
    CommitRemarks,
    Emitted,
    operation_and_remarks,
    with_remarks,
)
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.model import Oid, Relation
from wal2lake.publish.capture import statementchanges as statements
from wal2lake.publish.capture.statementchanges import (
    MOST_ROWS,
    Statement,
    Statements,
    count_of,
)

TABLE = TableDef(
    Oid(16400),
    "s",
    'T "t"',
    Oid(10),
    (ColumnDef("id", Oid(23)), ColumnDef("größe", Oid(1700), 393222)),
    ("id",),
    "/branch",
)

ROWS = pa.RecordBatch.from_pydict(
    {
        "op": pa.array([ord("I"), ord("U")], pa.uint8()),
        "old": pa.array([0, ord("K")], pa.uint8()),
        "c0": pa.array([b"1", b"2"]),
        "c1": pa.array([None, b"\xff"]),
        "o0": pa.array([None, b"1"]),
    }
)


class Tables:
    """A branch whose every version has come with one file."""

    def __init__(self, rows: int = 2) -> None:
        self.rows = rows

    def actions(
        self, location: str, first: int, last: int
    ) -> Iterator[list[dict[str, Any]]]:
        for version in range(first, last + 1):
            stats = f'{{"numRecords":{self.rows}}}'
            yield [{"add": {"path": f"{version}", "size": 1, "stats": stats}}]

    def state_at(self, location: str, version: int) -> object:
        fields = [SimpleNamespace(name=c.name) for c in TABLE.columns]
        return SimpleNamespace(location=location, version=version, fields=fields)


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "row_changes", lambda *_: iter([ROWS]))


def kept(directory: Path, rows: int = 2) -> Statements:
    memory = ComparisonMemory(1, directory / "memory")
    return Statements(directory / "told", cast(Any, Tables(rows)), memory)


TWO = (Statement(TABLE, 0, 1), Statement(TABLE, 1, 1, truncates=3))


@pytest.mark.usefixtures("read_files")
def test_what_is_written_down_is_read(tmp_path: Path) -> None:
    one = kept(tmp_path)
    message = Emitted("prä", b"\xff\0")
    name = one.keep((TWO[0], message, TWO[1]))
    assert name is not None
    found = one.read(name)
    assert found is not None
    assert count_of(found) == 4
    assert found.pop(1) == message
    (inserted, rows), (emptied, options) = found
    assert isinstance(inserted, Relation)
    assert inserted == emptied
    assert (inserted.name, inserted.columns[1].name) == ('T "t"', "größe")
    assert inserted.columns[1].typmod == 393222
    assert [column.is_key for column in inserted.columns] == [True, False]
    assert isinstance(rows, pa.RecordBatch)
    assert rows.equals(ROWS)
    assert options == 3
    one.drop([name])
    assert one.read(name) is None
    one.drop([name])


@pytest.mark.usefixtures("read_files")
def test_a_difference_that_says_the_same_is_enough(tmp_path: Path) -> None:
    assert kept(tmp_path).keep(TWO[:1]) is None
    assert kept(tmp_path).keep(()) is None
    assert kept(tmp_path).keep((Emitted("p", b""), Emitted("p", b""))) is None
    assert kept(tmp_path).keep((TWO[0], Emitted("p", b""))) is not None
    assert kept(tmp_path, MOST_ROWS + 1).keep(TWO) is None
    assert kept(tmp_path, MOST_ROWS).keep(TWO) is not None


@pytest.mark.usefixtures("read_files")
def test_what_an_earlier_engine_has_left_goes(tmp_path: Path) -> None:
    left = kept(tmp_path).keep(TWO)
    one = kept(tmp_path)
    mine = one.keep(TWO)
    assert left is not None
    assert mine is not None
    assert one.read(left) is not None, "until all that it has committed is captured"
    one.drop_left()
    assert one.read(left) is None
    assert one.read(mine) is not None


@pytest.mark.parametrize("name", ["", "0123456789abcdef" * 2])
def test_the_commits_word_names_it(name: str) -> None:
    more = CommitRemarks(truncate_options=1, statements=name)
    assert operation_and_remarks(with_remarks("local transaction", more)) == (
        "local transaction",
        more,
    )


@pytest.mark.parametrize("name", ["../../etc/passwd", "a", "0" * 33, "/x"])
def test_nobody_else_names_a_file(name: str) -> None:
    found = operation_and_remarks(
        with_remarks("local transaction", CommitRemarks(statements=name))
    )
    assert found == ("local transaction", CommitRemarks())
