"""``wal2lake check`` finds what is wrong with a publisher, and changes nothing."""

from __future__ import annotations

import pytest

from wal2lake.frontend.cli import __main__ as cli
from wal2lake.testing.postgres import PostgresServer


@pytest.fixture
def check(pg18, capsys):
    def run(*arguments: str, **parameters: str) -> tuple[int, str]:
        code = cli.main(["check", pg18.conninfo(**parameters), *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_a_good_publisher_has_no_problems_and_every_column_its_type(check, pg18):
    pg18.psql(
        """
        create type mood as enum ('sad', 'happy');
        create table "Orders" (
            id bigint primary key, amount numeric(10,2), free numeric, at timestamptz,
            tags text[], m mood, doc jsonb);
        create publication p for all tables
        """
    )
    code, text = check("-p", "p")
    assert code == 0, text
    assert "ok       wal_level is logical" in text
    assert "can open replication connections" in text
    assert 'ok       publication "p" exists' in text
    assert 'table "public.Orders": key (id)' in text
    for line in (
        " id     | bigint not null          | bigint        | ",
        " amount | numeric(10,2)            | decimal(10,2) | NaN cannot be stored",
        " tags   | text[]                   | array<string> | only one-dimensional",
        " m      | public.mood              | string        | kept as text",
    ):
        assert line in text, text
    assert "numeric without precision has no Spark type" in text
    assert "1 of 1 tables can hold TOASTed values" in text
    assert text.rstrip().splitlines()[-1].startswith("no problems, ")


def test_tables_without_identity_or_rights_are_problems(check, pg18):
    pg18.psql(
        """
        create table keyless (a int);
        create table whole (a int); alter table whole replica identity full;
        create table indexed (a int not null unique);
        alter table indexed replica identity using index indexed_a_key;
        create table nothing (a int primary key);
        alter table nothing replica identity nothing;
        create table secret (a int primary key);
        create publication p for all tables;
        drop role if exists reader;
        create role reader login;
        grant select on keyless, whole, indexed, nothing to reader
        """
    )
    code, text = check(user="reader")
    assert code == 1
    assert "problem  no replication connection is possible" in text
    assert 'hint: ALTER ROLE "reader" REPLICATION;' in text
    assert 'table "public.keyless" has no replica identity' in text
    assert 'ALTER TABLE "public"."keyless" REPLICA IDENTITY USING INDEX' in text
    assert 'table "public.nothing" has no replica identity' in text
    assert 'note     table "public.whole" has no primary key and REPLICA' in text
    assert 'table "public.secret" cannot be read' in text
    assert 'table "public.indexed" has no' not in text
    pg18.psql("drop owned by reader; drop role reader")


def test_what_create_subscription_refuses_is_a_problem_with_its_remedy(check, pg18):
    pg18.psql(
        """
        create table nothing (); create table half (id int primary key, "A" int, a int);
        create publication p for all tables
        """
    )
    code, text = check("-p", "p")
    assert code == 1
    assert 'problem  table "public.nothing" has no columns' in text
    assert "hint: Add a column, or take the table out of the publication" in text
    assert 'problem  columns "A" and "a" of table "public.half" differ in case' in text
    assert "hint: Leave one of them out with a column list" in text
    pg18.psql("create publication q for table half (id, a)")
    assert check("-p", "q")[0] == 0


def test_domains_are_shown_with_what_they_are_and_published_columns_only(check, pg18):
    pg18.psql(
        """
        create domain amt as numeric(10,2);
        create table t (id int primary key, a amt not null, b int,
            twice int generated always as (b * 2) stored);
        create publication p for table t with (publish_generated_columns = stored);
        create publication q for table t
        """
    )
    code, text = check("-p", "p")
    assert code == 0, text
    shown = " a      | public.amt (numeric(10,2)) not null | decimal(10,2) | NaN cannot"
    assert shown in text
    assert " twice  | integer " in text
    assert "twice" not in check("-p", "q")[1]


def test_publications_are_looked_for_and_their_gaps_told(check, pg18):
    code, text = check()
    assert code == 1
    assert "problem  there is no publication" in text
    pg18.psql(
        """
        create table t (a int primary key, b int);
        create publication inserts for table t where (a > 7) with (publish = 'insert')
        """
    )
    code, text = check()
    assert code == 0
    assert 'publication "inserts" does not publish UPDATE, DELETE, TRUNCATE' in text
    assert 'table "public.t" is published WHERE (a > 7)' in text
    code, text = check("-p", "inserts", "-p", "nope")
    assert code == 1
    assert 'problem  publication "nope" does not exist on the publisher' in text


def test_check_changes_nothing(check, pg18):
    pg18.psql("create table t (a int primary key); create publication p for table t")
    ask = "select pg_current_wal_insert_lsn(), (select count(*) from pg_replication_slots)"
    before = pg18.psql("select txid_current(); " + ask).split("\n")
    check()
    after = pg18.psql("select txid_current(); " + ask).split("\n")
    assert int(after[0]) == int(before[0]) + 1, "no transaction has written"
    assert before[1].split("|")[1] == after[1].split("|")[1]


def test_a_server_that_is_not_set_up_is_told_how(capsys):
    with PostgresServer(
        16,
        settings={
            "wal_level": "replica",
            "max_replication_slots": "0",
            "max_wal_senders": "1",
        },
    ) as server:
        code = cli.main(["check", server.conninfo()])
        text = capsys.readouterr().out
    assert code == 1
    assert "problem  wal_level is replica, logical is needed" in text
    assert "ALTER SYSTEM SET wal_level = logical; then restart" in text
    assert "problem  0 of 0 replication slots are free, a subscription needs" in text
    assert "the copy of existing rows needs a second" in text


def test_a_prepared_transaction_is_named_because_slots_wait_for_it(check, pg18):
    pg18.psql(
        "create table t (a int primary key); create publication p for table t;"
        f" begin; insert into t values (1); prepare transaction 'c{pg18.name}'"
    )
    code, text = check("-p", "p")
    assert code == 0, text
    assert "1 prepared transaction: creating a subscription and copying tables" in text
    pg18.psql(f"rollback prepared 'c{pg18.name}'")


def test_passwords_are_not_shown_and_errors_are_libpqs(capsys):
    code = cli.main(["check", "host=127.0.0.1 port=1 password=secret dbname=x"])
    captured = capsys.readouterr()
    assert code == 1
    assert "secret" not in captured.out + captured.err
    assert "Connection refused" in captured.err
    assert cli.main(["check", "nonsense"]) == 1
    assert "invalid connection string syntax" in capsys.readouterr().err
