"""No error of Spark is said in Spark's words, whatever its condition."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from psycopg import errors as postgres

from wal2lake.errors import InternalError
from wal2lake.lake.spark.texts import LOG_HINT, from_condition

Condition = tuple[str, str | None, str]


def conditions() -> Iterator[Condition]:
    """Name, SQLSTATE and message of each of Spark's conditions, and of each part of one."""
    jars = Path(pyspark.__file__).parent / "jars"
    (jar,) = jars.glob("spark-common-utils_*.jar")
    with zipfile.ZipFile(jar) as opened:
        listed = json.loads(opened.read("error/error-conditions.json"))
    for name, told in listed.items():
        message = " ".join(told["message"])
        yield name, told.get("sqlState"), message
        for part, more in told.get("subClass", {}).items():
            whole = " ".join([message, *more["message"]])
            yield f"{name}.{part}", told.get("sqlState"), whole


ALL = tuple(conditions())


def test_every_condition_of_spark_becomes_an_error_of_postgresqls() -> None:
    assert len(ALL) > 1500
    unlisted = set()
    for name, state, message in ALL:
        given = dict.fromkeys(re.findall(r"<(\w+)>", message), "q")
        for parameters in (given, {}):
            error, known = from_condition(name, state, parameters)
            postgres.lookup(error.sqlstate)  # KeyError: PostgreSQL does not have it
            said = " ".join(filter(None, (error.message, error.detail, error.hint)))
            assert not re.search(r"[A-Z]{3,}_[A-Z]|Spark|Java|<|\[", said), name
            if not known:
                assert error.hint == LOG_HINT
                unlisted.add(error.message)
    # These do not depend on what the engine says.
    assert len(unlisted) < 40


@pytest.mark.parametrize(
    ("name", "state", "sqlstate"),
    [
        ("OF_A_LATER_VERSION", "42K99", "42000"),
        ("OF_A_LATER_VERSION", "22KD7", "22000"),
        ("OF_A_LATER_VERSION", "KD0ZZ", "58000"),
        ("OF_A_LATER_VERSION", "0AKDE", "0A000"),
        ("OF_A_LATER_VERSION", "ZZ999", "XX000"),
        ("OF_A_LATER_VERSION", None, "XX000"),
    ],
)
def test_an_unknown_condition_gets_the_text_of_its_class(
    name: str, state: str | None, sqlstate: str
) -> None:
    error, known = from_condition(name, state, {"objectName": "q"})
    assert not known
    assert error.sqlstate == sqlstate
    assert (type(error) is InternalError) == (sqlstate == "XX000")
    assert name not in error.describe()


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("PARSE_SYNTAX_ERROR", {"error": "'from'"}, 'syntax error at or near "from"'),
        (
            "PARSE_SYNTAX_ERROR",
            {"error": "end of input"},
            "syntax error at end of input",
        ),
        (
            "CAST_OVERFLOW",
            {"targetType": '"STRUCT<A: INT>"'},
            "record out of range",
        ),
        (
            "DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN",
            {"type": '"INTERVAL DAY TO SECOND"'},
            "argument of WHERE must be type boolean, not type interval",
        ),
    ],
)
def test_texts_name_postgresqls_types_and_tokens(
    name: str, parameters: dict[str, str], message: str
) -> None:
    error, known = from_condition(name, "42000", parameters)
    assert known
    assert error.message == message
