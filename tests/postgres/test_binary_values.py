"""A value that came in binary format is stored exactly as if it had come as text.

The server sends each value twice, by COPY in both formats; the text format is the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import pq
from tests.examples import examples
from tests.fakes.values import TYPES, UGLY

from wal2lake.errors import ApplyError
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.convert import ConversionRules
from wal2lake.model import Coercion, Lsn, Oid
from wal2lake.pg import Publisher, Session, connect
from wal2lake.pgtypes import (
    FIRST_NORMAL_OID,
    NoDecoder,
    RemoteType,
    RemoteTypes,
    ValuePolicies,
    ValuePolicy,
    check_decoder,
    coerce,
    convert_sent,
    mapping_for,
    remote_types_from_json,
    remote_types_to_json,
    text_to_arrow,
    text_to_binary,
)
from wal2lake.pgtypes.encode.binary import FIXED, ITS_OWN_TEXT
from wal2lake.pgtypes.encode.values import FROM_TEXT
from wal2lake.pgtypes.moments import numbered
from wal2lake.pgtypes.receive.columns import sent_to_text
from wal2lake.pgtypes.registry.builtin import RANGES
from wal2lake.tablesync.copy import CopyTask, _columns, _convert
from wal2lake.testing.postgres import PostgresServer
from wal2lake.wire.columnar.copybinary import BinaryCopy

VERSIONS = (16, 18)

WRITTEN = {17, *FIXED, *ITS_OWN_TEXT, *FROM_TEXT, *RANGES}
"""Types whose values are written in binary, too."""
BEYOND = re.compile(r"2942[4-7]\d-")
"""Timestamps that a table does not have."""


def copy_in(session: Session, sql: str, data: bytes) -> None:
    """What psql does for \\copy."""
    pgconn = session.pgconn
    assert pgconn.exec_(sql.encode()).status == pq.ExecStatus.COPY_IN
    pgconn.put_copy_data(data)
    pgconn.put_copy_end()
    while (result := pgconn.get_result()) is not None:
        assert result.status == pq.ExecStatus.COMMAND_OK, result.error_message


class Source:
    """A database with types of its own, and what the node knows of them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        # As the catalog keeps them.
        self.types: RemoteTypes = remote_types_from_json(
            remote_types_to_json(Publisher(session).remote_types())
        )

    def sent(
        self, type_name: str, values: list[str | None]
    ) -> tuple[int, int, str, pa.Array, pa.Array]:
        """(type, typmod, its name, the values as text, the values in binary)."""
        self.session.execute("drop table if exists pg_temp.v")
        self.session.execute(f"create temporary table v (n serial, v {type_name})")
        payload = "".join(f"{_csv(v)}\n" for v in values)
        copy_in(self.session, "copy v (v) from stdin (format csv)", payload.encode())
        rows = self.session.query(
            "select a.atttypid, a.atttypmod, case when a.atttypid < 10000 then"
            " t.typname else n.nspname || '.' || t.typname end"
            " from pg_attribute a join pg_type t on t.oid = a.atttypid"
            " join pg_namespace n on n.oid = t.typnamespace"
            " where a.attrelid = 'pg_temp.v'::regclass and a.attname = 'v'"
        )
        oid, typmod, name = rows[0]
        query = "copy (select v from v order by n) to stdout"
        text = b"".join(
            self.session.copy_out(f"{query} (format csv, force_quote *)", block_bytes=1)
        )
        copy = BinaryCopy(1)
        parts = [
            copy.feed(data, sizes)[0]
            for data, sizes in self.session.copy_out_messages(
                f"{query} (format binary)", block_bytes=200
            )
        ]
        copy.finish()
        return (
            int(str(oid)),
            int(str(typmod)),
            str(name),
            pa.array(_uncsv(text.decode()), pa.string()).cast(pa.binary()),
            pa.concat_arrays(parts),
        )


def _csv(value: str | None) -> str:
    return "" if value is None else '"' + value.replace('"', '""') + '"'


def _uncsv(text: str) -> list[str | None]:
    """Every value is quoted and NULL is not; one column."""
    found: list[str | None] = []
    at = 0
    while at < len(text):
        if text[at] == "\n":
            found.append(None)
            at += 1
            continue
        end = at + 1
        value = ""
        while True:
            stop = text.index('"', end)
            value += text[end:stop]
            if text[stop + 1] != '"':
                break
            value += '"'
            end = stop + 2
        found.append(value)
        at = stop + 2
    return found


@pytest.fixture(scope="module", params=VERSIONS)
def source(
    request: pytest.FixtureRequest,
    postgres_server: Callable[[int], PostgresServer],
) -> Iterator[Source]:
    server = postgres_server(request.param)
    name = f"binary_values_{request.param}"
    server.psql(f"create database {name}")
    with connect(server.conninfo(name), application_name="test") as session:
        session.execute("set search_path = public")
        session.execute(TYPES)
        yield Source(session)
    server.psql(f"drop database {name} with (force)")


def assert_written(oid: int, text: pa.Array, binary: pa.Array) -> None:
    """The other direction: what pgoutput sends is the server's, or stays text."""
    rows = len(text)
    for first, count in ((0, rows), *((row, 1) for row in range(rows))):
        given = text_to_binary(text.slice(first, count), oid)
        if given is not None:
            assert given.equals(binary.slice(first, count))
        elif count == 1 and oid in WRITTEN:
            assert BEYOND.search(text[first].as_py().decode())


def assert_same(source: Source, type_name: str, values: list[str | None]) -> None:
    oid, typmod, name, text, binary = source.sent(type_name, values)
    check_decoder(oid, source.types)
    if oid < FIRST_NORMAL_OID:
        assert_written(oid, text, binary)
    shown, failures = sent_to_text(binary, oid, source.types)
    assert not failures
    assert shown.to_pylist() == text.to_pylist()
    every = np.ones(len(text), np.bool_)
    some = np.arange(len(text)) % 2 == 0
    mixed = pa.array(
        [b if s else t for s, t, b in zip(some, text, binary, strict=True)], pa.binary()
    )
    choices: list[dict[str, str] | None] = [None]
    if type_name == "numeric":
        choices += [{"numeric": "decimal(38,10)"}, {"numeric": "double"}]
    if type_name in ("oid", "bigint", "integer"):
        choices += [{type_name: "bigint"}, {type_name: "string"}]
    if type_name in ("double precision", "boolean", "date", "uuid", "bytea"):
        choices += [{type_name: "string"}]
    for chosen in choices:
        mapping = mapping_for(oid, typmod, type_name=name, overrides=chosen)
        expected = text_to_arrow(text, mapping)
        for sent, flags in ((binary, every), (mixed, some)):
            found = convert_sent(sent, flags, oid, source.types, mapping)
            assert found.array.type == expected.array.type
            assert _exact(found.array) == _exact(expected.array)
            assert [
                (f.sqlstate, f.message, f.rows.tolist()) for f in found.failures
            ] == [(f.sqlstate, f.message, f.rows.tolist()) for f in expected.failures]
            if expected.bad is None:
                assert found.bad is None
            else:
                assert found.bad is not None and found.bad.equals(expected.bad)
        for policy in (ValuePolicy.NULL, ValuePolicy.CLAMP):
            model = coerce(text, None, oid, source.types, mapping, policy)
            for sent, flags in ((binary, every), (mixed, some)):
                coerced = coerce(sent, flags, oid, source.types, mapping, policy)
                assert _exact(coerced.array) == _exact(model.array)
                assert [
                    (c.reason, c.rows.tolist(), c.example) for c in coerced.changes
                ] == [(c.reason, c.rows.tolist(), c.example) for c in model.changes]
                assert len(coerced.failures) == len(model.failures)


def _exact(array: pa.Array) -> list[str]:
    """repr tells -0.0 from 0.0 and takes NaN for NaN."""
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        array = array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64())
    return [repr(value) for value in numbered(array).to_pylist()]


@pytest.mark.postgres
@pytest.mark.parametrize("type_name", UGLY)
def test_binary_values_are_stored_as_their_text_is(
    source: Source, type_name: str
) -> None:
    assert_same(source, type_name, [None, *UGLY[type_name], None])
    assert_same(source, type_name, [v for v in UGLY[type_name] if v != "NaN"])


# ---- any values --------------------------------------------------------------------------

_SPECIAL_NUMBERS = st.sampled_from(["NaN", "Infinity", "-Infinity"])
_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def _integers(bits: int) -> st.SearchStrategy[str]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1).map(str)


@st.composite
def _numerics(draw: st.DrawFn, whole: int, fraction: int) -> str:
    digits = st.text("0123456789")
    left = draw(digits.map(lambda t: t[:whole])) or "0"
    right = draw(digits.map(lambda t: t[:fraction]))
    sign = draw(st.sampled_from(["", "-"]))
    zeros = "0" * draw(st.integers(0, max(whole - len(left), 0)))
    return f"{sign}{left}{zeros}" + (f".{right}" if right else "")


def _moments(suffix: str) -> st.SearchStrategy[str]:
    return st.one_of(
        st.datetimes().map(lambda d: f"{d.isoformat(' ')}{suffix}"),
        st.builds(
            lambda year, second, era: f"{year}-02-03 04:05:{second:09.6f}{suffix}{era}",
            st.integers(10_000, 294_275),
            st.floats(0, 59.9),
            st.just(""),
        ),
        st.integers(1, 4713).map(lambda y: f"{y:04d}-12-31 00:00:00{suffix} BC"),
        st.sampled_from(["infinity", "-infinity"]),
    )


def _literal(parts: list[str | None], opening: str, closing: str) -> str:
    quoted = (
        "NULL" if p is None else '"' + p.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for p in parts
    )
    return opening + ",".join(quoted) + closing


def _intervals() -> st.SearchStrategy[str]:
    return st.builds(
        lambda m, d, us: f"{m} mons {d} days {us} microseconds",
        st.integers(-(2**31) + 1, 2**31 - 1),
        st.integers(-(2**31) + 1, 2**31 - 1),
        st.integers(-(10**15), 10**15),
    )


def _ranges(number: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda a, b, o, c: f"{o}{min(a, b)},{max(a, b)}{c}",
        number,
        number,
        st.sampled_from("[("),
        st.sampled_from("])"),
    )


_DATES = st.one_of(
    st.dates().map(str),
    st.integers(1, 4712).map(lambda y: f"{y:04d}-06-07 BC"),
    st.integers(10_000, 5_874_896).map(lambda y: f"{y}-06-07"),
)
_LEXEMES = st.text("ab'\\ :&\u00e9", min_size=1, max_size=4).map(
    lambda t: "'" + t.replace("\\", "\\\\").replace("'", "''") + "'"
)
_OPERANDS = st.builds(
    lambda lexeme, flags: f"{lexeme}:{flags}" if flags else lexeme,
    _LEXEMES,
    st.sampled_from(["", "*", "A", "*BD", "C"]),
)
_TSQUERIES = st.recursive(
    _OPERANDS,
    # To the right of an operator its own kind would have the text of another tree.
    lambda one: st.one_of(
        one.map(lambda q: f"!({q})"),
        st.builds(
            lambda left, sign, right: f"({left}) {sign} {right}",
            one,
            st.sampled_from(["&", "|", "<->", "<3>"]),
            st.one_of(_OPERANDS, one.map(lambda q: f"!({q})")),
        ),
        st.builds(lambda left, right: f"{left} <2> ({right})", _OPERANDS, one),
        st.builds(lambda left, right: f"{left} & ({right} | {left})", one, _OPERANDS),
    ),
    max_leaves=6,
)
_TSVECTORS = st.lists(
    st.builds(
        lambda lexeme, places: f"{lexeme}:{','.join(places)}" if places else lexeme,
        _LEXEMES,
        st.lists(
            st.builds(
                lambda n, weight: f"{n}{weight}",
                st.integers(1, 16_383),
                st.sampled_from("ABCD"),
            ),
            max_size=3,
        ),
    ),
    max_size=4,
).map(" ".join)
_ANY: dict[str, st.SearchStrategy[str]] = {
    "smallint": _integers(16),
    "integer": _integers(32),
    "bigint": _integers(64),
    "real": st.floats(width=32).map(lambda f: repr(f)),
    "double precision": st.floats().map(lambda f: repr(f)),
    "numeric": st.one_of(_numerics(1000, 1000), _SPECIAL_NUMBERS),
    "numeric(6,2)": st.one_of(_numerics(4, 2), st.just("NaN")),
    "numeric(18,7)": _numerics(11, 7),
    "numeric(21,20)": _numerics(1, 20),
    "numeric(38,17)": st.one_of(_numerics(21, 17), st.just("NaN")),
    "date": _DATES,
    "timestamp without time zone": _moments(""),
    "timestamp with time zone": _moments("+00"),
    "time without time zone": st.times().map(str),
    "time with time zone": st.builds(
        lambda t, minutes: f"{t}{minutes // 60:+03d}:{minutes % 60:02d}",
        st.times(),
        st.integers(-15 * 60, 15 * 60),
    ),
    "interval": _intervals(),
    "text": _TEXT,
    "bytea": st.binary().map(lambda b: "\\x" + b.hex()),
    "uuid": st.uuids().map(str),
    "jsonb": st.recursive(
        st.one_of(
            st.integers().map(str),
            st.sampled_from(["null", "true", "1.500", '"\\u00e9\\n"']),
        ),
        lambda one: st.lists(one, max_size=4).map(lambda p: f"[{','.join(p)}]"),
    ),
    "money": st.integers(-(2**63), 2**63 - 1).map(
        lambda n: f"{'-' * (n < 0)}{abs(n) // 100}.{abs(n) % 100:02}"
    ),
    "tsquery": _TSQUERIES,
    "tsvector": _TSVECTORS,
    "money[]": st.lists(st.one_of(st.none(), _integers(32))).map(
        lambda p: _literal(p, "{", "}")
    ),
    "inet": st.one_of(
        st.ip_addresses().map(str),
        st.builds(
            lambda a, bits: f"{a}/{bits}", st.ip_addresses(v=6), st.integers(0, 128)
        ),
        st.lists(
            st.sampled_from(["0", "1", "ffff", "a0b"]), min_size=8, max_size=8
        ).map(":".join),
    ),
    "bit varying": st.text("01"),
    "int4range": _ranges(st.integers(-(2**30), 2**30)),
    "numrange": _ranges(st.integers()),
    "integer[]": st.lists(st.one_of(st.none(), _integers(32))).map(
        lambda p: _literal(p, "{", "}")
    ),
    "text[]": st.lists(st.one_of(st.none(), _TEXT)).map(
        lambda p: _literal(p, "{", "}")
    ),
    "pair": st.tuples(_integers(32), _TEXT).map(lambda p: _literal(list(p), "(", ")")),
    "pair[]": st.lists(
        st.tuples(_integers(32), _TEXT).map(lambda p: _literal(list(p), "(", ")"))
    ).map(lambda p: _literal(list(p), "{", "}")),
    "point": st.tuples(st.floats(), st.floats()).map(lambda p: f"({p[0]!r},{p[1]!r})"),
}


@pytest.mark.postgres
@pytest.mark.parametrize("type_name", _ANY)
def test_any_values_are_stored_as_their_text_is(source: Source, type_name: str) -> None:
    @settings(
        max_examples=examples(25),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(st.one_of(st.none(), _ANY[type_name]), min_size=1, max_size=40))
    def check(values: list[str | None]) -> None:
        assert_same(source, type_name, values)

    check()


# ---- what has no decoder -------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("type_name", "reason"),
    [
        ("regclass", "type regclass: its text is a name in the publisher's catalog"),
        ("regtype[]", "type regtype: "),
        ("opaque", "type regrole: "),
        ("aclitem[]", "type aclitem has no binary format, and is part of"),
    ],
)
def test_a_type_without_decoder_is_named_with_the_reason(
    source: Source, type_name: str, reason: str
) -> None:
    source.session.execute(
        "drop type if exists opaque; create type opaque as (a integer, m regrole)"
    )
    types = remote_types_from_json(
        remote_types_to_json(Publisher(source.session).remote_types())
    )
    oid = int(str(source.session.value(f"select '{type_name}'::regtype::oid")))
    with pytest.raises(NoDecoder, match=reason.replace("[]", r"\[\]")):
        check_decoder(oid, types)


@pytest.mark.postgres
def test_a_type_that_is_always_sent_as_text_needs_no_decoder(source: Source) -> None:
    source.session.execute(
        "drop domain if exists grant_item; create domain grant_item as aclitem"
    )
    types = {int(t.oid): t for t in Publisher(source.session).remote_types()}
    for name in ("aclitem", "grant_item"):
        oid = int(str(source.session.value(f"select '{name}'::regtype::oid")))
        assert has_decoder(oid, types), name
    of_arrays = int(str(source.session.value("select 'aclitem[]'::regtype::oid")))
    assert not has_decoder(of_arrays, types)


def has_decoder(oid: int, types: Mapping[int, RemoteType]) -> bool:
    """Or needs none."""
    try:
        check_decoder(oid, types)
    except NoDecoder:
        return False
    return True


@pytest.mark.postgres
def test_row_types_of_tables_are_known_only_if_a_column_has_them(
    source: Source,
) -> None:
    names = {t.name for t in Publisher(source.session).remote_types()}
    assert "public.line_of" in names
    assert "public.unused_row_type" not in names
    assert "public._unused_row_type" not in names


# ---- the initial copy ----------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_a_copy_in_binary_is_the_copy_as_text(source: Source, rows: int) -> None:
    session = source.session
    session.execute(
        "drop table if exists pg_temp.c; create temporary table c (id integer,"
        " n numeric(9,3), t text, m mood, a integer[], ts timestamptz);"
        " insert into c select i, i / 7.0, repeat('x', i % 50), case when i % 3 > 0"
        " then 'so so'::mood end, array[i, null], '2024-01-01'::timestamptz"
        f" + i * interval '1 s' from generate_series(1, {rows}) i"
    )
    attributes = session.query(
        "select attname, atttypid, atttypmod from pg_attribute"
        " where attrelid = 'pg_temp.c'::regclass and attnum > 0 order by attnum"
    )
    names = tuple(str(a[0]) for a in attributes)
    oids = tuple(Oid(int(str(a[1]))) for a in attributes)
    fields = tuple(
        FieldSpec(
            name,
            mapping_for(oid, int(str(a[2]))).spark_ddl,
            pg_type_oid=oid,
            pg_typmod=int(str(a[2])),
        )
        for name, oid, a in zip(names, oids, attributes, strict=True)
    )
    found = []
    for binary in (False, True):
        task = CopyTask(
            conninfo="",
            application_name="",
            snapshot="",
            statement=(
                "copy (select * from c order by id) to stdout"
                f" (format {'binary' if binary else 'csv'})"
            ),
            columns=names,
            location="",
            fields=fields,
            physical_fields=(),
            row_group_bytes=1,
            table="c",
            key=("id",),
            binary_types=oids if binary else None,
            types=source.types,
        )
        blocks = [
            _convert(task, columns, {}, []) for columns in _columns(task, session)
        ]
        found.append(pa.concat_tables(blocks).to_pylist() if blocks else [])
    assert found[0] == found[1]
    assert len(found[1]) == rows


@pytest.mark.postgres
@pytest.mark.parametrize("binary", [False, True])
def test_a_copied_value_above_the_limit_is_refused_or_null(
    source: Source, binary: bool
) -> None:
    limit = 3 << 20
    session = source.session
    # In text format two digits for each byte, and \x.
    longest = limit if binary else limit // 2 - 1
    session.execute(
        "drop table if exists pg_temp.c; create temporary table c (id integer, b bytea);"
        f"insert into c select i, decode(repeat('ab', {longest} + i), 'hex')"
        " from generate_series(0, 1) i"
    )
    types = ((Oid(23), -1), (Oid(17), -1))

    def copy(policies: str) -> tuple[list[int | None], list[Coercion]]:
        task = CopyTask(
            conninfo="",
            application_name="",
            snapshot="",
            statement="copy (select * from c order by id) to stdout"
            f" (format {'binary' if binary else 'csv'})",
            columns=("id", "b"),
            location="",
            fields=(
                FieldSpec("id", "int", pg_type_oid=Oid(23)),
                FieldSpec("b", "binary", pg_type_oid=Oid(17)),
            ),
            physical_fields=(),
            row_group_bytes=1,
            table="c",
            key=("id",),
            binary_types=(Oid(23), Oid(17)) if binary else None,
            column_types=types,
            lsn=Lsn(0x16),
            rules=ConversionRules(ValuePolicies.parse(policies), max_value_bytes=limit),
        )
        found: list[Coercion] = []
        blocks = [_convert(task, c, {}, found) for c in _columns(task, session)]
        column = pa.concat_tables(blocks).column("b").to_pylist()
        return [None if b is None else len(b) for b in column], found

    reason = f"value is longer than apply.max_value_bytes ({limit} bytes)"
    with pytest.raises(ApplyError) as caught:
        copy("")
    assert (caught.value.sqlstate, caught.value.message) == ("54000", reason)
    assert caught.value.context == "COPY c, column b, snapshot at 0/16"
    session.execute("rollback")
    lengths, found = copy("bytea = null")
    assert lengths == [longest, None]
    (one,) = found
    assert (one.column, one.policy, one.reason, one.count) == ("b", "null", reason, 1)
    assert (one.first_lsn, one.last_lsn, len(one.example)) == (
        Lsn(0x16),
        Lsn(0x16),
        103,
    )
