"""Binary values without a server: COPY's format, odd bytes, columns that mix both formats."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.columns_in_files import in_files

from wal2lake.errors import ProtocolViolation, UsageError
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.rowchanges import StageTarget, change_rows, insert_rows
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity
from wal2lake.pg import RemoteColumn, RemoteTable
from wal2lake.pgtypes import (
    BUILT_IN,
    NoDecoder,
    RemoteType,
    check_decoder,
    convert_sent,
    decodes_whole,
    format_type,
    mapping_for,
    money_type,
    numeric_typmod,
    remote_types_from_json,
    remote_types_to_json,
)
from wal2lake.pgtypes.receive.columns import sent_to_text
from wal2lake.pgtypes.receive.remote import reader_for
from wal2lake.tablesync.plan import PageRange, copies_in_binary, copy_statement
from wal2lake.wire.columnar.copybinary import BinaryCopy

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
INT4, TEXT, NUMERIC = Oid(23), Oid(25), Oid(1700)

Row = Sequence[bytes | None]


# ---- COPY --------------------------------------------------------------------------------


def copied(row: Row) -> bytes:
    values = (
        b"\xff\xff\xff\xff" if v is None else struct.pack("!i", len(v)) + v for v in row
    )
    return struct.pack("!h", len(row)) + b"".join(values)


def read_copy(messages: Sequence[bytes], columns: int, block: int) -> list[Row]:
    copy = BinaryCopy(columns)
    found: list[Row] = []
    for at in range(0, len(messages), block):
        part = messages[at : at + block]
        arrays = copy.feed(b"".join(part), [len(m) for m in part])
        found += list(zip(*(a.to_pylist() for a in arrays), strict=True))
    copy.finish()
    return found


VALUES = st.one_of(st.none(), st.binary(max_size=20))


@settings(deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.tuples(*[VALUES] * n), max_size=20).map(lambda r: (n, r))
    ),
    st.integers(1, 7),
    st.booleans(),
)
def test_copy_gives_the_rows_however_it_is_cut_into_blocks(
    sent: tuple[int, list[Row]], block: int, header_alone: bool
) -> None:
    columns, rows = sent
    messages = [*map(copied, rows), TRAILER]
    if header_alone:
        messages.insert(0, HEADER)
    else:
        messages[0] = HEADER + messages[0]
    assert read_copy(messages, columns, block) == rows


def test_a_header_extension_is_stepped_over() -> None:
    header = b"PGCOPY\n\xff\r\n\0" + struct.pack("!Ii", 1, 3) + b"abc"
    assert read_copy([header + copied([b"x"]), TRAILER], 1, 9) == [(b"x",)]


@pytest.mark.parametrize(
    "messages",
    [
        [b"PGCOPY\n\xff\n\0" + bytes(9), TRAILER],
        [b"PGCOPY\n\xff\r\n\0" + struct.pack("!Ii", 1 << 16, 0), TRAILER],
        [b"PGCOPY\n\xff\r\n\0" + struct.pack("!Ii", 0, 5), TRAILER],
        [b"PGCOPY\n\xff\r\n\0" + struct.pack("!Ii", 0, -1), TRAILER],
        [HEADER],
        [HEADER + copied([b"a"])],
        [HEADER + copied([b"a"]), TRAILER + b"x"],
        [HEADER + copied([b"a"]), TRAILER, copied([b"b"])],
        [HEADER + copied([b"a"]), TRAILER, TRAILER],
        [HEADER + copied([b"a", b"b"]), TRAILER],
        [HEADER + copied([b"a"])[:-1], TRAILER],
        [HEADER + copied([b"a"]) + b"x", TRAILER],
        [HEADER + copied([b"a"]), b"\0", TRAILER],
        [HEADER + struct.pack("!hi", 1, -2), TRAILER],
        [HEADER + struct.pack("!hi", 1, 2**31 - 1) + b"a", TRAILER],
    ],
)
@pytest.mark.parametrize("block", [1, 9])
def test_damaged_copy_data_is_refused(messages: list[bytes], block: int) -> None:
    with pytest.raises(ProtocolViolation, match="COPY data in binary format"):
        read_copy(messages, 1, block)


@given(st.lists(st.binary(max_size=30), max_size=5), st.integers(0, 3))
def test_any_bytes_are_rows_or_refused(tail: list[bytes], columns: int) -> None:
    try:
        read_copy([HEADER, *tail], columns, 2)
    except ProtocolViolation as error:
        assert error.sqlstate == "08P01"


# ---- one value ---------------------------------------------------------------------------

MOOD = RemoteType(Oid(20_000), "public.mood", "e", True)
PRICE = RemoteType(Oid(20_001), "public.price", "d", True, NUMERIC)
PAIR = RemoteType(Oid(20_002), "public.pair", "c", True, attributes=(INT4, Oid(20_000)))
MOODS = RemoteType(Oid(20_003), "public._mood", "a", True, Oid(20_000))
HSTORE = RemoteType(Oid(20_004), "ext.hstore", "x", True)
CITEXT = RemoteType(Oid(20_005), "public.citext", "x", True)
VECTOR = RemoteType(Oid(20_006), "public.vector", "b", True)
SILENT = RemoteType(Oid(20_007), "public.silent", "b", False)
BOXES = RemoteType(Oid(20_008), "public.b", "b", True, delimiter=";")
TYPES = {
    int(t.oid): t
    for t in (MOOD, PRICE, PAIR, MOODS, HSTORE, CITEXT, VECTOR, SILENT, BOXES)
}


def test_what_the_catalog_keeps_of_the_types_comes_back() -> None:
    assert remote_types_from_json(remote_types_to_json(list(TYPES.values()))) == TYPES
    assert remote_types_from_json(None) == {}
    assert pickle.loads(pickle.dumps(TYPES)) == TYPES


def test_extensions_that_are_known_are_read() -> None:
    pairs = ((b"a", b'q"\\'), (b"", None), ("é".encode(), b""))
    sent = struct.pack("!i", len(pairs)) + b"".join(copied(p)[2:] for p in pairs)
    text = reader_for(HSTORE.oid, TYPES)(sent)
    assert text == '"a"=>"q\\"\\\\", ""=>NULL, "é"=>""'
    mapping = mapping_for(HSTORE.oid, type_name=HSTORE.name)
    values = pa.array([sent, None, b"\0\0\0\0"], pa.binary())
    found = convert_sent(values, np.ones(3, np.bool_), HSTORE.oid, TYPES, mapping)
    assert found.array.to_pylist() == [[("a", 'q"\\'), ("", None), ("é", "")], None, []]
    as_text = pa.array([b'"k"=>"v"', sent, b""], pa.binary())
    some = np.array([False, True, False])
    mixed = convert_sent(as_text, some, HSTORE.oid, TYPES, mapping)
    assert mixed.array.to_pylist()[:2] == [[("k", "v")], found.array[0].as_py()]
    assert reader_for(CITEXT.oid, TYPES)("É".encode()) == "É"


def test_only_columns_that_can_be_decoded_pass_the_check() -> None:
    for known in (MOOD, PRICE, PAIR, MOODS, HSTORE, CITEXT):
        check_decoder(known.oid, TYPES)
    # Always sent as text.
    check_decoder(SILENT.oid, TYPES)
    with pytest.raises(
        NoDecoder, match=r"type public\.vector: its format is not known"
    ):
        check_decoder(VECTOR.oid, TYPES)
    with pytest.raises(NoDecoder, match="the type is not known"):
        check_decoder(30_000, TYPES)
    silent = RemoteType(Oid(20_009), "public.c", "c", True, attributes=(SILENT.oid,))
    with pytest.raises(NoDecoder, match=r"public\.silent has no binary format"):
        check_decoder(silent.oid, TYPES | {int(silent.oid): silent})


def test_every_built_in_type_has_a_decoder_or_a_reason() -> None:
    unknown = []
    for oid, known in BUILT_IN.items():
        if known.kind == "p" or known.is_array:
            continue
        try:
            check_decoder(oid, {})
        except NoDecoder:
            unknown.append(known.name)
    assert sorted(unknown) == [
        "money",
        "pg_brin_bloom_summary",
        "pg_brin_minmax_multi_summary",
        "pg_dependencies",
        "pg_mcv_list",
        "pg_ndistinct",
        "pg_node_tree",
        "regclass",
        "regcollation",
        "regconfig",
        "regdictionary",
        "regnamespace",
        "regoper",
        "regoperator",
        "regproc",
        "regprocedure",
        "regrole",
        "regtype",
    ]


@pytest.mark.parametrize(
    ("samples", "shown"),
    [
        (
            ("$1,234,567.00", "-$1,234,567.00"),
            ["$0.00", "$0.05", "-$0.05", "$99.99", "$1,000.00", "-$12,345.67"],
        ),
        (
            ("1.234.567,00 €", "-1.234.567,00 €"),
            ["0,00 €", "0,05 €", "-0,05 €", "99,99 €", "1.000,00 €", "-12.345,67 €"],
        ),
        (
            ("￥1,234,567", "-￥1,234,567"),
            ["￥0", "￥5", "-￥5", "￥9,999", "￥100,000", "-￥1,234,567"],
        ),
        (
            ("1'234'567.000 KD", "(1'234'567.000 KD)"),
            [
                *("0.000 KD", "0.005 KD", "(0.005 KD)"),
                *("9.999 KD", "100.000 KD", "(1'234.567 KD)"),
            ],
        ),
    ],
)
def test_money_is_written_as_the_publisher_writes_it(
    samples: tuple[str, str], shown: list[str]
) -> None:
    read = reader_for(790, {790: money_type(samples)})
    values = [0, 5, -5, 9999, 100_000, -1_234_567]
    assert [read(v.to_bytes(8, "big", signed=True)) for v in values] == shown
    assert read((-(2**63)).to_bytes(8, "big", signed=True)).startswith(
        samples[1][0] if not samples[1][0].isdigit() else "-"
    )
    with pytest.raises(UsageError):
        read(b"\0" * 7)


def test_a_format_of_money_that_is_not_understood_is_a_reason() -> None:
    for samples in (("", ""), ("1,234,567.00", "-1,234,568.00"), ("1", "-1")):
        with pytest.raises(NoDecoder, match="format of money is not understood"):
            check_decoder(790, {790: money_type(samples)})


def decodable() -> list[int]:
    found = [*TYPES]
    for oid in (*BUILT_IN, *TYPES):
        try:
            check_decoder(oid, TYPES)
            found.append(oid)
        except NoDecoder:
            continue
    return found


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from(decodable()), st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_are_a_value_or_a_located_failure(
    oid: int, values: list[bytes]
) -> None:
    column = pa.array([*values, None], pa.binary())
    texts, failures = sent_to_text(column, oid, TYPES)
    bad = failures.mask(len(column)).tolist()
    assert [t is None for t in texts.to_pylist()[:-1]] == bad[:-1]
    known = TYPES.get(oid)
    mapping = mapping_for(oid, type_name=known.name if known else None)
    every = np.ones(len(column), np.bool_)
    found = convert_sent(column, every, oid, TYPES, mapping)
    assert len(found.array) == len(column)
    found.array.validate(full=True)
    for failure in found.failures:
        assert failure.sqlstate in {
            "0A000", "22003", "22008", "22021", "22023", "22P02", "22P03", "42804",
            "XX000",
        }  # fmt: skip
    # Text is the definition: whatever has one is stored as it would be.
    again = convert_sent(texts, None, oid, TYPES, mapping)
    # Python has neither all dates nor one NaN that is like another.
    shown, as_shown = (
        one.array.to_string(window=20, container_window=99) for one in (found, again)
    )
    assert shown == as_shown


def test_composites_without_end_are_a_located_failure() -> None:
    value = b""
    for _ in range(3000):
        value = struct.pack("!iIi", 1, 2249, len(value)) + value
    texts, failures = sent_to_text(pa.array([value], pa.binary()), 2249, {})
    assert texts.to_pylist() == [None]
    assert failures.mask(1).tolist() == [True]


@pytest.mark.parametrize(
    ("precision", "scale"), [(6, 2), (18, 0), (18, 18), (19, 5), (38, 0), (38, 38)]
)
@settings(deadline=None)
@given(data=st.data())
def test_any_digits_are_the_decimal_that_their_text_is(
    precision: int, scale: int, data: st.DataObject
) -> None:
    numbers = st.builds(
        lambda digits, weight, sign, dscale: struct.pack(
            f"!HhHH{len(digits)}H", len(digits), weight, sign, dscale, *digits
        ),
        st.lists(st.sampled_from([0, 1, 10, 99, 100, 5000, 9999, 10000]), max_size=12),
        st.integers(-12, 12),
        st.sampled_from([0, 0x4000, 0xC000, 0xD000, 0xF000, 1]),
        st.just(48),
    )
    values = pa.array(
        data.draw(st.lists(st.none() | numbers, max_size=12)), pa.binary()
    )
    mapping = mapping_for(1700, (precision << 16 | scale) + 4)
    every = np.ones(len(values), np.bool_)
    found = convert_sent(values, every, 1700, {}, mapping)
    texts, _ = sent_to_text(values, 1700, {})
    expected = convert_sent(texts, None, 1700, {}, mapping)
    assert found.array.equals(expected.array)


# ---- whole rows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A value and the form that it came in."""

    value: bytes | None
    binary: bool = False


def numeric(text: str) -> Sent:
    """1.0 and 1.00 differ in their last field only."""
    whole, _, fraction = text.partition(".")
    return Sent(struct.pack("!HhHHH", 1, 0, 0, len(fraction), int(whole)), True)


RELATION = Relation(
    Oid(1),
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (
        Column("k", NUMERIC, -1, True),
        Column("v", INT4, -1, False),
        Column("w", MOOD.oid, -1, False),
    ),
)


def target(key_ddl: str, typmod: int = -1) -> StageTarget:
    fields = (
        FieldSpec("k", key_ddl, pg_type_oid=NUMERIC, pg_typmod=typmod),
        FieldSpec("v", "int", pg_type_oid=INT4),
        FieldSpec("w", "string", pg_type_oid=MOOD.oid, pg_type_name=MOOD.name),
    )
    return StageTarget("public", "t", "", fields, in_files(fields), ("k",), TYPES)


def batch(rows: Sequence[tuple[str, Sent | None, Sequence[Sent]]]) -> pa.RecordBatch:
    """(event, old key, new tuple) in log layout."""
    columns: dict[str, pa.Array] = {
        "commit_lsn": pa.array([1] * len(rows), pa.int64()),
        "ordinal": pa.array(range(len(rows)), pa.int64()),
        "op": pa.array([ord(op) for op, _, _ in rows], pa.uint8()),
        "old": pa.array([ord("K") if old else 0 for _, old, _ in rows], pa.uint8()),
    }
    for i in range(3):
        column = [new[i] if new else Sent(None) for _, _, new in rows]
        columns[f"c{i}"] = pa.array([s.value for s in column], pa.binary())
        if any(s.binary for s in column):
            columns[f"b{i}"] = pa.array([s.binary for s in column])
    olds = [old or Sent(None) for _, old, _ in rows]
    columns["o0"] = pa.array([s.value for s in olds], pa.binary())
    if any(s.binary for s in olds):
        columns["ob0"] = pa.array([s.binary for s in olds])
    return pa.RecordBatch.from_pydict(columns)


FIVE = Sent(b"\0\0\0\5", True)
SAD = Sent(b"sad", True)


def test_inserts_of_both_formats_are_rows() -> None:
    rows = batch(
        [
            ("I", None, [numeric("1.50"), FIVE, SAD]),
            ("I", None, [Sent(b"2.5"), Sent(b"7"), Sent(b"so so")]),
            ("I", None, [numeric("3"), Sent(None), Sent(None)]),
        ]
    )
    table, _, failures = insert_rows(rows, RELATION, target("string"))
    assert failures == ()
    assert table.to_pydict() == {
        "k": ["1.00", "2.5", "3"],
        "v": [5, 7, None],
        "w": ["sad", "so so", None],
    }


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (numeric("1.0"), numeric("1.0"), False),
        (numeric("1.0"), Sent(b"1.0"), False),
        (Sent(b"1.0"), numeric("1.0"), False),
        (numeric("1.0"), numeric("2.0"), True),
        (numeric("1.0"), Sent(b"2.0"), True),
    ],
)
@pytest.mark.parametrize("ddl", ["string", "decimal(10,2)"])
def test_a_key_has_moved_only_if_its_value_is_another_one(
    before: Sent, after: Sent, moved: bool, ddl: str
) -> None:
    typmod = -1 if ddl == "string" else (10 << 16 | 2) + 4
    rows = batch([("U", before, [after, FIVE, SAD]), ("D", before, [])])
    table, found, failures = change_rows(rows, RELATION, target(ddl, typmod))
    assert failures == ()
    assert found.moved is moved
    assert table.column("moved").to_pylist() == [moved, False]
    # A DELETE's key is the old one.
    assert str(table.column("n0")[1].as_py()) in ("1.0", "1.00")


def test_equal_bytes_of_different_formats_are_different_keys() -> None:
    # The text "0005", in binary, is the number 808464437.
    relation = Relation(
        Oid(1),
        "public",
        "t",
        ReplicaIdentity.DEFAULT,
        (Column("k", INT4, -1, True), *RELATION.columns[1:]),
    )
    fields = (FieldSpec("k", "int", pg_type_oid=INT4), *target("string").fields[1:])
    whole = StageTarget("public", "t", "", fields, in_files(fields), ("k",), TYPES)
    rows = batch([("U", Sent(b"0005"), [Sent(b"0005", True), FIVE, SAD])])
    table, found, _ = change_rows(rows, relation, whole)
    assert found.moved
    assert table.column("n0").to_pylist() == [808464437]
    assert table.column("o0").to_pylist() == [5]


def test_a_binary_value_that_cannot_be_stored_is_located() -> None:
    rows = batch(
        [
            ("I", None, [numeric("1"), FIVE, SAD]),
            ("I", None, [numeric("1"), Sent(b"\0\0\5", True), SAD]),
        ]
    )
    _, _, failures = insert_rows(rows, RELATION, target("string"))
    (failure,) = failures
    assert (failure.seq.ordinal, failure.column, failure.sqlstate) == (1, "v", "22P03")
    fields = target("string").fields
    unknown = StageTarget("public", "t", "", fields, in_files(fields), ("k",))
    _, _, failures = insert_rows(rows.slice(0, 1), RELATION, unknown)
    (failure,) = failures
    assert (failure.column, failure.sqlstate) == ("w", "0A000")
    assert failure.message.endswith("the type is not known")


# ---- the copy's statement --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "binary"),
    [
        ((INT4, MOOD.oid), True),
        ((INT4, Oid(790)), False),
        ((INT4, Oid(1033)), False),
        ((INT4, SILENT.oid), False),
        ((), False),
    ],
)
def test_copy_is_binary_only_if_every_column_can_be(
    types: tuple[Oid, ...], binary: bool
) -> None:
    columns = tuple(
        RemoteColumn(f"c{i}", oid, -1, "", "b", 0, False, None, False, False)
        for i, oid in enumerate(types)
    )
    table = RemoteTable(
        Oid(1), "s", "t", "r", ReplicaIdentity.DEFAULT, columns, (), (), (), None, 1,
        None, "p", False,
    )  # fmt: skip
    assert copies_in_binary(table, TYPES) is binary
    everything = PageRange(0, None, None)
    statement = copy_statement(table, everything, binary=binary)
    assert statement.endswith(f"(FORMAT {'binary' if binary else 'csv'})")


def test_copy_prefers_binary_where_no_value_needs_a_text_of_its_own() -> None:
    def whole(oid: int, typmod: int = -1, spark: str | None = None) -> bool:
        chosen = {format_type(oid, typmod): spark} if spark else {}
        mapping = mapping_for(oid, typmod, overrides=chosen)
        return decodes_whole(oid, {}, mapping)

    money_like = numeric_typmod(12, 2)
    assert whole(20) and whole(25) and whole(1184) and whole(3802) and whole(2950)
    assert whole(1700, money_like) and whole(1007)
    # Stored as their texts, which only the server makes for nothing.
    assert not whole(1700) and not whole(1083) and not whole(1186)
    assert not whole(20, spark="string")
    # What is wrong in one of them is shown as text, which only text format has.
    assert not whole(1009)
    assert not whole(99_999)
