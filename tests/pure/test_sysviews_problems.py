"""wal2lake.problems, over a source in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.fakes.catalog_source import OBJECTS, FakeSource, session

from wal2lake.catalog import EntryState, RegisteredTable, Role
from wal2lake.health import Concern, Problem, ProblemKind, Severity
from wal2lake.model import Oid
from wal2lake.sql.sysviews import SystemCatalog

SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def source() -> FakeSource:
    source = FakeSource()
    source.problem_list = [
        Problem(
            ProblemKind.ERRORED,
            Severity.ERROR,
            'subscription "sub" cannot apply: no',
            Concern.OPERATOR,
            since=SINCE,
            subscription="sub",
            table="public.customers",
            subject="apply",
            sqlstate="23505",
            detail="why",
            remedy="select 1;",
            hint="Do it.",
        ),
        Problem(ProblemKind.DISK, Severity.WARNING, "full", Concern.OPERATOR),
    ]
    return source


def test_a_problem_is_a_row(catalog: SystemCatalog) -> None:
    rows = catalog.query("table wal2lake.problems", (), session())[1]
    assert rows == [
        (
            "errored",
            "error",
            str(OBJECTS["subscription sub"]),
            "sub",
            "public",
            "customers",
            "apply",
            None,
            "2026-01-02 03:04:05+00",
            'subscription "sub" cannot apply: no',
            "why",
            "23505",
            "operator",
            "select 1;",
            "Do it.",
        ),
        (
            "disk",
            "warning",
            *[None] * 7,
            "full",
            None,
            None,
            "operator",
            None,
            None,
        ),
    ]


def test_who_may_not_read_all_statistics_sees_the_problems_of_own_subscriptions(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    source.role_list += [
        Role(Oid(20001), "owner", False, None),
        Role(Oid(20002), "somebody", False, None),
        Role(Oid(3375), "pg_read_all_stats", False, None),
    ]
    sub = source.subscription_list[0]
    source.subscription_list[0] = replace(sub, owner=Oid(20001))
    sql = "select kind from wal2lake.problems"

    def seen(user: str) -> list[tuple[str | None, ...]]:
        return catalog.query(sql, (), replace(session(), user=user))[1]

    assert seen("postgres") == [("errored",), ("disk",)]
    assert seen("owner") == [("errored",)]
    assert seen("somebody") == []
    source.problem_list = []
    assert seen("postgres") == []


def test_a_registered_table_is_a_row_whose_error_not_all_see(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    source.role_list += [
        Role(Oid(20002), "somebody", False, None),
        Role(Oid(3375), "pg_read_all_stats", False, None),
    ]
    source.registered_list = [
        RegisteredTable(
            "public",
            "Towns",
            "lake_public",
            "towns",
            EntryState.PENDING,
            SINCE.timestamp(),
            "digest",
            "no answer",
            "08006",
            "Wait.",
        )
    ]
    sql = "table wal2lake.catalog_tables"
    row = ("public", "Towns", "lake_public.towns", "pending", "2026-01-02 03:04:05+00")
    assert catalog.query(sql, (), session())[1] == [
        (*row, "no answer", "08006", "Wait.", "delta")
    ]
    somebody = replace(session(), user="somebody")
    assert catalog.query(sql, (), somebody)[1] == [(*row, None, "08006", None, "delta")]
