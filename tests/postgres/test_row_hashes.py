"""Rows have the same hash here and at a server, whatever their values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.pg import Session, connect
from wal2lake.pg.quoting import quote_literal
from wal2lake.pgtypes import mapping_for, text_to_arrow
from wal2lake.testing.postgres import PostgresServer
from wal2lake.verify import LakeSide, compare
from wal2lake.verify.digests import BlockDigests
from wal2lake.verify.division import divided_by_hash, divided_by_order
from wal2lake.verify.forms import form_of
from wal2lake.verify.lookup3 import hash_bytes
from wal2lake.verify.rowhashes import hash_rows
from wal2lake.verify.sides import ServerSide, check_hashes
from wal2lake.verify.statements import TableStatements

UGLY: dict[str, list[str | None]] = {
    "boolean": ["t", "f", None],
    "smallint": ["0", "-32768", "32767", None],
    "integer": ["0", "-1", "2147483647", None],
    "bigint": ["0", "1", "4294967296", "-9223372036854775808", "9223372036854775807"],
    "real": ["0", "-0", "1.1", "3.4e38", "1e-45", "NaN", "Infinity", "-Infinity"],
    "double precision": ["0", "-0", "0.1", "1e308", "5e-324", "NaN", "-Infinity", None],
    "numeric": [
        "0",
        "-0",
        "1.0",
        "1.00",
        "-1",
        "NaN",
        "Infinity",
        "1e100",
        "0.0000001",
    ],
    "date": ["2000-01-01", "0001-01-01", "1582-10-04", "infinity", "-infinity", None],
    "timestamp": ["2000-01-01 00:00:00.000001", "1969-12-31 23:59:59", "infinity"],
    "timestamptz": ["2000-01-01 00:00:00+02", "-infinity", "2038-01-19 03:14:08+00"],
    "time": ["00:00:00", "24:00:00", "12:34:56.789"],
    "timetz": ["12:34:56+02", None],
    "interval": ["1 mon -1 day 00:00:01", "-1 year", "0", None],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None],
    "bytea": ["\\x", "\\x00ff5c", None],
    "text": ["", " ", "e\u0301", "\u00e9", "\U0001f600", "a\nb\t\\", None],
    "varchar": ["", "x ", None],
    "character": ["x", " ", None],
    '"char"': ["a", None],
    "name": ["n"],
    "json": ['{"b": 1,  "a":2}', "null", None],
    "jsonb": ['{"b": 1,  "a":2}', None],
    "inet": ["10.0.0.1", "10.0.0.0/8", "::1", None],
    "cidr": ["10.0.0.0/8", None],
    "macaddr": ["08:00:2b:01:02:03"],
    "bit(3)": ["101"],
    "point": ["(1,-0)", None],
    "int4range": ["[1,5)", "empty", "(,)", None],
    "tsvector": ["'a':1 'b c'", None],
    "oid": ["0", "4294967295"],
    "integer[]": ["{}", "{1,NULL,-3}", None],
    "text[]": ['{"a b",NULL,"null",""}', "{}", None],
    "boolean[]": ["{t,f}"],
    "timestamptz[]": ["{2000-01-01 00:00:00+02}"],
    "numeric[]": ["{1.0,1.00}"],
    "numeric(10,2)": ["0", "-0.01", "99999999.99", "1", None],
    "numeric(30,12)": ["0.000000000001", "-123456789012345678.5", None],
}
"""Values of each type."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(18) as running:
        yield running


@pytest.fixture(scope="module")
def session(server: PostgresServer) -> Iterator[Session]:
    with connect(server.conninfo(), application_name="test") as opened:
        yield opened


def stored(session: Session, type_name: str, texts: list[str | None]) -> Any:
    """The column that the node stores for values of a server's type."""
    value = f"NULL::{type_name}"
    row = session.query(
        f"SELECT pg_typeof({value})::regtype::oid, a.atttypmod FROM pg_catalog.pg_attribute a"
        " WHERE attrelid = 'public.typed'::regclass AND attname = 'v'"
    )[0]
    oid, typmod = int(str(row[0])), int(str(row[1]))
    mapping = mapping_for(oid, typmod)
    converted = text_to_arrow(pa.array(texts, pa.string()), mapping)
    assert converted.bad is None
    return converted.array, oid, typmod


def a_table(
    session: Session, type_name: str, values: list[str | None]
) -> list[str | None]:
    """Make a table with these values; their text as the server sends it."""
    session.query("DROP TABLE IF EXISTS public.typed")
    session.query(f"CREATE TABLE public.typed (n integer, v {type_name})")
    for n, value in enumerate(values):
        shown = "NULL" if value is None else quote_literal(value)
        session.query(f"INSERT INTO public.typed VALUES ({n}, {shown})")
    rows = session.query("SELECT v FROM public.typed ORDER BY n")
    return [row[0] for row in rows]


@pytest.mark.parametrize("type_name", UGLY)
def test_each_type_has_the_hash_of_the_server(session: Session, type_name: str) -> None:
    texts = a_table(session, type_name, UGLY[type_name])
    column, oid, typmod = stored(session, type_name, texts)
    numbers = pa.array(range(len(texts)), pa.int32())
    forms = (form_of(numbers.type, 23), form_of(column.type, oid, typmod))
    statements = TableStatements("public.typed", ("n", "v"), forms, (0,))
    division = divided_by_order(0, np.array([3]), 16_000)
    theirs = ServerSide(session, statements).hashes(division, np.arange(2))
    ours = hash_rows([numbers, column], forms, (0,))
    for name in ("key", "first", "second"):
        assert sorted(getattr(theirs, name)) == sorted(getattr(ours, name))
    assert len(set(ours.first.tolist())) == len(texts)


def test_a_server_hashes_as_this_node_does(session: Session) -> None:
    check_hashes(session)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    values=st.lists(st.binary(max_size=80), min_size=1, max_size=30),
    seed=st.integers(0, 2**64 - 1),
)
def test_bytes_of_any_length_have_the_hash_of_the_server(
    session: Session, values: list[bytes], seed: int
) -> None:
    listed = ", ".join(f"({n}, '\\x{v.hex()}'::bytea)" for n, v in enumerate(values))
    signed = seed - (1 << 64) if seed >> 63 else seed
    rows = session.query(
        f"SELECT hash_record_extended(ROW(v), '{signed}') FROM (VALUES {listed}) AS t(n, v)"
        " ORDER BY n"
    )
    ours = hash_bytes(pa.array(values, pa.binary()), (seed,))[0]
    assert ours.tolist() == [int(str(row[0])) % 2**64 for row in rows]


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.none() | st.floats(),
            st.none() | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
            st.none() | st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)),
            st.none()
            | st.decimals(-(10**9), 10**9, places=3).map(
                lambda n: n.quantize(Decimal("0.001"))
            ),
        ),
        max_size=25,
        unique_by=lambda row: row[0],
    ),
    by_order=st.booleans(),
)
def test_blocks_of_any_rows_have_the_digests_of_the_server(
    session: Session, rows: list[tuple[Any, ...]], by_order: bool
) -> None:
    session.query("DROP TABLE IF EXISTS public.mixed")
    session.query(
        "CREATE TABLE public.mixed (k bigint, f double precision, t text,"
        " m timestamp, d numeric(15,3))"
    )
    for row in rows:
        shown = ["NULL" if v is None else quote_literal(str(v)) for v in row]
        session.query(f"INSERT INTO public.mixed VALUES ({', '.join(shown)})")
    types = [
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.timestamp("us"),
        pa.decimal128(15, 3),
    ]
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(types)]
    oids = (20, 701, 25, 1114, 1700)
    forms = tuple(form_of(kind, oid) for kind, oid in zip(types, oids, strict=True))
    division = divided_by_hash(60_000)
    if by_order:
        division = divided_by_order(0, columns[0].to_numpy(), 8_000)
    names = ("k", "f", "t", "m", "d")
    statements = TableStatements("public.mixed", names, forms, (0,))
    theirs = ServerSide(session, statements).digests(division)
    ours = BlockDigests.empty(division.blocks)
    hashes = hash_rows(columns, forms, (0,))
    ours.add(division.of(columns, hashes), hashes)
    assert not len(ours.differing(theirs))
    assert ours.rows == theirs.rows == len(rows)


class Rows:
    """Reads rows in memory, in batches of 1,000."""

    def __init__(self, table: pa.Table, *columns: str) -> None:
        self._table = table.select(columns)

    @property
    def rows(self) -> int | None:
        return None

    def batches(self) -> AbstractContextManager[Iterable[pa.RecordBatch]]:
        return nullcontext(self._table.to_batches(max_chunksize=1000))


@pytest.mark.parametrize("key", [("k",), ("name", "k"), ()])
def test_differences_between_a_server_and_a_copy_are_named(
    session: Session, key: tuple[str, ...]
) -> None:
    session.query("DROP TABLE IF EXISTS public.many")
    session.query(
        "CREATE TABLE public.many AS SELECT k, 'n' || k % 7 AS name, k / 3.0::float8 AS f,"
        " k % 2 = 0 AS b, inet '10.0.0.1' + k AS i, false AS x"
        " FROM generate_series(1, 40000) AS k"
    )
    names = ("k", "name", "f", "b", "i", "x")
    rows = session.query("SELECT * FROM public.many WHERE k <> 7 ORDER BY name, k")
    oids = (23, 25, 701, 16, 869, 16)
    columns = {
        name: text_to_arrow(
            pa.array([row[n] for row in rows], pa.string()), mapping_for(oid)
        ).array
        for n, (name, oid) in enumerate(zip(names, oids, strict=True))
    }
    copy = pa.table(columns)
    changed = np.array(copy.column("f").to_pylist())
    changed[copy.column("k").to_numpy() == 20_000] *= -1
    wrong = copy.set_column(2, "f", pa.array(changed))
    forms = tuple(
        form_of(field.type, oid) for field, oid in zip(copy.schema, oids, strict=True)
    )
    positions = tuple(names.index(name) for name in key)
    for filtered, lake, expected in (
        (" WHERE k <> 7", copy, []),
        ("", wrong, ["changed", "missing"] if key else ["extra", "missing", "missing"]),
    ):
        side = LakeSide(
            Rows(lake, *names),
            Rows(lake, "k") if key == ("k",) else None,
            forms,
            positions,
            lambda rows: None,
        )
        source = ServerSide(
            session,
            TableStatements(f"public.many{filtered}", names, forms, positions),
        )
        result = compare(source, side, names, positions)
        assert sorted(named.kind.value for named in result.named) == expected
        assert result.blocks > 1
        if key and expected:
            shown = {str(named) for named in result.named}
            first = "" if key == ("k",) else "name=n1, "
            assert f"changed ({first}k=20000): f" in shown
            assert any("k=7)" in text and text.startswith("missing") for text in shown)
        divided = source.divide()
        assert not len(source.digests(divided).differing(source.digests(divided)))
