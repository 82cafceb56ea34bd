"""VACUUM's grammar and options beside PostgreSQL 18: the same errors at the same places."""

from __future__ import annotations

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.errors import SqlSyntaxError, Wal2LakeError
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.maintenance import VacuumTables

STATEMENTS = """
vacuum t
vacuum
vacuum full freeze verbose analyze t
vacuum verbose full t
vacuum analyse t (a)
vacuum (analyze) t (a, b), t
vacuum t (a)
vacuum (nothing) t
vacuum (verbose, nothing 3) t
vacuum () t
vacuum (verbose maybe) t
vacuum (verbose 2) t
vacuum (verbose 'off') t
vacuum (verbose off, verbose off) t
vacuum (analyse) t
vacuum (full, parallel 2) t
vacuum (parallel) t
vacuum (parallel -1) t
vacuum (parallel 2000) t
vacuum (parallel x) t
vacuum (parallel 1.5) t
vacuum (parallel '3') t
vacuum (parallel 0) t
vacuum (index_cleanup auto) t
vacuum (index_cleanup maybe) t
vacuum (truncate off, process_main off, process_toast off) t
vacuum (full, process_toast off) t
vacuum (full, disable_page_skipping) t
vacuum (full, buffer_usage_limit '1MB') t
vacuum (full, buffer_usage_limit '1MB', analyze) t
vacuum (buffer_usage_limit 3) t
vacuum (buffer_usage_limit 'x') t
vacuum (buffer_usage_limit) t
vacuum (buffer_usage_limit 0) t
vacuum (skip_locked, skip_database_stats) t
vacuum (only_database_stats)
vacuum (only_database_stats) t
vacuum (only_database_stats, freeze)
vacuum (only_database_stats, analyze)
vacuum t t
vacuum only t
vacuum only (t)
vacuum t *
vacuum a.b.c.d
vacuum other.public.t
vacuum (freeze off) t,
vacuum table t
vacuum (freeze 5) t
vacuum (freeze true true) t
vacuum (freeze on on)
vacuum (table) t
"""


@pytest.mark.parametrize("sql", STATEMENTS.strip().splitlines())
def test_options_and_errors_are_postgresqls(pg18: Database, sql: str) -> None:
    with psycopg.connect(pg18.conninfo(), autocommit=True) as conn:
        conn.execute("create table if not exists t (a int primary key, b text)")
        theirs: tuple[object, ...] = ()
        try:
            conn.execute(sql)
        except psycopg.Error as error:
            diagnostic = error.diag
            position = int(diagnostic.statement_position or 0)
            theirs = (error.sqlstate, diagnostic.message_primary, position)
    ours: tuple[object, ...] = ()
    try:
        assert isinstance(parse(sql), VacuumTables)
    except Wal2LakeError as error:
        position = error.position if isinstance(error, SqlSyntaxError) else 0
        ours = (error.sqlstate, error.message, position or 0)
    assert ours == theirs


def test_a_dry_run_is_parsed() -> None:
    statement = parse("vacuum (verbose, dry_run) s.t, u")
    assert isinstance(statement, VacuumTables)
    assert (statement.verbose, statement.dry_run) == (True, True)
    assert [str(table.name.name) for table in statement.tables] == ["t", "u"]
    statement = parse("VACUUM (FREEZE, DRY_RUN off)")
    assert isinstance(statement, VacuumTables)
    assert (statement.dry_run, statement.without_effect) == (False, ("FREEZE",))
