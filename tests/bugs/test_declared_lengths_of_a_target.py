"""Values for a column that is declared shorter here than at the source. They were stored whole,
where PostgreSQL's subscriber stops with 22001."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.convert import (
    ConversionRules,
    Converted,
    SentColumn,
    convert_column,
    mapping_of,
)
from wal2lake.model import Oid
from wal2lake.pgtypes import (
    TypeMapping,
    ValuePolicy,
    mapping_for,
    parse_type_name,
    text_to_arrow,
)
from wal2lake.pgtypes.receive import columns as receive_columns


def spec(type_name: str) -> FieldSpec:
    oid, typmod = parse_type_name(type_name)
    ddl = mapping_for(int(oid), typmod).spark_ddl
    return FieldSpec("v", ddl, pg_type_oid=Oid(oid), pg_typmod=typmod)


def converted(
    target: str,
    *values: bytes | None,
    source: str = "text",
    policy: ValuePolicy = ValuePolicy.ERROR,
    binary: bool = False,
) -> Converted:
    """The values as they come from a column declared as ``source``."""
    oid, typmod = parse_type_name(source)
    array = pa.array(values, pa.binary())
    flags = pa.array([binary] * len(values)).to_numpy(zero_copy_only=False)
    sent = SentColumn(array, flags if binary else None, Oid(oid), typmod)
    field = spec(target)
    return convert_column(sent, field, mapping_of(field), policy, ConversionRules())


@pytest.mark.parametrize(
    ("target", "value", "stored"),
    [
        ("varchar(1)", "a", "a"),
        ("varchar(1)", "a  ", "a"),
        ("varchar(2)", "äö", "äö"),
        ("varchar(2)", None, None),
        ("varchar", "long", "long"),
        ("char(3)", "a", "a  "),
        ("char(3)", "abc   ", "abc"),
        ("bit(3)", "101", "101"),
        ("varbit(3)", "1", "1"),
        ("varchar(1)[]", '{a,"b ",NULL}', ["a", "b", None]),
    ],
)
def test_what_fits_is_stored_as_the_input_function_makes_it(
    target: str, value: str | None, stored: object
) -> None:
    found = converted(target, None if value is None else value.encode())
    assert found.bad == ()
    assert found.array.to_pylist() == [stored]


@pytest.mark.parametrize(
    ("target", "value", "sqlstate", "message"),
    [
        ("varchar(1)", "ab", "22001", "value too long for type character varying(1)"),
        ("varchar(1)", "äö", "22001", "value too long for type character varying(1)"),
        ("char(2)", "abc", "22001", "value too long for type character(2)"),
        ("varbit(2)", "101", "22001", "bit string too long for type bit varying(2)"),
        ("bit(2)", "1", "22026", "bit string length 1 does not match type bit(2)"),
        (
            "varchar(1)[]", "{a,bc}", "22001",
            "value too long for type character varying(1)",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_in_postgresqls_words(
    target: str, value: str, sqlstate: str, message: str
) -> None:
    found = converted(target, b"{}" if "[" in target else None, value.encode())
    assert [(b.row, b.sqlstate, b.message) for b in found.bad] == [
        (1, sqlstate, message)
    ]
    assert found.array.to_pylist()[1] is None


def test_policies_hold_for_lengths() -> None:
    cut = converted("varchar(2)", "äöü".encode(), b"ok", policy=ValuePolicy.CLAMP)
    assert cut.bad == ()
    assert cut.array.to_pylist() == ["äö", "ok"]
    assert cut.changes[0].reason == "value too long for type character varying(2)"
    cut = converted("varchar(1)[]", b"{ab,c}", policy=ValuePolicy.CLAMP)
    assert cut.array.to_pylist() == [["a", "c"]]
    none = converted("varchar(2)", b"abc", b"ok", policy=ValuePolicy.NULL)
    assert (none.bad, none.array.to_pylist()) == ((), [None, "ok"])


def test_binary_values_are_held_to_it_too() -> None:
    found = converted("varchar(30)", bytes(16), None, source="uuid", binary=True)
    assert [b.sqlstate for b in found.bad] == ["22001"]
    assert converted("varchar(36)", bytes(16), source="uuid", binary=True).bad == ()


def test_the_same_declaration_on_both_sides_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[TypeMapping] = []

    def spy(values: pa.Array, mapping: TypeMapping) -> object:
        asked.append(mapping)
        return text_to_arrow(values, mapping)

    monkeypatch.setattr(receive_columns, "text_to_arrow", spy)
    for source in ("varchar(5)", "text"):
        converted("varchar(5)", b"abc", source=source)
    same, other = asked
    assert (same.length, other.length is None) == (None, False)
