"""Values of another type as PostgreSQL's input functions have them: numbers with more than 28
digits ended the batch with an internal error; addresses that embed IPv4 were written as nobody
else writes them; of numbers with another scale than the target's none was looked at."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.bugs.test_declared_lengths_of_a_target import converted

from wal2lake.errors import UsageError
from wal2lake.pgtypes import numeric_typmod
from wal2lake.pgtypes.decode.conversion import Failures
from wal2lake.pgtypes.decode.inputs import read_as
from wal2lake.pgtypes.decode.jsontext import canonical_json

NUMERIC, INET, CIDR = 1700, 869, 650


def read(text: str, type_oid: int, typmod: int = -1) -> str:
    """Its value, or the SQLSTATE."""
    failures = Failures()
    found = read_as(pa.array([text]), type_oid, typmod, failures)
    done = failures.conclude(found)
    return done.failures[0].sqlstate if done.failures else found[0].as_py()


@pytest.mark.parametrize(
    ("text", "precision", "scale", "expected"),
    [
        ("9223372036854775807", 40, 10, "9223372036854775807.0000000000"),
        ("1" * 39, 39, 0, "1" * 39),
        ("1" * 40, 39, 0, "22003"),
        ("1.5", 40, 0, "22003"),
        ("0", 40, 2, "0.00"),
        ("NaN", 40, 2, "NaN"),
        ("-inf", 40, 2, "22003"),
        ("1200", 40, -2, "1200"),
        ("1234", 40, -2, "22003"),
    ],
)
def test_numbers_of_a_declared_scale(
    text: str, precision: int, scale: int, expected: str
) -> None:
    assert read(text, NUMERIC, numeric_typmod(precision, scale)) == expected


@pytest.mark.parametrize(
    ("source", "target", "text", "stored"),
    [
        ("numeric", "numeric(40,2)", b"1.5", "1.50"),
        ("numeric(50,3)", "numeric(40,2)", b"1.234", None),
        ("numeric(40,2)", "numeric(40,2)", b"1.50", "1.50"),
        ("numeric(40,2)", "numeric", b"1.50", "1.50"),
    ],
)
def test_numbers_of_another_scale(
    source: str, target: str, text: bytes, stored: str | None
) -> None:
    found = converted(target, text, source=source)
    assert found.array.to_pylist() == [stored]
    assert [one.sqlstate for one in found.bad] == ([] if stored else ["22003"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1_000.5", "1000.5"),
        ("0x_1F", "31"),
        ("-0.00", "0.00"),
        ("0e200000", "0"),
        ("1__0", "22P02"),
        ("_1", "22P02"),
        ("1_", "22P02"),
        ("1e\u0661", "22P02"),
        ("1e131072", "22003"),
    ],
)
def test_numbers(text: str, expected: str) -> None:
    assert read(text, NUMERIC) == expected


@pytest.mark.parametrize(
    ("text", "type_oid", "expected"),
    [
        ("::FFFF:1.2.3.4", INET, "::ffff:1.2.3.4"),
        ("::1:2", INET, "::0.1.0.2"),
        ("::1", INET, "::1"),
        ("10.0.0.0/8", CIDR, "10.0.0.0/8"),
        ("10.0.0.1/8", CIDR, "22P02"),
        ("10.0.0.1/8", INET, "10.0.0.1/8"),
    ],
)
def test_addresses(text: str, type_oid: int, expected: str) -> None:
    assert read(text, type_oid) == expected


@pytest.mark.parametrize(
    ("text", "sqlstate"), [("1e400000", "22003"), ("[1e-16384]", "22003")]
)
def test_numbers_in_jsonb_are_numeric(text: str, sqlstate: str) -> None:
    with pytest.raises(UsageError) as caught:
        canonical_json(text)
    assert caught.value.sqlstate == sqlstate
