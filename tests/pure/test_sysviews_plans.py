"""Kept plans of catalog queries: a repeated text has the answer of its own moment and session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlglot
from tests.fakes.catalog_source import OBJECTS, OWNER, FakeSource, rel, session, table

from wal2lake.catalog import Progress, Role, RoleMember
from wal2lake.errors import SqlSyntaxError, UndefinedObjectError, UsageError
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.sql.backend import SessionContext
from wal2lake.sql.grammar.remembered import (
    CHARACTERS,
    LONGEST,
    TEXTS,
    by_text,
    remember,
)
from wal2lake.sql.query.translate import BoundParameter
from wal2lake.sql.sysviews import QueryRoute, SystemCatalog, route_of
from wal2lake.sql.sysviews.plans import QueryPlan

SUB = Oid(OBJECTS["subscription sub"])
VISITOR = Oid(20001)


@pytest.fixture
def source() -> FakeSource:
    source = FakeSource()
    source.role_list.append(Role(VISITOR, "visitor", False, None))
    return source


def _rows(
    catalog: SystemCatalog, sql: str, context: SessionContext | None = None
) -> list[tuple[str | None, ...]]:
    return catalog.query(sql, (), context or session())[1]


def _plan(catalog: SystemCatalog, sql: str) -> QueryPlan:
    assert catalog._plans is not None
    return catalog._plans._plans[sql, ()]


def _visitor() -> SessionContext:
    return replace(session(), user="visitor")


def _progress(received: int) -> Progress:
    none = Lsn(0)
    return Progress(5, Lsn(received), none, none, none, 0, 0, Lsn(0x90), 0, 0, none)


_TEXTS = (
    "select * from pg_stat_subscription",
    "select o.remote_lsn from pg_replication_origin_status o join pg_subscription s"
    " on o.external_id = 'pg_' || s.oid where s.subname = 'sub'",
    "select count(*) from pg_subscription_rel where srsubstate <> 'r'",
    "select relname, oid::regclass, pg_table_is_visible(oid) from pg_class"
    " where relkind = 'r' and relnamespace = 2200 order by 1",
    "select c.relname, n.nspname from pg_class c join pg_namespace n"
    " on n.oid = c.relnamespace where c.relname like 'new%' order by 1, 2 limit 3",
    "select count(*) from pg_attribute where attrelid = to_regclass('public.newer')",
    "select to_regclass('public.newer')",
    "select table_name from information_schema.tables where table_schema = 'public'"
    " order by 1",
    "select current_user, current_setting('application_name')",
    "select * from wal2lake.sync_progress",
    "select rolname, now() > '2020-01-01' from pg_roles order by 1",
)


def test_repeated_texts_answer_as_a_new_engine(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    def change(step: int) -> None:
        if step == 1:
            source.table_list.append(
                table("create table public.newer (a int, b text)", 21000)
            )
            source.progress_by_sub[SUB] = _progress(0x100)
        elif step == 2:
            source.rel_list.append(rel("public.customers", SyncState.DATASYNC, None))
            source.progress_by_sub[SUB] = _progress(0x200)
        elif step == 3:
            source.rel_list[0] = rel("public.customers", SyncState.READY, "0/2000")
            del source.table_list[-1]
        elif step == 4:
            source.subscription_list.append(
                replace(source.subscription_list[0], oid=Oid(21001), name="second")
            )
        source.change_counter += 1

    seen = []
    for step in range(5):
        change(step)
        fresh = SystemCatalog(source)
        try:
            for context in (session(), session(application_name="other")):
                for sql in _TEXTS:
                    expected = fresh.query(sql, (), context)
                    # The second run of a text prepares it, the third one uses the plan.
                    for _ in range(3 if step == 0 else 2):
                        assert catalog.query(sql, (), context) == expected, sql
                    seen.append(expected[1])
        finally:
            fresh.close()
    # The changes have changed nearly every answer.
    changed = [seen[at :: 2 * len(_TEXTS)] for at in range(len(_TEXTS))]
    assert sum(len({str(rows) for rows in answers}) > 1 for answers in changed) >= 8


def test_a_repeated_text_is_not_planned_again(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    sql = "select subname, received_lsn from pg_stat_subscription"
    assert _rows(catalog, sql) == [("sub", None)]
    plan = _plan(catalog, sql)
    assert plan.statement is None
    assert _rows(catalog, sql) == [("sub", None)]
    name = plan.statement
    assert name is not None
    # Rows of moving views need no change of the counter.
    for received in (0x100, 0x200):
        source.progress_by_sub[SUB] = _progress(received)
        assert _rows(catalog, sql) == [("sub", str(Lsn(received)))]
    source.change_counter += 1
    assert catalog.describe(sql, (), session()) == plan.fields
    assert _rows(catalog, sql) == [("sub", "0/200")]
    assert _plan(catalog, sql) is plan and plan.statement == name


def test_a_plan_is_prepared_again_when_the_rows_of_its_relations_change(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    sql = "select count(*) from pg_subscription_rel"
    for _ in range(2):
        assert _rows(catalog, sql) == [("0",)]
    plan = _plan(catalog, sql)
    first = plan.statement
    assert first is not None
    source.change_counter += 1
    assert _rows(catalog, sql) == [("0",)]
    assert plan.statement == first
    source.rel_list.append(rel("public.customers", SyncState.READY, "0/1"))
    source.change_counter += 1
    assert _rows(catalog, sql) == [("1",)]
    assert _plan(catalog, sql) is plan and plan.statement not in (None, first)


@pytest.mark.parametrize(
    "sql",
    [
        "select 'public.newer'::regclass::oid",
        "select count(*) from pg_class where oid = 'public.newer'::regclass",
        "select c.relname from pg_class c, (select to_regclass('public.newer') as r) t"
        " where c.oid = t.r",
        "select current_setting('application_name')",
        "select localtimestamp from pg_namespace",
        "select current_user from pg_namespace",
    ],
)
def test_answers_of_the_moment_are_not_kept(
    source: FakeSource, catalog: SystemCatalog, sql: str
) -> None:
    source.table_list.append(table("create table public.newer (a int)", 21000))
    _rows(catalog, sql)
    first = _rows(catalog, sql)
    assert _plan(catalog, sql).statement is None
    source.table_list[-1] = table("create table public.newer (a int)", 21002)
    source.role_list[0] = replace(source.role_list[0], name="other")
    source.change_counter += 1
    context = replace(session(application_name="y"), user="other")
    again = _rows(catalog, sql, context)
    assert again != first or sql.startswith(("select c", "select count"))
    assert again != [("0",)] and again != []


def test_an_error_is_not_kept(source: FakeSource, catalog: SystemCatalog) -> None:
    sql = "select 'public.newer'::regclass"
    for _ in range(2):
        with pytest.raises(UndefinedObjectError, match="newer"):
            _rows(catalog, sql)
    source.table_list.append(table("create table public.newer (a int)", 21000))
    source.change_counter += 1
    assert _rows(catalog, sql) == [("newer",)]
    source.table_list.pop()
    source.change_counter += 1
    with pytest.raises(UndefinedObjectError, match="newer"):
        _rows(catalog, sql)


def test_privileges_are_checked_at_each_execution(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    sql = "select external_id from pg_replication_origin_status"
    assert _rows(catalog, sql) == [(f"pg_{SUB}",)]
    for ask in (catalog.query, catalog.describe):
        with pytest.raises(UsageError, match="permission denied for view"):
            ask(sql, (), _visitor())
    assert _rows(catalog, sql) == [(f"pg_{SUB}",)]
    # Rows that only some roles see.
    source.rel_list.append(rel("public.customers", SyncState.READY, "0/1"))
    source.change_counter += 1
    guarded = "select subname, tablename from wal2lake.sync_progress"
    for _ in range(2):
        assert _rows(catalog, guarded) == [("sub", "customers")]
        assert _rows(catalog, guarded, _visitor()) == []
    source.member_list.append(RoleMember(Oid(20009), Oid(3375), VISITOR, OWNER))
    source.change_counter += 1
    secret = "select subname, subconninfo from pg_subscription"
    assert "password" in str(_rows(catalog, secret))
    assert _rows(catalog, secret, _visitor()) == [("sub", "********")]
    assert _rows(catalog, guarded, _visitor()) == [("sub", "customers")]


def test_parameters_have_plans_of_their_own(catalog: SystemCatalog) -> None:
    sql = "select relname from pg_class where oid = $1"
    for name in ("public.customers", "sales.orders") * 2:
        bound = (BoundParameter(str(OBJECTS[name]), 26),)
        assert catalog.query(sql, bound, session())[1] == [(name.split(".")[1],)]


def test_the_number_of_kept_plans_is_bounded(catalog: SystemCatalog) -> None:
    for number in range(140):
        sql = f"select subname, '{number}' from pg_subscription"
        assert _rows(catalog, sql) == [("sub", str(number))]
    assert catalog._plans is not None and len(catalog._plans) == 128
    assert _rows(catalog, "select subname, '0' from pg_subscription") == [("sub", "0")]
    long = f"select subname from pg_subscription where subname <> '{'x' * LONGEST}'"
    for _ in range(2):
        assert _rows(catalog, long) == [("sub",)]
    assert (long, ()) not in catalog._plans._plans


def test_results_of_texts_are_kept_unless_long_or_wrong() -> None:
    asked: list[str] = []

    @by_text
    def length(sql: str) -> int:
        asked.append(sql)
        if sql == "wrong":
            raise SqlSyntaxError("syntax error")
        return len(sql)

    assert [length("abc"), length("abc"), length("ab")] == [3, 3, 2]
    assert asked == ["abc", "ab"]
    for _ in range(2):
        with pytest.raises(SqlSyntaxError):
            length("wrong")
        assert length("x" * (LONGEST + 1)) == LONGEST + 1
    assert len(asked) == 6


def test_kept_results_are_those_used_last_and_few_characters_together() -> None:
    asked: list[str] = []

    @by_text
    def same(sql: str) -> str:
        asked.append(sql)
        return sql

    # As many of the longest texts as are kept, and one more.
    fitting = CHARACTERS // LONGEST
    texts = [f"{number:0{LONGEST}}" for number in range(fitting + 1)]
    for sql in (*texts[:fitting], texts[0], texts[fitting]):
        assert same(sql) == sql
    assert len(asked) == fitting + 1
    same(texts[0])
    assert len(asked) == fitting + 1
    same(texts[1])
    assert asked[-1] == texts[1]
    # Short texts drive out the long ones, and then the first of their kind.
    short = [str(number) for number in range(TEXTS + 1)]
    for sql in (*short, short[-1], short[1]):
        same(sql)
    assert asked[-1] == short[-1]
    for sql in (texts[0], short[0]):
        same(sql)
        assert asked[-1] == sql


def test_all_arguments_are_the_key_of_a_kept_result() -> None:
    asked: list[tuple[str, int]] = []

    def add(sql: str, count: int) -> int:
        asked.append((sql, count))
        return len(sql) + count

    kept = remember(add, lambda sql, count: len(sql) + count)
    assert [kept("a", 1), kept("a", 2), kept("a", 1)] == [2, 3, 2]
    assert asked == [("a", 1), ("a", 2)]
    for _ in range(2):
        kept("a", LONGEST)
    assert asked[2:] == [("a", LONGEST)] * 2


@pytest.mark.parametrize(
    ("sql", "route"),
    [
        ("select * from pg_class", QueryRoute.CATALOGS),
        ("select 1", QueryRoute.CATALOGS),
        ("select version()", QueryRoute.CATALOGS),
        ("select 1 + 1", QueryRoute.EITHER),
        ("select ascii('x')", QueryRoute.EITHER),
        ("values (1)", QueryRoute.EITHER),
        ("select oid + 1 from pg_class", QueryRoute.CATALOGS),
        ("select * from t", QueryRoute.LAKE),
        ("select * from wal2lake.log", QueryRoute.CATALOGS),
        ("select 1 from", QueryRoute.LAKE),
    ],
)
def test_routes(sql: str, route: QueryRoute) -> None:
    assert route_of(sql) is route


def test_a_long_text_is_parsed_once_a_step_and_while_the_lock_is_free(
    catalog: SystemCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []
    parse = sqlglot.parse

    def count(*arguments: Any, **options: Any) -> Any:
        free.append(not catalog._lock.locked())
        return parse(*arguments, **options)

    monkeypatch.setattr(sqlglot, "parse", count)
    call = "select pg_logical_emit_message(false, 'p', 'x')"
    numbers = f"in ({', '.join('1' * (LONGEST // 3 + 1))})"
    # A query that runs again with an answer, one of relations, and a computation.
    for sql, route in (
        (f"{call} from (select 2 as a) t where a not {numbers}", QueryRoute.EITHER),
        (f"select relname from pg_class where oid {numbers}", QueryRoute.CATALOGS),
        (f"select 1 + 1 {numbers}", QueryRoute.EITHER),
    ):
        assert route_of(sql) is route
        assert free == [True]
        catalog.describe(sql, (), session())
        assert free == [True] * 2
        catalog.execute(sql, (), session(), perform=lambda request: 1)
        assert free == [True] * 3
        free.clear()
