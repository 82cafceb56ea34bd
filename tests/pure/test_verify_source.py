"""A table of the source is locked only while it is compared, and one that was rewritten since the
snapshot is never called different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from tests.fakes.commands import remote

from wal2lake.commands.maintenance.sourcetables import import_snapshot, locked_table
from wal2lake.errors import PublisherError, UsageError
from wal2lake.model import Oid
from wal2lake.pg import RemoteTable, Session
from wal2lake.verify import NotComparable

GIVES_BACK = "ROLLBACK TO SAVEPOINT verified; RELEASE SAVEPOINT verified"
TABLE = remote(Oid(5))


class Source:
    """A session of the source, which answers as a test wants."""

    def __init__(self, **errors: PublisherError) -> None:
        self.statements: list[str] = []
        self.server_version = 170000
        self.moved = ["0", "0"]
        self.errors = errors

    def execute(self, sql: str) -> str:
        self.statements.append(sql)
        for word, error in self.errors.items():
            if sql.startswith(word):
                raise error
        return ""

    def describe(self, sql: str) -> Sequence[object]:
        self.execute(sql)
        return []

    def value(self, sql: str) -> str:
        self.execute(sql)
        if "relfilenode" in sql:
            return self.moved.pop(0)
        return "0"


def compared(source: Source, table: RemoteTable | None = TABLE) -> None:
    with locked_table(cast(Session, source), lambda: table):
        source.statements.append("compared")


def test_the_lock_is_taken_before_the_rows_are_read_and_given_back_after() -> None:
    source = Source()
    compared(source)
    assert source.statements[0] == "SAVEPOINT verified"
    assert source.statements[1] == 'SELECT * FROM ONLY "public"."t5"'
    assert source.statements[-2:] == ["compared", GIVES_BACK]


def test_a_table_that_was_rewritten_is_not_comparable() -> None:
    source = Source()
    source.moved = ["1"]
    with pytest.raises(
        NotComparable, match=r"the source changed meanwhile: .*rewritten"
    ):
        compared(source)
    assert "compared" not in source.statements
    assert source.statements[-1] == GIVES_BACK


def test_a_partition_that_was_rewritten_before_it_was_read_is_found_after() -> None:
    source = Source()
    source.moved = ["1"]
    with pytest.raises(
        NotComparable, match=r"the source changed meanwhile: .*rewritten"
    ):
        compared(source, replace(TABLE, kind="p"))
    assert "compared" in source.statements
    assert source.statements[-1] == GIVES_BACK


@pytest.mark.parametrize(
    ("sqlstate", "words"),
    [
        (
            "55P03",
            "another session has locked it, or a table of the same publication, at the source",
        ),
        ("42501", "the source says: no"),
        ("42P01", "the source changed meanwhile: .*dropped or renamed"),
    ],
)
def test_an_error_of_the_source_is_the_reason(sqlstate: str, words: str) -> None:
    source = Source(SELECT=PublisherError("no", sqlstate=sqlstate))
    with pytest.raises(NotComparable, match=words):
        compared(source)
    assert source.statements[-1] == GIVES_BACK


def test_a_table_that_is_gone_is_not_comparable() -> None:
    source = Source()
    with pytest.raises(NotComparable, match="there is no such table at the source"):
        compared(source, None)
    assert source.statements[-1] == GIVES_BACK


def test_a_lost_connection_does_not_hide_the_first_error() -> None:
    source = Source(ROLLBACK=PublisherError("the connection is lost"))
    compared(source)
    with (
        pytest.raises(UsageError, match="canceled"),
        locked_table(cast(Session, source), lambda: TABLE),
    ):
        raise UsageError("canceled", sqlstate="57014")


@pytest.mark.parametrize(("version", "has"), [(160000, False), (170000, True)])
def test_no_limit_of_the_server_ends_the_reading_session(
    version: int, has: bool
) -> None:
    source = Source()
    source.server_version = version
    import_snapshot(cast(Session, source), "00-1", 700)
    begin = next(
        n for n, sql in enumerate(source.statements) if sql.startswith("BEGIN")
    )
    before = source.statements[:begin]
    assert "SET lock_timeout = 700" in before
    assert "SET statement_timeout = 0" in before
    assert "SET idle_in_transaction_session_timeout = 0" in before
    assert ("SET transaction_timeout = 0" in before) == has
    assert source.statements[begin + 1 :] == ["SET TRANSACTION SNAPSHOT '00-1'"]
