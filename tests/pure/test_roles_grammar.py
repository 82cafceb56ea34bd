"""Statements about roles and privileges: parse, print, and parse to the same value again."""

from __future__ import annotations

import pytest
from tests.fakes.printed import parse_printed

from wal2lake.errors import Wal2LakeError
from wal2lake.sql.grammar import parse, to_sql
from wal2lake.sql.grammar.statements import CommandKind, OtherStatement

STATEMENTS = (
    "CREATE ROLE r1 LOGIN SUPERUSER PASSWORD 'x''y' CONNECTION LIMIT -1 VALID UNTIL"
    " '2020-01-01' IN ROLE a, b ROLE c ADMIN d",
    "CREATE USER u PASSWORD NULL",
    'CREATE GROUP "G g" NOINHERIT NOBYPASSRLS',
    "ALTER ROLE u NOLOGIN NOCREATEROLE NOCREATEDB NOREPLICATION",
    "ALTER ROLE CURRENT_USER PASSWORD 'x'",
    "ALTER GROUP g ADD USER a, b",
    "ALTER GROUP g DROP USER a",
    "ALTER ROLE r RENAME TO s",
    "DROP ROLE IF EXISTS a, SESSION_USER",
    "GRANT a, b TO c WITH ADMIN TRUE, SET FALSE, INHERIT TRUE GRANTED BY d",
    "GRANT a TO CURRENT_ROLE",
    "REVOKE ADMIN OPTION FOR a FROM b CASCADE",
    "REVOKE a FROM b GRANTED BY CURRENT_USER",
    "GRANT select, insert ON TABLE t, s.t TO public, r WITH GRANT OPTION",
    "GRANT ALL ON SCHEMA s, t TO r",
    "GRANT ALL ON ALL TABLES IN SCHEMA s TO r",
    "GRANT connect, temp ON DATABASE lake TO r GRANTED BY CURRENT_USER",
    "REVOKE GRANT OPTION FOR select ON TABLE t FROM r CASCADE",
    "REVOKE create ON SCHEMA s FROM public",
    "ALTER TABLE s.t OWNER TO r",
    "ALTER TABLE IF EXISTS t OWNER TO r",
    "ALTER SCHEMA s OWNER TO CURRENT_USER",
)


@pytest.mark.parametrize("sql", STATEMENTS)
def test_a_statement_is_printed_as_it_was_written(sql: str) -> None:
    statement = parse_printed(sql)
    assert to_sql(statement) == sql
    assert parse(sql.lower().replace("g g", "G g")) == statement


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("create role r with encrypted password 'x' user a", "PASSWORD 'x' ROLE a"),
        ("create role r in group a", "IN ROLE a"),
        ("alter user u with login", "ALTER ROLE u LOGIN"),
        ("drop group g", "DROP ROLE g"),
        ("grant a to b with admin option", "WITH ADMIN TRUE"),
        ("grant select on t to group r", "ON TABLE t TO r"),
        ("grant all privileges on t to r", "GRANT ALL ON TABLE t"),
        ("alter table only t * owner to r", "ALTER TABLE t OWNER TO r"),
    ],
)
def test_other_spellings_mean_the_same(written: str, printed: str) -> None:
    statement = parse_printed(written)
    assert printed in to_sql(statement)
    assert parse(to_sql(statement)) == statement


@pytest.mark.parametrize(
    ("sql", "command"),
    [
        ("alter table t disable trigger x", "ALTER TABLE ... DISABLE"),
        ("alter table t owner to r, add column a int", "ALTER TABLE ... OWNER TO"),
        ("alter schema s rename to t", "ALTER SCHEMA"),
        ("alter role r set work_mem = 1", "ALTER ROLE ... SET"),
        ("alter role all reset all", "ALTER ROLE"),
        ("create user mapping for r server s", "CREATE USER MAPPING"),
        ("reassign owned by a to b", "REASSIGN OWNED"),
        ("drop owned by a", "DROP OWNED"),
        ("alter default privileges grant select on tables to r", None),
    ],
)
def test_what_no_node_has_is_named(sql: str, command: str | None) -> None:
    statement = parse(sql)
    assert (
        isinstance(statement, OtherStatement)
        and statement.kind is CommandKind.UNSUPPORTED
    )
    assert statement.command == command or command is None


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("create role", "42601"),
        ("create role pg_x frob", "42601"),
        ("create role none", "42939"),
        ("create role r login nologin", "42601"),
        ("alter role r in role x", "42601"),
        ("alter group g add a", "42601"),
        ("grant select on t", "42601"),
        ("grant select (a) to r", "0LP01"),
        ("grant all (a) on t to r", "0A000"),
        ("grant usage on sequence s to r", "0A000"),
        ("revoke grant option for a from b", "42601"),
        ("revoke frob option for a from b", "42601"),
        ("grant a to b with frob true", "42601"),
    ],
)
def test_what_is_wrong_is_refused(sql: str, sqlstate: str) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        parse(sql)
    assert caught.value.sqlstate == sqlstate
