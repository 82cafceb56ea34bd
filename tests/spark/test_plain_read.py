"""COPY of a table without Spark: the bytes are those that Spark's rows would be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.fakes.sparksettings import spark_settings

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.door.session.copying import send_copy
from wal2lake.engine.rows.answers import ValueFormats, answered
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.lake.delta.log.version import read_version
from wal2lake.lake.delta.versions import earlier
from wal2lake.lake.plain import read as plainread
from wal2lake.lake.plain.read import PlainRead
from wal2lake.lake.port import Cursor, FieldSpec
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries
from wal2lake.lake.store import Store
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.model import Oid
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.backend import CopyRows
from wal2lake.sql.grammar.copying import CopyFormat, CopyOptions
from wal2lake.sql.query.results import Rendering
from wal2lake.sql.query.translate import SparkQuery, TableRef, translate_query
from wal2lake.wire.frontback import Format

UTC = Rendering("UTC", "ISO, MDY", 1, "hex")
ELSEWHERE = Rendering("Asia/Kolkata", "ISO, DMY", 0, "escape")

TYPES = {
    "b": ("boolean", 16, ["true", "false"]),
    "i2": ("smallint", 21, ["-32768", "7"]),
    "i4": ("int", 23, ["-2147483648", "0"]),
    "i8": ("bigint", 20, ["9223372036854775807", "-1"]),
    "f4": ("float", 700, ["float('NaN')", "1.5e10", "float('-Infinity')"]),
    "f8": ("double", 701, ["double('NaN')", "0.1D", "1e300D", "-0.0D"]),
    "n2": ("decimal(12,2)", 1700, ["-12.50", "9999999999.99"]),
    "n10": ("decimal(38,10)", 1700, ["0.0000000001", "-1"]),
    "d": (
        "date",
        1082,
        [
            "date'2026-02-28'",
            "date'0001-01-01'",
            "date'1582-10-10'",
            "date'-0044-03-15'",
        ],
    ),
    "tz": (
        "timestamp",
        1184,
        [
            "timestamp'2026-02-28 01:02:03.000456Z'",
            "timestamp'1969-12-31 23:59:59.5Z'",
            "timestamp'1500-01-01 00:00:00Z'",
            "timestamp'9999-12-31 23:59:59.999999Z'",
            "timestamp'1969-12-31 23:59:59Z'",
        ],
    ),
    "ts": (
        "timestamp_ntz",
        1114,
        ["timestamp_ntz'2026-02-28 01:02:03'", "timestamp_ntz'0001-01-01 00:00:00.1'"],
    ),
    "s": (
        "string",
        25,
        ["''", r"'a\\tb\\nc\\\\d'", r"'\\\\N'", "'ü, \"€\"'", "'\\u0001'", r"'\\\\.'"],
    ),
    "y": ("binary", 17, ["X'00ff5c41'", "X''"]),
    "j": ("string", 3802, ['\'{"a": [1, "\\\\t"]}\'']),
    "u": ("string", 2950, ["'00000000-0000-0000-0000-00000000000a'"]),
    "ai": ("array<int>", 1007, ["array(1, null, 3)", "array()"]),
    "as": ("array<string>", 1009, ["array('a b', '', null, 'null', '{')"]),
    "at": ("array<timestamp>", 1185, ["array(timestamp'2026-02-28 01:02:03.5Z')"]),
}
"""Name to Spark's type, PostgreSQL's, and values."""


class Sink:
    """What was sent, message by message."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes | memoryview) -> None:
        self.data += bytes(data)

    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.data):
            end = at + 1 + int.from_bytes(self.data[at + 1 : at + 5], "big")
            found.append(self.data[at:end])
            at = end
        return found


class Copies:
    """COPY of tables, with Spark and without."""

    def __init__(self, lake: DeltaTables, queries: Queries) -> None:
        self.lake, self._queries = lake, queries
        self._numbers = itertools.count()

    def query(
        self,
        location: str,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        rest: str = "",
    ) -> SparkQuery:
        """``columns`` None: those of the newest version."""
        fields = self.lake.state(location).fields
        known = tuple(
            ColumnDef(one.name, one.pg_type_oid or Oid(25), one.pg_typmod)
            for one in fields
        )
        if columns is not None:
            known = tuple(c for c in known if c.name in columns) + tuple(
                ColumnDef(name, Oid(25))
                for name in columns
                if name not in {c.name for c in known}
            )
        table = TableDef(Oid(30000), "public", "t", Oid(10), known, (), location)
        chosen = ", ".join(quote_identifier(c.name) for c in known)
        sql = f"select {chosen} from public.t {rest}"
        return translate_query(sql, lambda schema, name: TableRef(table, version))

    def reads_plainly(self, query: SparkQuery) -> bool:
        if query.plain is None or not query.plain.is_whole:
            return False
        ref = query.tables[0]
        place = ref.table.location
        return (
            PlainRead.of(self.lake, place, ref.version, query.plain.columns) is not None
        )

    def sent(
        self,
        query: SparkQuery,
        *,
        plainly: bool,
        format_: CopyFormat = CopyFormat.TEXT,
        rendering: Rendering = UTC,
    ) -> list[bytes]:
        """All messages; those of rows in the order of their bytes."""
        never = SimpleNamespace(plainly_read=lambda location, version: None)
        tables: Any = self.lake if plainly else never
        queries: Any = self._queries
        if plainly:
            assert self.reads_plainly(query)
            queries = None
        node: Any = SimpleNamespace(tables=tables, queries=queries)
        sink: Any = Sink()
        with ExitStack() as held:
            group = f"copy-{next(self._numbers)}"
            wanted = ValueFormats(copied=format_)
            found = answered(node, query, wanted, rendering, group, held, lambda: None)
        assert found.fields is not None
        options = CopyOptions(format=format_)
        if format_ is CopyFormat.CSV:
            options = CopyOptions(format=format_, delimiter=",", null="")
        forced = (False,) * len(found.fields)
        found = replace(found, copy=CopyRows(options, forced))
        rows = send_copy(found, sink, encoding="UTF8", check=lambda: None)
        # Each is its kind, its length, and its content.
        contents = [one[:1] + one[5:] for one in sink.messages()]
        if format_ is CopyFormat.BINARY:
            # Whichever row is the first is in one message with the signature.
            signature = b"PGCOPY\n\xff\r\n\0" + bytes(8)
            assert contents[1].startswith(b"d" + signature)
            contents[1] = b"d" + contents[1][1 + len(signature) :]
            assert contents.pop(-2) == b"d\xff\xff"
        assert rows == len(contents) - 2
        return sorted(contents)

    def compare(
        self,
        location: str,
        columns: Sequence[str] | None = None,
        version: int | None = None,
    ) -> list[bytes]:
        """The same bytes both ways, also of a SELECT."""
        query = self.query(location, columns, version)
        found = self.sent(query, plainly=True)
        assert found == self.sent(query, plainly=False)
        mine = self.selected(query, plainly=True)
        assert mine == self.selected(query, plainly=False)
        return found

    def selected(self, query: SparkQuery, *, plainly: bool) -> list[str]:
        """A SELECT's rows, in the order of their bytes; text and binary in turn."""
        never = SimpleNamespace(plainly_read=lambda location, version: None)
        node: Any = SimpleNamespace(
            tables=self.lake if plainly else never,
            queries=None if plainly else self._queries,
        )
        assert query.columns is not None
        formats = itertools.cycle((Format.TEXT, Format.BINARY))
        wanted = ValueFormats(tuple(itertools.islice(formats, len(query.columns))))
        with ExitStack() as held:
            group = f"select-{next(self._numbers)}"
            found = answered(node, query, wanted, ELSEWHERE, group, held, lambda: None)
        rows = [row for one in found.batches for row in zip(*one.columns, strict=True)]
        found.close()
        return sorted(map(repr, rows))


@pytest.fixture
def copies(lake: DeltaTables, queries: Queries) -> Copies:
    return Copies(lake, queries)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a few rows are several."""
    monkeypatch.setattr(plainread, "_BATCH_ROWS", 7)
    yield


def insert(spark: SparkSession, location: str, values: str) -> None:
    spark.sql(f"insert into delta.`{location}` {values}")


def all_types(lake: DeltaTables, spark: SparkSession, location: str) -> int:
    """Make a table of all types; the number of its rows."""
    fields = [
        FieldSpec(name, ddl, pg_type_oid=Oid(oid))
        for name, (ddl, oid, _) in TYPES.items()
    ]
    lake.create(location, fields)
    values = [values for _, _, values in TYPES.values()]
    rows = list(itertools.zip_longest(*values, fillvalue="null"))
    rows += [("null",) * len(TYPES)] * 3
    listed = ", ".join(f"({', '.join(row)})" for row in rows)
    insert(spark, location, f"values {listed}")
    insert(spark, location, f"values {listed}")
    return 2 * len(rows)


def test_values_of_all_types(
    lake: DeltaTables, spark_session: SparkSession, location: str, copies: Copies
) -> None:
    count = all_types(lake, spark_session, location)
    query = copies.query(location)
    for rendering in (UTC, ELSEWHERE):
        for format_ in CopyFormat:
            found, expected = (
                copies.sent(
                    query, plainly=plainly, format_=format_, rendering=rendering
                )
                for plainly in (True, False)
            )
            assert found == expected and len(found) == count + 2


QUICK_TYPES = ("i4", "tz", "s", "at")
"""One of a fixed width, one of a time zone, a text and an array."""


@pytest.mark.parametrize(
    "names",
    [
        QUICK_TYPES,
        pytest.param(
            tuple(name for name in TYPES if name not in QUICK_TYPES),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["one of a kind", "the others"],
)
def test_values_of_each_type_alone(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    copies: Copies,
    names: tuple[str, ...],
) -> None:
    """One column that does not stay Arrow takes the others of a query with it."""
    all_types(lake, spark_session, location)
    for name in names:
        copies.compare(location, [name])


def numbered(
    lake: DeltaTables, spark: SparkSession, location: str, **more: Any
) -> None:
    """A table of 100 rows in two files."""
    fields = [
        FieldSpec("id", "int", pg_type_oid=Oid(23)),
        FieldSpec("g", "int", pg_type_oid=Oid(23)),
        FieldSpec("v", "string", pg_type_oid=Oid(25)),
    ]
    lake.create(location, fields, **more)
    for first in (0, 50):
        insert(
            spark,
            location,
            f"select id + {first}, id % 3, 'v' || id from range(50) order by id",
        )


@pytest.mark.slow
def test_deleted_rows_and_old_versions(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbered(lake, spark_session, location)
    table = f"delta.`{location}`"
    spark_session.sql(f"delete from {table} where id % 5 = 2 or id between 10 and 30")
    spark_session.sql(f"update {table} set v = 'new' where id % 7 = 0")
    spark_session.sql(f"delete from {table} where g = 1")
    spark_session.sql(f"optimize {table}")
    insert(spark_session, location, "values (1000, 1, 'last')")
    state = lake.state(location)
    listed = lake.files(state)
    assert listed is not None
    known = {}
    for version in range(1, state.version + 1):
        known[version] = copies.compare(location, version=version)
    assert known[state.version] == copies.compare(location)
    assert len({len(rows) for rows in known.values()}) > 3

    # Of many files the checksum does not say which: what came later is undone.
    def unlisted(location: str, store: Store, number: int) -> Any:
        found = read_version(location, store, number)
        return None if found is None else replace(found, files=None)

    monkeypatch.setattr(earlier, "read_version", unlisted)
    for version, rows in known.items():
        query = copies.query(location, version=version)
        assert copies.sent(query, plainly=True) == rows
    # With a commit between that cannot be undone, or is not there, it is for Spark.
    monkeypatch.setattr(earlier, "_MOST_COMMITS", 1)
    assert not copies.reads_plainly(copies.query(location, version=1))
    monkeypatch.setattr(earlier, "_MOST_COMMITS", 100)
    monkeypatch.setattr(
        earlier, "read_actions", lambda store, version: [{"commitInfo": {}}]
    )
    assert not copies.reads_plainly(copies.query(location, version=1))
    monkeypatch.setattr(earlier, "read_actions", lambda store, version: [])
    assert not copies.reads_plainly(copies.query(location, version=1))


@pytest.mark.slow
def test_partitions(
    lake: DeltaTables, spark_session: SparkSession, location: str, copies: Copies
) -> None:
    fields = [
        FieldSpec("id", "int", pg_type_oid=Oid(23)),
        FieldSpec("at", "timestamp", pg_type_oid=Oid(1184)),
        FieldSpec("day", "date", pg_type_oid=Oid(1082)),
        FieldSpec("n", "decimal(5,2)", pg_type_oid=Oid(1700)),
    ]
    lake.create(location, fields, partition_columns=["at", "day", "n"])
    insert(
        spark_session,
        location,
        "values (1, timestamp'2026-01-01 01:02:03.000004Z', date'2026-01-01', 1.5),"
        " (2, timestamp'1969-01-01 00:00:00Z', null, -1), (3, null, date'0044-01-01', null)",
    )
    insert(
        spark_session,
        location,
        "select id, timestamp'2026-01-01 01:02:03.000004Z', date'2026-01-01', 1.5"
        " from range(20)",
    )
    spark_session.sql(f"delete from delta.`{location}` where id = 7")
    assert len(copies.compare(location)) == 22 + 2
    # Nothing that the files have.
    copies.compare(location, ["day", "n"])


@pytest.mark.slow
def test_columns_that_came_and_were_renamed(
    lake: DeltaTables, spark_session: SparkSession, location: str, copies: Copies
) -> None:
    numbered(lake, spark_session, location)
    table = f"delta.`{location}`"
    spark_session.sql(f"alter table {table} add columns (later bigint, b string)")
    insert(spark_session, location, "values (200, 1, 'x', 5, 'six')")
    copies.compare(location)
    copies.compare(location, ["later"])
    spark_session.sql(
        f"alter table {table} set tblproperties ('delta.columnMapping.mode' = 'name')"
    )
    spark_session.sql(f"alter table {table} rename column v to b2")
    spark_session.sql(f"alter table {table} drop column b")
    spark_session.sql(f"alter table {table} add columns (b int, `d.o t` int)")
    insert(spark_session, location, "values (201, 2, 'y', null, 7, 8)")
    copies.compare(location)
    copies.compare(location, ["d.o t", "b", "b2"])
    # As it was called then.
    version = lake.state(location).version
    old = copies.query(location, ["id", "v", "b"], version - 6)
    assert copies.sent(old, plainly=True) == copies.sent(old, plainly=False)


@pytest.mark.slow
def test_files_of_others(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    copies: Copies,
    tmp_path: Path,
) -> None:
    """INT96 timestamps, other widths and encodings, one large row group."""
    numbered(lake, spark_session, location)
    kind = "spark.sql.parquet.outputTimestampType"
    with spark_settings(spark_session, {kind: "INT96"}):
        insert(spark_session, location, "values (300, 3, 'int96')")
        spark_session.sql(f"alter table delta.`{location}` add columns (at timestamp)")
        insert(
            spark_session,
            location,
            "values (301, 3, 'int96', timestamp'1600-01-01 00:00:00.5Z'),"
            " (302, 3, 'int96', timestamp'2026-01-01 00:00:00.000001Z')",
        )
    rows = 1000
    table = pa.table(
        {
            "v": pa.array(["same" * 10] * rows).dictionary_encode(),
            "id": pa.array(range(rows), pa.int32()),
            "g": pa.array([None] * rows, pa.int32()),
        }
    )
    path = Path(location) / "foreign.parquet"
    pq.write_table(table, path)
    size = path.stat().st_size
    added = AddedFile(path.name, size, 1, f'{{"numRecords":{rows}}}')
    lake.commit_files(location, [added], Cursor("other", 1))
    assert len(copies.compare(location)) == 103 + rows + 2


def test_what_is_sparks_stays_sparks(
    lake: DeltaTables, spark_session: SparkSession, location: str, copies: Copies
) -> None:
    spark_session.sql(
        f"create table delta.`{location}` (id int, s struct<a: int>,"
        " m map<string, int>, v varchar(5)) using delta"
    )
    insert(
        spark_session,
        location,
        "values (1, named_struct('a', 1), map('k', 1), 'v')",
    )
    for name in ("s", "m"):
        assert not copies.reads_plainly(copies.query(location, ["id", name]))
    copies.compare(location, ["id", "v"])
    for rest in ("where v = 'v'", "limit 1", "order by id", "group by id, v"):
        query = copies.query(location, ["id", "v"], rest=rest)
        assert not copies.reads_plainly(query)
    assert not copies.reads_plainly(copies.query(location, ["id", "missing"]))
    # Columns are found by their ids, and made longer.
    for number, definition in enumerate(
        (
            "(id int) using delta tblproperties ('delta.columnMapping.mode' = 'id')",
            "(id int, c char(5)) using delta",
            "(id int, c array<char(5)>) using delta",
        )
    ):
        other = f"{location}-of-{number}"
        spark_session.sql(f"create table delta.`{other}` {definition}")
        assert not copies.reads_plainly(copies.query(other, ["id"]))


def test_a_clone_is_read_with_the_files_that_its_table_lends(
    lake: DeltaTables, spark_session: SparkSession, location: str, copies: Copies
) -> None:
    numbered(lake, spark_session, location)
    spark_session.sql(f"delete from delta.`{location}` where id % 3 = 0")
    clone = f"{location} a%20b"
    spark_session.sql(f"create table delta.`{clone}` shallow clone delta.`{location}`")
    lent = copies.compare(clone)
    assert lent and sorted(lent) == sorted(copies.compare(location))
    spark_session.sql(f"delete from delta.`{clone}` where id % 5 = 0")
    assert 0 < len(copies.compare(clone)) < len(lent)


def test_a_cancelled_copy_ends_between_batches(
    lake: DeltaTables, spark_session: SparkSession, location: str, copies: Copies
) -> None:
    numbered(lake, spark_session, location)
    node: Any = SimpleNamespace(tables=lake, queries=None)
    asked = itertools.count(1)

    def check() -> None:
        if next(asked) == 3:
            raise UsageError("canceling statement", sqlstate="57014")

    with ExitStack() as held:
        query = copies.query(location)
        found = answered(
            node, query, ValueFormats(copied=CopyFormat.TEXT), UTC, "none", held, check
        )
    batches = iter(found.batches)
    assert sum(next(batches).rows for _ in range(2)) == 14
    with pytest.raises(UsageError, match="canceling"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_dates_of_the_legacy_calendar(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files of Spark 2, or of a later one that was told to write as it did."""
    fields = [
        FieldSpec("d", "date", pg_type_oid=Oid(1082)),
        FieldSpec("tz", "timestamp", pg_type_oid=Oid(1184)),
        FieldSpec("ts", "timestamp_ntz", pg_type_oid=Oid(1114)),
        FieldSpec("ds", "array<date>", pg_type_oid=Oid(1182)),
    ]
    lake.create(location, fields)
    texts = ["0001-01-01", "0044-03-15", "1000-12-31", "1500-03-01", "1582-10-04"]
    texts += ["1582-10-15", "1899-12-31", "1969-12-31", "2026-11-23"]
    rows = ", ".join(
        f"(date'{text}', timestamp'{text} 01:02:03.4Z', timestamp_ntz'{text} 05:06:07',"
        f" array(date'{text}', null))"
        for text in texts
    )
    modes = "spark.sql.parquet.datetimeRebaseModeInWrite"
    int96 = "spark.sql.parquet.int96RebaseModeInWrite"
    kind = "spark.sql.parquet.outputTimestampType"
    for settings in (
        {modes: "CORRECTED"},
        {modes: "LEGACY"},
        {modes: "LEGACY", kind: "TIMESTAMP_MICROS"},
        {int96: "LEGACY", kind: "INT96"},
        {modes: "LEGACY", int96: "LEGACY", kind: "INT96"},
    ):
        with spark_settings(spark_session, settings):
            insert(spark_session, location, f"values {rows}")
    found = copies.compare(location)
    # They are all the same, however they were written.
    assert len(found) == 5 * len(texts) + 2
    assert len(set(found)) == len(texts) + 2


def test_timestamps_of_the_legacy_calendar_in_another_time_zone(
    lake: DeltaTables, spark_session: SparkSession, location: str, copies: Copies
) -> None:
    """Where the zones of two libraries differ; Spark writes the rows anew."""
    lake.create(location, [FieldSpec("tz", "timestamp", pg_type_oid=Oid(1184))])
    settings = {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.session.timeZone": "Europe/Berlin",
    }
    with spark_settings(spark_session, settings):
        insert(spark_session, location, "values (timestamp'1890-01-01 00:00:00Z')")
    with pytest.raises(FeatureNotSupportedError) as refused:
        copies.compare(location)
    assert refused.value.hint == "Rewrite the table's rows with Spark 3 or later."
    rows = f"delta.`{location}`"
    spark_session.sql(f"insert overwrite {rows} select * from {rows}")
    assert b"1890-01-01 00:00:00+00" in b"".join(copies.compare(location))


def test_values_that_are_there_often_are_not_all_there_at_once(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plainread, "_BATCH_ROWS", 1 << 15)
    fields = [
        FieldSpec("id", "bigint", pg_type_oid=Oid(20)),
        FieldSpec("v", "string", pg_type_oid=Oid(25)),
        FieldSpec("a", "array<string>", pg_type_oid=Oid(1009)),
    ]
    lake.create(location, fields)
    insert(
        spark_session,
        location,
        "select id, repeat(chr(65 + id % 20), 20000), array(repeat('x', 3000), 'y')"
        " from range(0, 20000, 1, 1)",
    )
    plain = PlainRead.of(lake, location, None, ["id", "v", "a"])
    assert plain is not None
    rows = largest = 0
    for batch in plain.read():
        rows, largest = rows + batch.num_rows, max(largest, batch.nbytes)
    assert rows == 20_000
    assert largest <= 2 * plainread._BATCH_BYTES
