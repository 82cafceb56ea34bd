"""COPY of the rows that a row filter lets through, without Spark: the bytes are those that Spark's
rows would be, and there are rows where Spark has none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.door.session.copying import send_copy
from wal2lake.engine.rows.answers import ValueFormats, answered
from wal2lake.engine.rows.filtered import FilteredRead
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.lake.plain import read as plainread
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries
from wal2lake.model import Oid
from wal2lake.sql.backend import CopyRows
from wal2lake.sql.grammar.copying import CopyFormat, CopyOptions
from wal2lake.sql.query.results import Rendering
from wal2lake.sql.query.translate import TableRef, translate_query

ELSEWHERE = Rendering("Asia/Kolkata", "ISO, MDY", 1, "hex")


class Sink:
    """What was sent."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes | memoryview) -> None:
        self.data += bytes(data)

    def rows(self) -> list[bytes]:
        """In the order of their bytes."""
        found, at = [], 0
        while at < len(self.data):
            end = at + 1 + int.from_bytes(self.data[at + 1 : at + 5], "big")
            if self.data[at : at + 1] == b"d":
                found.append(self.data[at + 5 : end])
            at = end
        return sorted(found)


class Table:
    """A table, and COPY of it."""

    def __init__(
        self,
        lake: DeltaTables,
        queries: Queries,
        location: str,
        fields: list[FieldSpec],
    ) -> None:
        lake.create(location, fields)
        self._lake, self._queries = lake, queries
        columns = tuple(ColumnDef(f.name, f.pg_type_oid, f.pg_typmod) for f in fields)
        self.definition = TableDef(
            Oid(30000), "public", "t", Oid(10), columns, ("id",), location
        )
        self.version: int | None = None

    def resolve(self, schema: str | None, name: str) -> TableRef:
        return TableRef(self.definition, self.version)

    def plain(self, condition: str, columns: str = "*") -> FilteredRead | None:
        sql = f"select {columns} from only public.t where {condition}"
        return FilteredRead.of(self._lake, sql, self.resolve, "UTC")

    def sent(
        self,
        condition: str,
        columns: str = "*",
        *,
        plainly: bool = True,
        format_: CopyFormat = CopyFormat.TEXT,
    ) -> list[bytes]:
        asked: Any = self.plain(condition, columns)
        assert asked is not None
        if not plainly:
            sql = f"select {columns} from public.t where {condition}"
            asked = translate_query(sql, self.resolve)
        never = SimpleNamespace(plainly_read=lambda location, version: None)
        node: Any = SimpleNamespace(tables=never, queries=self._queries)
        sink: Any = Sink()
        wanted = ValueFormats(copied=format_)
        with ExitStack() as held:
            found = answered(node, asked, wanted, ELSEWHERE, "c", held, lambda: None)
        assert found.fields is not None
        options = CopyOptions(format=format_)
        if format_ is CopyFormat.CSV:
            options = CopyOptions(format=format_, delimiter=",", null="")
        forced = (False,) * len(found.fields)
        found = replace(found, copy=CopyRows(options, forced))
        sent = send_copy(found, sink, encoding="UTF8", check=lambda: None)
        rows: list[bytes] = sink.rows()
        if format_ is CopyFormat.BINARY:
            return rows
        assert len(rows) == sent
        return rows

    def compare(self, condition: str, columns: str = "*") -> list[bytes]:
        """The same bytes from Spark."""
        found = self.sent(condition, columns)
        assert found == self.sent(condition, columns, plainly=False), condition
        return found


FIELDS = [
    FieldSpec("id", "int", pg_type_oid=Oid(23)),
    FieldSpec("v", "string", pg_type_oid=Oid(25)),
    FieldSpec("n", "string", pg_type_oid=Oid(1700)),
    FieldSpec("d", "double", pg_type_oid=Oid(701)),
    FieldSpec("at", "timestamp", pg_type_oid=Oid(1184)),
    FieldSpec("day", "date", pg_type_oid=Oid(1082)),
]


@pytest.fixture
def table(
    lake: DeltaTables, queries: Queries, spark_session: SparkSession, location: str
) -> Table:
    """100 rows in two files, some of them deleted."""
    table = Table(lake, queries, location, FIELDS)
    for first in (0, 50):
        spark_session.sql(
            f"insert into delta.`{location}` select cast(id + {first} as int),"
            " if(id % 10 = 3, null, 'v' || id), if(id % 7 = 0, 'NaN', id || '.50'),"
            " if(id % 5 = 0, double('nan'), id / 4),"
            " timestamp'2026-01-01 00:00:00Z' + make_interval(0, 0, 0, 0, id),"
            " date'2026-01-01' + cast(id as int) from range(50) order by id"
        )
    spark_session.sql(f"delete from delta.`{location}` where id % 9 = 4")
    return table


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a few rows are several."""
    monkeypatch.setattr(plainread, "_BATCH_ROWS", 7)
    yield


def test_what_spark_knows_is_the_same_without_it(table: Table) -> None:
    for condition in (
        "id > 20",
        "id % 3 = 1 and v <> 'v7'",
        "v like 'v1%' or v is null",
        "(at >= '2026-01-01 07:00:00+00')",
        "day between '2026-01-10' and '2026-01-20'",
        "id in (1, 2, 60, null)",
        "(id > 90) OR (v = 'v4'::text)",
        "id > 1000",
        "coalesce(v, 'x') = 'x'",
    ):
        table.compare(condition)
    # The condition reads what is not sent, and what is sent has another order.
    assert len(table.compare("id < 10 and v is not null", "day, v")) == 8
    for format_ in CopyFormat:
        if format_ is not CopyFormat.BINARY:
            found = table.sent("id % 2 = 0", format_=format_)
            assert found == table.sent("id % 2 = 0", plainly=False, format_=format_)
    # Of one row, which is therefore the first one, with the signature.
    binary = table.sent("id = 7", format_=CopyFormat.BINARY)
    assert binary == table.sent("id = 7", plainly=False, format_=CopyFormat.BINARY)
    assert len(binary) == 2


def test_what_spark_refuses_has_rows(table: Table) -> None:
    left = [number for number in range(100) if number % 9 != 4]
    places = [number % 50 for number in left]
    odd = [i for i in places if i % 7 and i % 2 == 0]
    refused = 0
    for condition, expected in (
        ("n % 2 = 0.5", odd),
        ("n + 1 > 1000000", [i for i in places if i % 7 == 0]),
        ("d::numeric = 0.25", [i for i in places if i == 1]),
        ("id <> 0 and d::numeric <> 'NaN'", [i for i in places if i % 5]),
    ):
        try:
            table.sent(condition, plainly=False)
        except Wal2LakeError as error:
            assert error.sqlstate in ("0A000", "22003", "22P02"), condition
            refused += 1
        assert len(table.sent(condition)) == len(expected), condition
    assert refused > 2


def test_an_error_of_the_condition_is_the_copys(table: Table) -> None:
    asked = table.plain("1 / id > 0")
    assert asked is not None
    node: Any = SimpleNamespace(tables=None, queries=None)
    wanted = ValueFormats(copied=CopyFormat.TEXT)
    with ExitStack() as held:
        found = answered(node, asked, wanted, ELSEWHERE, "c", held, lambda: None)
    with pytest.raises(UsageError, match="division by zero") as caught:
        list(found.batches)
    assert caught.value.sqlstate == "22012"


def test_a_cancelled_copy_ends_between_batches(table: Table) -> None:
    asked = table.plain("id >= 0")
    assert asked is not None
    node: Any = SimpleNamespace(tables=None, queries=None)
    calls = itertools.count(1)

    def check() -> None:
        if next(calls) == 3:
            raise UsageError("canceling statement", sqlstate="57014")

    wanted = ValueFormats(copied=CopyFormat.TEXT)
    with ExitStack() as held:
        found = answered(node, asked, wanted, ELSEWHERE, "c", held, check)
    with pytest.raises(UsageError, match="canceling"):
        list(found.batches)


def test_an_earlier_version_is_read_as_it_was(
    table: Table, spark_session: SparkSession
) -> None:
    before = table.compare("id % 4 = 0")
    place = table.definition.location
    table.version = spark_session.sql(f"describe history delta.`{place}`").first()[0]
    spark_session.sql(f"delete from delta.`{place}` where id > 3")
    assert table.compare("id % 4 = 0") == before
    table.version = None
    assert len(table.compare("id % 4 = 0")) == 1


def test_other_conditions_are_sparks(table: Table) -> None:
    for condition in (
        "at > now()",
        "id in (select 1)",
        "nope = 1",
        "id > 1 order by id",
        "id > 1 limit 3",
        "id",
    ):
        assert table.plain(condition) is None, condition
    for columns in ("id + 1", "count(*)", "distinct v", "id, id", "nope"):
        assert table.plain("id > 1", columns) is None, columns


def test_files_that_cannot_have_a_row_are_not_opened(table: Table) -> None:
    every, some = table.plain("id >= 0"), table.plain("id > 60 and v is not null")
    assert every is not None and some is not None
    assert 0 < some._read.files < every._read.files
    table.compare("id > 60 and v is not null")
