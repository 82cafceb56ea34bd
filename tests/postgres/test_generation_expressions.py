"""Generation expressions: their texts and values are those that PostgreSQL has."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.conftest import Database

from wal2lake.apply.local.altering import field_spec
from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.commands.constraints.generatedcolumns import generation
from wal2lake.errors import UsageError
from wal2lake.lake.staging.convert import SentColumn, convert_column, mapping_of
from wal2lake.lake.staging.generated import computed
from wal2lake.model import Oid
from wal2lake.pg.client import Client, Failure
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.statements import CreateTable
from wal2lake.sql.sysviews.rows.facts import generation_text

COLUMNS = {
    "a": "int",
    "b": "int",
    "c": "text",
    "d": "numeric",
    "v": "varchar(20)",
    "e": "bool",
    "f": "float8",
    "k": "char(6)",
    "y": "bytea",
    "t": "timestamp",
    "z": "timestamptz",
    "o": "date",
    "u": "uuid",
    "n": "numeric(8,3)",
    "s": "smallint",
    "j": "jsonb",
}
ROWS = (
    "1, 2, 'x', 1.50, 'v', true, 0.1, 'ab', '\\x00ff', '2024-02-29 12:34:56.5',"
    " '1999-12-31 23:59:59.999999+00', '2024-02-29',"
    " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 12.345, 7, '{\"a\": [1, null]}'",
    "-7, 0, 'é  ', -0.005, 'long value', false, 'NaN', 'a', '', 'infinity',"
    " '-infinity', '0044-03-15 BC', 'A0EEBC999C0B4EF8BB6D6BB9BD380A12', -0.0005, -3,"
    ' \'{"b": "x"}\'',
    "null, null, null, null, null, null, null, null, null, null, null, null, null, null,"
    " null, null",
    "2147483647, -2147483648, '', 'NaN', '', null, 1e300, '', '\\x41', '-infinity',"
    " '2000-01-01 00:00:00.4999995+00', 'infinity', null, 99999.999, 32767, '[1]'",
)

NUMBERS = (
    "0, 0, 0",
    "1e309, 1e-50, 1152921573326323713",
    "1e-400, 1e39, -1152921573326323713",
    "1e39, 3.4028235677973366e38, 9223372036854775807",
    "-1e-50, -7.006492321624085e-46, 16777217",
    "1.00000005960464477539062500001, 1.000000059604644775390625, 9007199254740993",
    "1.000000059604644775390625, 7.006492321624086e-46, 1",
    "0.1, 5e-324, -1",
    "'NaN', 'NaN', 2",
    "'-Infinity', '-Infinity', 3",
    "4e-324, 1e-45, 4",
)
"""numeric, float8, bigint."""

EXPRESSIONS = (
    ("int", "a*2+1"),
    ("int", "(a+1)*2"),
    ("bigint", "a-(b-1)"),
    ("bigint", "a::bigint-b-1"),
    ("int", "-a % 3"),
    ("numeric(6,1)", "a + (-b)"),
    ("numeric", "a*d+1"),
    ("numeric(5,2)", "n"),
    ("numeric(4,0)", "d"),
    ("int", "n"),
    ("int", "f"),
    ("real", "f"),
    ("float8", "d"),
    ("numeric", "f"),
    ("numeric", "(f::numeric * 1e20::float8::numeric) * 1.50"),
    ("text", "a"),
    ("text", "d"),
    ("text", "e"),
    ("text", "f"),
    ("text", "u"),
    ("varchar(3)", "c || 'x' || v"),
    ("varchar(5)", "v"),
    ("char(4)", "k"),
    ("text", "k"),
    ("text", "k || '|'"),
    ("int", "abs(a - 1)"),
    ("int", "length(c) + octet_length(y)"),
    ("text", "case when a>1 and b<2 then c else v end"),
    ("int", "coalesce(nullif(a, 1), b, 5)"),
    ("bool", "(a>1 or b>2) and not e"),
    ("bool", "a>1 and b>2 or e"),
    ("bool", "a in (1, 2) and b>1"),
    ("bool", "c is null and (a>1) is true"),
    ("bool", "c collate \"C\" = 'x'"),
    ("bool", "v = 'x'"),
    ("bool", "a is distinct from b"),
    ("numeric(5,1)", "(d+1)::numeric(5,1)"),
    ("int", "greatest(a, s)"),
    ("bool", "c like 'x%'"),
    ("bytea", "y || y"),
    ("timestamp(0)", "t"),
    ("timestamp(3)", "t"),
    ("timestamptz(2)", "z"),
    ("date", "o + 1"),
    ("int", "o - date '2000-01-01'"),
    ("timestamp", "o"),
    ("date", "t"),
    ("uuid", "u"),
    ("text", "j ->> 'b'"),
    ("jsonb", "j -> 'a'"),
    ("smallint", "s + 1"),
    ("int", "10 / b"),
    ("int", "null"),
    ("int", "'12'"),
)


def test_texts_and_values_are_those_of_postgresql(pg18: Database) -> None:
    table = TableDef(
        Oid(1),
        "public",
        "t",
        Oid(10),
        tuple(ColumnDef(n, *parse_type_name(k)) for n, k in COLUMNS.items()),
        (),
        "/",
    )
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with Client(pg18.conninfo()) as client:

        def texts(columns: str, source: str) -> list[tuple[str | None, ...]]:
            return client.rows(f"select {columns} from {source}")

        def run(sql: str) -> None:
            for said in client.run(sql):
                assert not isinstance(said, Failure), said

        run("set timezone = 'UTC'")

        run(f"create table base (row int, {listed})")
        for number, row in enumerate(ROWS):
            run(f"insert into base values ({number}, {row})")
        stored = _stored(table, texts(", ".join(COLUMNS), "base order by row"))
        for kind, expression in EXPRESSIONS:
            shown = f"{kind} generated always as ({expression}) stored"
            statement = parse(f"create table t (g {shown})")
            assert isinstance(statement, CreateTable)
            (clause,) = statement.columns
            assert clause.generated is not None
            column = ColumnDef("g", clause.type_oid, clause.typmod)
            found = generation(table, column, clause.generated, "UTC")
            column = replace(column, generated=found)
            run(f"create table t (row int, {listed}, g {shown})")
            wanted: list[object] = []
            for number in range(len(ROWS)):
                (said,) = client.run(
                    f"insert into t select * from base where row = {number}"
                )
                if isinstance(said, Failure):
                    wanted.append((said.sqlstate, said.message))
                else:
                    wanted += [one[0] for one in texts("g", f"t where row = {number}")]
            ((plain, pretty),) = texts(
                "pg_get_expr(adbin, adrelid), pg_get_expr(adbin, adrelid, true)",
                "pg_attrdef where adrelid = 't'::regclass",
            )
            run("drop table t")
            assert generation_text(column) == plain, shown
            assert generation_text(column, pretty=True) == pretty, shown
            nothing = pa.nulls(len(ROWS), mapping_of(field_spec(column)).arrow_type)
            rows, failed = computed(
                (("g", found),),
                [*(field_spec(c) for c in table.columns), field_spec(column)],
                stored.append_column("g", nothing),
            )
            made: list[object] = [
                None if text is None else text.decode()
                for text in arrow_to_text(
                    rows.column("g"), int(column.type_oid), column.typmod
                )
            ]
            for one in failed:
                is_nan = 'numeric "NaN" cannot be stored' in one.message
                # Lake tables have no NaN in numeric(p,s).
                made[one.row] = "NaN" if is_nan else (one.sqlstate, one.message)
            assert made == wanted, shown


def test_numbers_are_rounded_or_refused_as_by_postgresql(pg18: Database) -> None:
    columns = {"d": "numeric", "f": "float8", "w": "bigint"}
    table = TableDef(
        Oid(1),
        "public",
        "t",
        Oid(10),
        tuple(ColumnDef(n, *parse_type_name(k)) for n, k in columns.items()),
        (),
        "/",
    )
    with Client(pg18.conninfo()) as client:
        for kind, name in itertools.product(("float8", "real"), columns):
            statement = parse(
                f"create table t (g {kind} generated always as ({name}) stored)"
            )
            assert isinstance(statement, CreateTable)
            (clause,) = statement.columns
            assert clause.generated is not None
            column = ColumnDef("g", clause.type_oid, clause.typmod)
            found = generation(table, column, clause.generated, "UTC")
            fields = [*map(field_spec, table.columns), field_spec(column)]
            for row in NUMBERS:
                d, f, w = row.split(", ")
                numbers = f"select {d}::numeric d, {f}::float8 f, {w}::bigint w"
                stored = _stored(table, client.rows(numbers))
                nothing = pa.nulls(1, mapping_of(fields[-1]).arrow_type)
                made, failed = computed(
                    (("g", found),), fields, stored.append_column("g", nothing)
                )
                (said,) = client.run(f"select {name}::{kind} from ({numbers}) x")
                if isinstance(said, Failure):
                    assert failed, (kind, name, row, said.message)
                    answer = (failed[0].sqlstate, failed[0].message)
                    assert answer == (said.sqlstate, said.message)
                else:
                    assert not failed, (kind, name, row, failed)
                    (text,) = arrow_to_text(made.column("g"), int(column.type_oid), -1)
                    assert text is not None
                    assert text.decode() == said.rows[0][0], (kind, name, row)


def _stored(table: TableDef, rows: list[tuple[str | None, ...]]) -> pa.Table:
    arrays = []
    for column, values in zip(table.columns, zip(*rows, strict=True), strict=True):
        field = field_spec(column)
        sent = SentColumn(
            pa.array([None if v is None else v.encode() for v in values], pa.binary()),
            None,
            field.pg_type_oid,
            field.pg_typmod,
        )
        arrays.append(convert_column(sent, field, mapping_of(field)).array)
    return pa.table(arrays, names=[c.name for c in table.columns])


@pytest.mark.parametrize("expression", ["c::int", "a::text", "lower(c)", "d / 2"])
def test_what_is_not_computed_is_named(expression: str) -> None:
    table = TableDef(
        Oid(1),
        "public",
        "t",
        Oid(10),
        tuple(ColumnDef(n, *parse_type_name(k)) for n, k in COLUMNS.items()),
        (),
        "/",
    )
    text = f"create table t (g text generated always as ({expression}) stored)"
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    (clause,) = statement.columns
    assert clause.generated is not None
    with pytest.raises(UsageError) as refused:
        generation(table, ColumnDef("g", Oid(25)), clause.generated, "UTC")
    assert refused.value.sqlstate == "0A000"
    assert expression in str(refused.value)
