"""Which values of a type are one key, as PostgreSQL's unique indexes say it."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from wal2lake.lake.port import FieldSpec
from wal2lake.model import Oid
from wal2lake.pgtypes import mapping_for, text_to_arrow
from wal2lake.pgtypes.equality import alike, loose_columns

SPANS = (
    "1 day; 24 hours; 1 mon; 30 days; 720:00; 1 year; 12 mons; 360 days; 365 days; 0;"
    " 1 mon -30 days; 1 day -24 hours; -1 day; -24:00; -1 day +00:00:01; -23:59:59;"
    " 1.5 days; 36:00; 0.000001 s; -0.000001 s; -1 mon +29 days 23:59:59.999999;"
    " -1 year -2 mons +3 days 04:05:06.7; -14 mons 3 days 04:05:06.70; infinity; -infinity;"
    " 178956970 years 7 mons 2147483647 days 2562047788:00:54.775807;"
    " -178956970 years -8 mons -2147483648 days -2562047788:00:54.775807"
)
NUMBERS = "1; 1.0; 1.00; 10; 100; 0.10; 0.1; .05; .050; 0; 0.00; -0.0; -1.50; -1.5; 1e2; 1e-2; NaN"
JSON = (
    '{"a":1.0}; {"a": 1.00}; {"a":1}; {"a":1e0}; {"b":1,"a":2}; {"a":2.0,"b":1};'
    ' {"a":1,"a":2.0,"b":1};'
    ' {"a":2,"b":10}; {"a":"1.0"}; {"a":"1.00"}; {"1.0":1}; {"1.00":1}; [1.50, "x\\"1.50"];'
    ' [1.5, "x\\"1.50"]; [1.5, "x\\"1.5"]; [1.5, "x\\\\", 1.50]; [1.50, "x\\\\", 1.5]; 1.0; 1;'
    ' "1.0"; -0; 0; 0.000; 1.05; 1.050; 105; "A"; "a"; null; true; [[]]; [{}]; []; {}'
)


def braced(values: str) -> str:
    """One array of each."""
    found = [value.replace("\\", "\\\\").replace('"', '\\"') for value in split(values)]
    return "; ".join(f'{{"{value}",NULL}}' for value in found)


def split(values: str) -> list[str]:
    return values.split("; ")


VALUES = {
    "interval": SPANS,
    "interval(0)": "1.2 s; 1 s; 1.6 s; 2 s",
    "interval[]": braced(SPANS) + "; {}",
    "numeric": NUMBERS,
    "numeric(6,2)": "1; 1.0; 1.00; 2",
    "numeric(50,3)": "1; 1.0; 1.0000; 2",
    "numeric[]": braced(NUMBERS) + "; {1,1.0}; {1.0,1}; {{1.0}}; {{1}}",
    "numrange": "[1.0,2.00); [1,2); [1.00,2.0]; (,1.0); (,1); empty; (1,1); [-0.50,1); [-.5,1)",
    "nummultirange": "{[1.0,2.00),[3,4.0)}; {[1,2),[3,4)}; {[1,2),[3,4]}; {}",
    "jsonb": JSON,
    "jsonb[]": braced(JSON),
    "float4": "0; -0; 1.5; NaN; nan",
    "float8": "0; -0; 1.50; 1.5; NaN; Infinity",
    "float8[]": "{0}; {-0}; {NaN}; {0,NULL}; {NULL,0}; {-0,NULL}",
    "char(4)": "a; a ; ab",
    "bpchar": "a; a ; a  b; ab",
    "bpchar[]": "{a}; {a }; {'a '}; {\"a \"}; {b}",
    "varchar": "a; a ; A",
    "text": "a; a ; A; 1.0; 1.00",
    "text[]": "{1.0}; {1.00}; {a}; {A}",
    "timetz": "12:00+01; 11:00+00; 11:00Z; 12:00:00+01:00; 24:00+00; 00:00+00",
    "time": "12:00; 12:00:00.0; 24:00; 00:00",
    "timestamptz": "2024-01-01 12:00+01; 2024-01-01 11:00Z; 2024-01-01 11:00:00.5+00",
    "date": "2024-01-01; Jan 1 2024; 2024-01-02",
    "bit varying": "1; 10; 01",
    "bit(2)": "10; 01",
    "inet": "10.0.0.1; 10.0.0.1/32; 10.0.0.1/8; ::1; 0:0:0:0:0:0:0:1",
    "cidr": "10.0.0.0/8; 10/8; 10.0.0.0/9",
    "macaddr": "08:00:2b:01:02:03; 08002b010203; 08-00-2b-01-02-04",
    "uuid": "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11; a0eebc999c0b4ef8bb6d6bb9bd380a11",
    "bytea": "\\x41; A; \\x42",
    "money": "1; 1.00; $1; 2",
    "int4range": "[1,3); [1,2]; (0,3); [1,4)",
    "tstzrange": "[2024-01-01 00:00Z,); [2024-01-01 01:00+01,); (,)",
    "tsvector": "'b' 'a'; a b; a:1 b",
    "int4[]": "{1,2}; [0:1]={1,2}; [1:2]={1,2}",
    "bool": "t; true; f",
    "oid": "1; 01; 2",
    "pg_lsn": "0/1; 0/01; 0/2",
    "name": "a; A; a ",
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_one_key_where_postgresql_has_one(
    connection: psycopg.Connection[Any], kind: str
) -> None:
    """Each value is put beside the others, into a table with a primary key and one without."""
    connection.execute(f"create temporary table taken (at int, v {kind} primary key)")
    connection.execute(f"create temporary table given (at int, v {kind})")
    first = []
    for at, value in enumerate(split(VALUES[kind])):
        connection.execute("insert into given values (%s, %s)", (at, value))
        try:
            connection.execute("insert into taken values (%s, %s)", (at, value))
            first.append(at)
        except psycopg.errors.UniqueViolation:
            (one,) = connection.execute(
                "select t.at from taken t, given g where g.at = %s and t.v = g.v", (at,)
            )
            first.append(one[0])
    texts = connection.execute(
        "select format('%s', v) from given order by at"
    ).fetchall()
    ((oid, typmod),) = connection.execute(
        "select atttypid::int8, atttypmod from pg_attribute"
        " where attrelid = 'given'::regclass and attname = 'v'"
    ).fetchall()
    mapping = mapping_for(oid, typmod)
    field = FieldSpec("v", mapping.spark_ddl, pg_type_oid=Oid(oid), pg_typmod=typmod)
    sent = pa.array([text.encode() for (text,) in texts], pa.binary())
    stored = text_to_arrow(sent, mapping)
    # What the column cannot hold comes to nobody.
    bad = [False] * len(texts) if stored.bad is None else stored.bad.to_pylist()
    held = [at for at, wrong in enumerate(bad) if not wrong]
    values = pa.chunked_array([stored.array.take(pa.array(held))])
    (found,) = alike([values], loose_columns([field], (0,)))
    keys = [str(value) for value in found.to_pylist()]
    ours = [held[keys.index(key)] for key in keys]
    assert [(texts[a][0], texts[b][0]) for a, b in zip(held, ours, strict=True)] == [
        (texts[at][0], texts[first[at]][0]) for at in held
    ]
