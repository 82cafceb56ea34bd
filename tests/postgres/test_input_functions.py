"""Texts as values of another type: what PostgreSQL's input functions make of them, we store."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.convert import SentColumn, convert_column, mapping_of
from wal2lake.model import Oid
from wal2lake.pgtypes import arrow_to_text, mapping_for, parse_type_name

TEXTS = (
    "",
    " 42 ",
    "-7",
    "1.5",
    "1e2",
    ".5",
    "-0.0",
    "0x1F",
    "1_000",
    "3000000000",
    "99999999999999999999",
    "NaN",
    "Infinity",
    "t",
    "yes",
    "of",
    "2026-01-02",
    "2026-01-02 03:04:05",
    "2026-01-02 03:04:05.123456+02",
    "2026-02-30",
    "04:05",
    "04:05:06.5",
    "24:00:00",
    "25:61",
    "04:05:06+02:30",
    "{1,NULL}",
    "{a,b}",
    '{"b": 1.50, "a": [1e2, null], "b": "x"}',
    "{bad",
    '"text"',
    "A0EEBC999C0B4EF8BB6D6BB9BD380A11",
    "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
    "no uuid",
    "1 day 02:00:00",
    "P1Y2M",
    "30 mons -5 days 04:00:00.5",
    "-1 years -1 mons +3 days -01:00:00",
    "-2 days 30:00:00",
    "10.1.0.0/16",
    "10.1.2.3",
    "2001:db8::1/64",
    "08:00:2B:01:02:03",
    "08002b010203",
    "101",
    "x1F",
    "\\x01ff",
    "a" * 70,
    "ä" * 40,
)

TYPES = (
    "smallint",
    "int",
    "bigint",
    "numeric",
    "numeric(12,2)",
    "float8",
    "bool",
    "text",
    "varchar(5)",
    "char(5)",
    "name",
    "date",
    "timestamp",
    "timestamptz",
    "time",
    "timetz",
    "interval",
    "uuid",
    "json",
    "jsonb",
    "inet",
    "cidr",
    "macaddr",
    "varbit",
    "oid",
    "bytea",
    "int[]",
    "text[]",
    "uuid[]",
)

REFUSED_HERE = frozenset(
    (
        # A column cannot hold it (docs/arch/11_types.md).
        ("numeric(12,2)", "NaN"),
        ("float8", "99999999999999999999"),
        ("date", "Infinity"),
        ("timestamp", "Infinity"),
        ("timestamptz", "Infinity"),
        # Spellings that only a person would write.
        ("float8", "0x1F"),
        ("cidr", "1.5"),
        ("cidr", "0x1F"),
        ("cidr", "101"),
        ("macaddr", "2026-01-02"),
        ("macaddr", "2026-02-30"),
        ("interval", " 42 "),
        ("interval", "-7"),
        ("interval", "1.5"),
        ("interval", ".5"),
        ("interval", "-0.0"),
        ("interval", "3000000000"),
        ("interval", "101"),
        ("interval", "P1Y2M"),
    )
)
"""What is refused is safe: the subscription stops there."""

DATES = frozenset(("22007", "22008", "22009", "22015", "22023", "0A000"))
"""Which of them a text that is no date deserves is a matter of its parser."""


def stored(target: str, text: str) -> tuple[str | None, str | None]:
    """The text that is shown afterwards, or the SQLSTATE."""
    oid, typmod = parse_type_name(target)
    ddl = mapping_for(int(oid), typmod).spark_ddl
    field = FieldSpec("v", ddl, pg_type_oid=Oid(oid), pg_typmod=typmod)
    sent = SentColumn(pa.array([text.encode()]), None, Oid(25), -1)
    found = convert_column(sent, field, mapping_of(field))
    if found.bad:
        return None, found.bad[0].sqlstate
    (value,) = arrow_to_text(found.array, int(oid), typmod)
    return (value if isinstance(value, str) or value is None else value.decode()), None


@pytest.mark.parametrize("target", TYPES)
def test_text_becomes_what_the_input_function_of_the_target_makes_of_it(
    connection: psycopg.Connection[Any], target: str
) -> None:
    different = []
    for text in TEXTS:
        ours = stored(target, text)
        (refused,) = connection.execute(
            "select sql_error_code from pg_input_error_info(%s, %s)", (text, target)
        ).fetchone() or (None,)
        if refused is not None:
            theirs: tuple[str | None, str | None] = (None, refused)
        else:
            row = connection.execute(
                "select format('%%s', x) from (select %s::text::"
                + target
                + " as x) as q",
                (text,),
            ).fetchone()
            assert row is not None
            theirs = (row[0], None)
        if ours == theirs or {ours[1], theirs[1]} <= DATES:
            continue
        if (target, text) in REFUSED_HERE:
            assert ours[1] is not None
            continue
        different.append((text, ours, theirs))
    assert not different, "\n".join(map(str, different))
