"""One script about roles and privileges, run by PostgreSQL 18 and by the node: the same rows, tags,
errors, warnings and notices, with severity, SQLSTATE, message, DETAIL and HINT.

``@role`` in front of a statement: whose session it is. A statement whose answers may differ is in
``DIFFERENT`` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from tests.node.conftest import Psql

from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client, Failure
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer

Answer = tuple[object, ...]

VERIFIER = "SCRAM-SHA-256$4096:" + "A" * 22 + "==$" + "A" * 43 + "=:" + "A" * 43 + "="
MEMBERS = (
    "select roleid::regrole, member::regrole, grantor::regrole, admin_option,"
    " inherit_option, set_option from pg_auth_members where roleid >= 16384"
    " order by 1, 2, 3"
)
ACL = "select relacl from pg_class where relname = 't1'"

SCRIPT = (
    # ---- what is there
    "select oid, rolname, rolinherit, rolcanlogin from pg_roles where oid < 16384"
    " and oid > 10 order by 1",
    "select oid, roleid, member, admin_option, inherit_option, set_option"
    " from pg_auth_members where oid < 16384 order by 1",
    "select nspname, nspowner::regrole, nspacl from pg_namespace"
    " where nspname in ('public', 'pg_catalog', 'information_schema') order by 1",
    "select datacl from pg_database where datname = 'lake'",
    # ---- CREATE ROLE: grammar and options
    "create role",
    "create role pg_foo",
    "create role public",
    "create role none",
    "create role current_user",
    "create role y unencrypted password 'y'",
    "create role y login login",
    "create role y login nologin",
    "create role y connection limit -5",
    "create role y connection limit x",
    "create role y frob",
    "create role y in role nope",
    "create role y in role public",
    "create role y role nope",
    "create role y valid until '2020-13-01'",
    "create user y password ''",
    "drop user y",
    "create group y",
    "drop group y",
    "create role c1 login createrole password 'pw'",
    "create user c2 encrypted password 'pw' connection limit 5",
    "create role o1",
    "create role c1",
    "create role v1 login inherit valid until '2020-01-01' password 'pw'",
    "create role v2 nologin noinherit valid until '2099-01-01 10:00+02'"
    f" password '{VERIFIER}' in role o1 role c2 admin c1",
    "create role a1 createdb replication bypassrls nologin",
    "select rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin,"
    " rolreplication, rolbypassrls, rolconnlimit, rolvaliduntil from pg_roles"
    " where oid >= 16384 order by 1",
    "select rolpassword from pg_authid where rolname = 'v2'",
    "select rolpassword from pg_roles where rolname = 'v2'",
    MEMBERS,
    # ---- by others than the superuser
    "@c2 create role x",
    "@c1 create role x superuser",
    "@c1 create role x replication",
    "@c1 create role x createdb",
    "@c1 create role x bypassrls",
    "@c1 create role n1",
    "@c1 alter role postgres login",
    "@c1 alter role o1 superuser",
    "@c1 alter role c2 password 'x'",
    "@c2 alter role c1 password 'x'",
    "@c2 alter role c2 password 'pw'",
    "@c2 alter role c2 connection limit 4",
    "@c1 alter role n1 createdb",
    "@c1 alter role n1 replication",
    "@c1 alter role n1 login connection limit 3",
    "@c2 drop role o1",
    "@c1 drop role o1",
    "@c1 drop role postgres",
    "@c1 drop role c1",
    "@c2 alter role o1 rename to o2",
    "@c1 alter role o1 rename to o2",
    "@c1 alter role postgres rename to o2",
    "@c1 alter role c1 rename to c9",
    "@c1 select count(*) from pg_authid",
    "@c1 select count(*) > 15 from pg_roles",
    # ---- ALTER, RENAME, DROP
    "alter role nope login",
    "alter role public login",
    "alter role pg_monitor login",
    "alter role o1 in role c1",
    "alter role o1 sysid 5",
    "alter role postgres nosuperuser",
    "alter role o1 connection limit -2",
    "alter role nope rename to x",
    "alter role o1 rename to pg_x",
    "alter role pg_monitor rename to x",
    "alter role o1 rename to c1",
    "alter role postgres rename to p2",
    "alter role a1 rename to a2",
    "alter user a2 rename to a1",
    "alter group o1 add user c1",
    "alter group o1 add user c1",
    "alter group o1 add user nope",
    "alter group o1 drop user c1",
    "alter group o1 drop user c1",
    "alter group o1 drop c1",
    "drop role nope",
    "drop role if exists nope, nope2",
    "drop role current_user",
    "drop role public",
    "drop role pg_monitor",
    "drop role postgres",
    # ---- membership
    "@c1 grant n1 to c2 with admin option",
    "@c2 grant n1 to o1 granted by c1",
    "@c2 grant n1 to o1",
    "@c2 grant n1 to o1",
    "@c2 grant n1 to c1 with admin option",
    "@c1 revoke n1 from c2",
    "@c1 revoke admin option for n1 from c2",
    "@c1 revoke admin option for n1 from c2 cascade",
    "@c1 grant postgres to c1",
    "@c1 grant pg_monitor to c1",
    "@c1 revoke pg_monitor from c2",
    "grant pg_database_owner to c1",
    "grant c1 to pg_database_owner",
    "grant o1 to c2 with frob true",
    "grant o1 to c2 with inherit false, set maybe",
    "grant o1 to public",
    "grant public to c1",
    "grant nope to c1",
    "grant o1 to nope",
    "grant o1(a) to c1",
    "grant o1 to o1",
    "grant a1 to o1 with inherit false, set false",
    "grant a1 to o1 with inherit true",
    "grant o1 to a1",
    "revoke c1 from c2",
    "revoke set option for a1 from o1",
    "revoke frob option for a1 from o1",
    MEMBERS,
    "select pg_has_role('o1', 'a1', 'usage'), pg_has_role('o1', 'a1', 'set'),"
    " pg_has_role('o1', 'a1', 'member'), pg_has_role('c1', 'v2', 'usage with admin"
    " option'), pg_has_role('c1', 'o1', 'member with admin option, set')",
    "select pg_has_role('c1', 'o1', 'frob')",
    "select pg_has_role('nope', 'o1', 'member')",
    # ---- SET ROLE
    "@c2 set role o1",
    "@c2 set role nope",
    "@c2 set session authorization o1",
    "@c2 set session authorization nope",
    "@c2 set session authorization c2",
    "@c2 set role n1; select current_user, session_user, current_role, user",
    "@c2 set role none; reset role",
    "@c2 reset session authorization",
    "set role c2; show is_superuser; show role; select current_user, session_user",
    "set role c2; set role postgres; reset role; show is_superuser; select current_user",
    "set session authorization c2; set role postgres",
    "set session authorization c2; select current_user, session_user;"
    " set session authorization default; select current_user, session_user",
    "set session authorization c2; set session authorization c1; select session_user",
    "begin; set local role c2; select current_user; commit; select current_user",
    "begin; set role c2; rollback; select current_user; show is_superuser",
    "set role c2; reset all; select current_user",
    "set role to c2; show role; set role = 'c1'; select current_user",
    "set role c2; drop role c2",
    "set role c2; alter role c2 rename to c3",
    "set role c2; create role x",
    # ---- privileges
    "create table t1 (a int primary key, b int)",
    "create schema s1",
    "grant frob on t1 to c1",
    "grant usage on t1 to c1",
    "grant create on t1 to c1",
    "grant select on schema s1 to c1",
    "grant select on database lake to c1",
    "grant connect on database nope to c1",
    "grant all on schema nope to c1",
    "grant select on nope to c1",
    "grant select on t1 to nope",
    "grant select on all tables in schema nope to c1",
    "grant select on t1 to c1 granted by c2",
    "grant select on t1 to public with grant option",
    "@c2 grant select on t1 to o1",
    "grant select on t1 to c2",
    "@c2 grant select on t1 to o1",
    "grant select, update on t1 to c2 with grant option",
    "@c2 grant all on t1 to o1",
    "@c2 grant select, insert on t1 to o1",
    "@c2 grant insert on t1 to o1",
    ACL,
    "revoke select on t1 from c2",
    "@c2 grant select on t1 to c1 with grant option",
    "@c1 grant select on t1 to c2 with grant option",
    "revoke grant option for select on t1 from c2 cascade",
    ACL,
    "grant select on t1 to public",
    "grant insert, truncate on table t1 to c1, group o1",
    "grant select on t1 to current_user",
    "revoke all on t1 from c2",
    "revoke truncate on t1 from current_user",
    ACL,
    "grant truncate on t1 to current_user",
    "grant references, trigger, maintain on all tables in schema public to c2",
    ACL,
    "grant usage on schema s1 to c1",
    "grant all privileges on schema s1 to a1",
    "select nspacl from pg_namespace where nspname = 's1'",
    "grant create, temp on database lake to a1",
    "select datacl from pg_database where datname = 'lake'",
    "select has_table_privilege('c2', 't1', 'select'),"
    " has_table_privilege('c2', 't1', 'insert'),"
    " has_table_privilege('c1', 't1', 'update, insert'),"
    " has_table_privilege('c1', 't1', 'insert with grant option'),"
    " has_table_privilege('public', 't1', 'select'),"
    " has_table_privilege('c1', 'pg_authid', 'select'),"
    " has_table_privilege('c1', 'pg_class', 'select')",
    "select has_table_privilege('c1', 't1', 'frob')",
    "select has_table_privilege('nope', 't1', 'select')",
    "select has_table_privilege('c1', 'nope', 'select')",
    "@c1 select has_table_privilege('t1', 'delete'), has_table_privilege('t1', 'select')",
    "select has_schema_privilege('c1', 's1', 'create'),"
    " has_schema_privilege('c1', 's1', 'usage'),"
    " has_schema_privilege('a1', 's1', 'create'),"
    " has_schema_privilege('c1', 'public', 'usage'),"
    " has_schema_privilege('c1', 'public', 'create'),"
    " has_schema_privilege('c1', 'pg_catalog', 'usage')",
    "select has_database_privilege('c1', 'lake', 'connect'),"
    " has_database_privilege('a1', 'lake', 'create'),"
    " has_database_privilege('c1', 'lake', 'create')",
    "select has_database_privilege('c1', 'nope', 'connect')",
    "select has_any_column_privilege('c1', 't1', 'select'),"
    " has_column_privilege('c1', 't1', 'a', 'insert'),"
    " has_column_privilege('c1', 't1', 'a', 'update')",
    "select has_column_privilege('c1', 't1', 'nope', 'insert')",
    # ---- what they are for
    "@c1 create table s1.x (a int)",
    "@c1 create table x (a int)",
    "@c1 create schema s2",
    "@c1 create schema authorization o1",
    "create schema s3 authorization nope",
    "create schema authorization o1",
    "select nspname, nspowner::regrole from pg_namespace where nspname = 'o1'",
    "@c1 insert into t1 values (1, 2)",
    "@c2 insert into t1 values (2, 2)",
    "@c2 select * from t1",
    "@c2 select nope from t1",
    "@c1 update t1 set b = 1",
    "@c1 delete from t1",
    "grant update, delete on t1 to c1",
    "revoke select on t1 from public",
    "@c1 select * from t1",
    "@c1 select nope from t1",
    "@c1 update t1 set b = 3",
    "@c1 update t1 set b = b + 1",
    "@c1 update t1 set b = 1 where a = 1",
    "@c1 delete from t1 where a = 1",
    "@c1 insert into t1 select a + 10, b from t1",
    "@c1 delete from t1",
    "@c1 truncate t1",
    "@c2 truncate t1",
    "@c2 drop table t1",
    "@c2 drop schema s1",
    "@c2 select * from s1.nope",
    "@c2 select * from nope.nope",
    "@c1 select * from s1.nope",
    "grant pg_read_all_data to c2",
    "@c2 select count(*) from t1",
    "revoke pg_read_all_data from c2",
    "grant pg_write_all_data to c2",
    "@c2 insert into t1 values (5, 5)",
    "@c2 select count(*) from t1",
    "revoke pg_write_all_data from c2",
    "set role c2; select count(*) from t1",
    # ---- owners
    "@c2 alter table t1 owner to c2",
    "alter table nope owner to c2",
    "alter table if exists nope owner to c2",
    "alter table t1 owner to nope",
    "alter table t1 owner to c2",
    ACL,
    "@c2 select count(*) from t1",
    "@c2 alter table t1 owner to c1",
    "@c2 alter table t1 owner to n1",
    "grant create on schema public to n1",
    "@c2 alter table t1 owner to n1",
    "alter table t1 owner to c2",
    "alter schema nope owner to c2",
    "alter schema s1 owner to c2",
    "@c2 alter schema s1 owner to o1",
    "@c2 alter schema s1 owner to n1",
    "@c1 alter schema s1 owner to c1",
    "select nspacl from pg_namespace where nspname = 's1'",
    "drop role c2",
    "drop role o1",
    "drop role n1",
    "drop role a1, v2",
    "drop role c1",
    "@c2 drop table t1",
    # ---- subscriptions
    "@c1 create subscription rt_s connection 'host=x password=y' publication p"
    " with (connect = false)",
    "@c1 create subscription rt_s connection 'host=x' publication p with (frob)",
    "grant pg_create_subscription to c1",
    "@c1 create subscription rt_s connection 'host=x password=y' publication p"
    " with (connect = false)",
    "grant create on database lake to c1",
    "@c1 create subscription rt_s connection 'host=x password=y' publication p"
    " with (connect = false, password_required = false)",
    "@c1 create subscription rt_s connection 'host=x' publication p"
    " with (connect = false, slot_name = none)",
    "@c1 create subscription rt_s connection 'host=x password=''''' publication p"
    " with (connect = false, slot_name = none)",
    "@c1 create subscription rt_s connection 'host=x password=y' publication p"
    " with (connect = false, slot_name = none)",
    "create subscription rt_p connection 'host=x password=y' publication p"
    " with (connect = false, slot_name = none, password_required = false)",
    "@c1 alter subscription rt_s connection 'host=y'",
    "alter subscription rt_s connection 'host=y'",
    "@c1 alter subscription rt_s set (password_required = false)",
    "@c1 alter subscription rt_s owner to o1",
    "@c1 alter subscription rt_s owner to nope",
    "@c1 alter subscription nope owner to o1",
    "@c1 alter subscription rt_s owner to c1",
    "@c2 alter subscription rt_s disable",
    "@c2 alter subscription rt_s owner to c2",
    "@c2 alter subscription rt_s connection 'host=y password=y'",
    "@c2 alter subscription rt_s set (binary)",
    "@c2 alter subscription rt_s skip (lsn = none)",
    "@c2 alter subscription rt_s refresh publication",
    "@c2 alter subscription rt_s set publication q with (refresh = false)",
    "@c2 alter subscription rt_s rename to rt_t",
    "@c2 comment on subscription rt_s is 'x'",
    "@c2 drop subscription rt_s",
    "@c1 comment on subscription rt_s is 'x'",
    "alter subscription rt_p owner to c1",
    "@c1 alter subscription rt_p set (binary)",
    "@c1 alter subscription rt_p rename to rt_q",
    "@c1 drop subscription rt_p",
    "alter subscription rt_p set (password_required = true)",
    "@c1 alter subscription rt_p rename to rt_q",
    "revoke create on database lake from c1",
    "@c1 alter subscription rt_q rename to rt_r",
    "grant n1 to c1",
    "@c1 alter subscription rt_q owner to n1",
    "@c1 drop subscription rt_q",
    "drop role c1",
    "@c1 select pg_stat_reset_subscription_stats(null)",
    "@c1 drop subscription rt_s",
    # ---- who is let in
    "alter role o1 password 'pw'",
    "@o1 select 1",
    "alter role c2 connection limit 0",
    "@c2 select 1",
    "alter role c2 connection limit -1",
    "revoke connect on database lake from public",
    "@c2 select 1",
    "grant connect on database lake to public",
    "@c2 select 1",
    # ---- for psql
    "create table t2 (a int)",
    "grant select on t2 to o1, public",
    "grant select, insert on t2 to c2 with grant option",
)

PSQL = (r"\du", r"\drg", r"\dp", r"\dn+ (public|s1)", r"\z t2")

DIFFERENT = {
    "create role y valid until '2020-13-01'": "no hint about datestyle",
}
"""Statements with another answer, and why."""


def answers(
    conninfo: Callable[..., str], boss: str
) -> Iterator[tuple[str, list[Answer]]]:
    """Each statement with what it was answered; ``boss`` is shown as postgres."""
    told: list[Answer] = []

    def plain(text: str | None) -> str | None:
        return None if text is None else text.replace(boss, "postgres")

    def tell(one: Failure) -> None:
        fields = (one.message, one.detail, one.hint)
        told.append((one.severity, one.sqlstate, *map(plain, fields)))

    for sql in SCRIPT:
        user, statement = {}, sql
        if sql.startswith("@"):
            name, statement = sql[1:].split(" ", 1)
            user = {"user": name, "password": "pw"}
        statement = statement.replace("postgres", boss)
        try:
            with Client(conninfo(dbname="lake", **user), on_notice=tell) as client:
                for outcome in client.run(statement):
                    if isinstance(outcome, Failure):
                        tell(outcome)
                    else:
                        shown = [tuple(map(plain, row)) for row in outcome.rows]
                        told.append((outcome.tag, *shown))
        except PublisherError as error:
            told.append(("FATAL", error.message.split("FATAL: ")[-1]))
        yield sql, told.copy()
        told.clear()


@pytest.fixture
def reference() -> Iterator[PostgresServer]:
    """A PostgreSQL 18 of its own: roles are the whole server's."""
    with PostgresServer(18) as server:
        server.psql("create database lake")
        yield server


@pytest.mark.slow
def test_every_answer_about_roles_is_postgresqls(
    reference: PostgresServer, make_node: Callable[..., Node], psql: Psql
) -> None:
    node = make_node().start()
    boss = str(node.value("select current_user"))
    theirs = dict(enumerate(answers(reference.conninfo, "postgres")))
    differences = []
    allowed = set()
    for i, (sql, ours) in enumerate(answers(node.conninfo, boss)):
        expected = theirs[i][1]
        if ours == expected:
            continue
        if sql in DIFFERENT:
            allowed.add(sql)
            continue
        differences.append(f"{sql}\n    PostgreSQL: {expected}\n    node:       {ours}")
    assert not differences, "\n".join(differences)
    assert allowed == set(DIFFERENT), "what no longer differs is not to be listed"
    for command in PSQL:
        shown = [
            plain(psql(conninfo(dbname="lake"), "-c", command).stdout, name)
            for conninfo, name in (
                (reference.conninfo, "postgres"),
                (node.conninfo, boss),
            )
        ]
        assert shown[0] == shown[1], command
        assert shown[0], command


def plain(printed: str, boss: str) -> str:
    """Without the widths of columns."""
    return re.sub(r"[ +|-]+", " ", printed.replace(boss, "postgres")).strip()
