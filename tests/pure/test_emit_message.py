"""pg_logical_emit_message as a query calls it: once a row, with text or bytea."""

from __future__ import annotations

import pytest
from tests.fakes.catalog_source import session

from wal2lake.errors import Wal2LakeError
from wal2lake.sql.sysviews import FunctionRequest, SystemCatalog

EMIT = "select pg_logical_emit_message"


def emitted(
    catalog: SystemCatalog, sql: str
) -> tuple[list[bytes | None], list[tuple[object, ...]]]:
    """The answers, and what was asked for each time."""
    asked: list[tuple[object, ...]] = []

    def perform(request: FunctionRequest) -> int:
        asked.append(request.arguments[1:])
        return len(asked)

    outcome = catalog.execute(sql, (), session(), perform=perform)
    return [value for batch in outcome.batches for value in batch.columns[0]], asked


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("true, 'p', 'text'", (True, "p", b"text")),
        ("false, 'p', ''", (False, "p", b"")),
        (r"true, 'p', '\xff41'::bytea", (True, "p", b"\xffA")),
        (r"true, 'p', cast('a\\\001' as bytea), true", (True, "p", b"a\\\1")),
        ("true, 'p', 'named', flush => true", (True, "p", b"named")),
    ],
)
def test_content_is_text_or_bytea(
    catalog: SystemCatalog, arguments: str, wanted: tuple[object, ...]
) -> None:
    assert emitted(catalog, f"{EMIT}({arguments})") == ([b"0/1"], [wanted])


def test_each_row_is_a_message_of_its_own(catalog: SystemCatalog) -> None:
    found = emitted(catalog, f"{EMIT}(false, 'p', 'x') from generate_series(1, 3)")
    assert found == ([b"0/1", b"0/2", b"0/3"], [(False, "p", b"x")] * 3)
    twice = emitted(catalog, f"{EMIT}(false, 'p', 'x'), {EMIT[7:]}(false, 'p', 'x')")
    assert twice[1] == [(False, "p", b"x")] * 2


def test_null_says_nothing(catalog: SystemCatalog) -> None:
    assert emitted(catalog, f"{EMIT}(true, null, 'x')") == ([None], [])


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("true, 'p', 5", "42883"),
        (r"true, 'p', '\xf'::bytea", "22023"),
        (r"true, 'p', '\9'::bytea", "22P02"),
    ],
)
def test_nothing_is_said_by_what_is_wrong(
    catalog: SystemCatalog, arguments: str, sqlstate: str
) -> None:
    with pytest.raises(Wal2LakeError) as refused:
        emitted(catalog, f"{EMIT}({arguments})")
    assert refused.value.sqlstate == sqlstate
