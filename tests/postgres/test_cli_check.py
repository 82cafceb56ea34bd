"""``wal2lake check`` finds what is wrong with a publisher, and changes nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess

import pytest
from tests.fakes.pooler_front import PoolerFront

from wal2lake.cli import __main__ as cli
from wal2lake.commands.preflight import pooler
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until


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


def test_columns_with_values_that_are_not_like_others_are_named(check, pg18):
    pg18.psql(
        """
        create table far (id int primary key, "Valid To" date, t timestamp, z timestamptz,
            n numeric(6,2), plain date, whole numeric(6,2));
        insert into far values (1, 'infinity', '294276-01-01', '2024-01-01', 'NaN',
            '2024-01-01', 1), (2, null, 'infinity', '0044-03-15 BC', 2, '9999-12-31', 1);
        create table near (id int primary key, d date); insert into near values (1, '0001-01-01');
        create publication p for all tables
        """
    )
    code, text = check("-p", "p")
    assert code == 0, text
    far = "infinite dates or years outside 1-9999, in column"
    assert f'note     table "public.far" has {far} "Valid To", "t", "z"\n' in text, text
    assert 'types here do not hold, in column "t", "n"\n' in text
    assert text.count(far) == 1


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
    text = check("-p", "q")[1]
    assert " twice  | integer " not in text
    assert 'has generated columns that are not published: "twice"' in text


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
    told = (
        'note     table "public.t" is published without UPDATE, DELETE, TRUNCATE: the'
    )
    assert told in text
    assert 'table "public.t" is published WHERE (a > 7)' in text
    pg18.psql("create publication hollow")
    code, text = check("-p", "hollow")
    assert code == 1
    assert 'problem  publication "hollow" has no tables' in text
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
            "max_slot_wal_keep_size": "64MB",
        },
    ) as server:
        code = cli.main(["check", server.conninfo()])
        text = capsys.readouterr().out
    assert code == 1
    assert "problem  wal_level is replica, logical is needed" in text
    assert "ALTER SYSTEM SET wal_level = logical; then restart" in text
    assert "note     max_slot_wal_keep_size is 64 MB: if the node is behind" in text
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


def test_what_a_publication_leaves_out_or_splits_is_told(check, pg18):
    """Unlogged and foreign tables, partitions, columns of the replica identity; each fact
    is the server's own."""
    pg18.psql(
        """
        create schema s;
        create table s.good (id int primary key, v text);
        create unlogged table s.scratch (id int primary key);
        create table s.root (id int primary key, v int) partition by range (id);
        create table s.low partition of s.root for values from (0) to (100);
        create unlogged table s.high partition of s.root for values from (100) to (200);
        create foreign data wrapper fdw; create server away foreign data wrapper fdw;
        create foreign table s.far (id int) server away;
        create table s.whole (id int, v text); alter table s.whole replica identity full;
        create publication leaves for tables in schema s;
        create publication roots for table s.root
            with (publish_via_partition_root = true);
        create publication part for table s.whole (id);
        create publication inserts for table s.good with (publish = 'insert');
        create publication rest for table s.good with (publish = 'update, delete');
        """
    )
    code, text = check("-p", "leaves")
    assert code == 0, text
    for told in (
        'note     table "s.far" is a foreign table, so it is not published',
        "note     2 tables are not logged, so they are not published\n"
        '         detail: Tables: "s.high", "s.scratch".\n'
        "         hint: ALTER TABLE ... SET LOGGED;",
        'note     table "s.low" is a partition that is published under its own name',
        'note     table "s.whole" has no primary key and REPLICA IDENTITY FULL',
    ):
        assert told in text, text
    assert 'table "s.good" is' not in text
    code, text = check("-p", "roots")
    assert code == 0, text
    assert 'table "s.root" is published as one, with its partitions: TRUNCATE' in text
    assert 'table "s.high" is not logged, so it is not published' in text
    assert "s.scratch" not in text
    code, text = check("-p", "part")
    assert code == 1, text
    assert (
        'table "s.whole" is published without columns of its replica identity' in text
    )
    # Also a filter on columns around one that is gone, and one that is harmless.
    pg18.psql(
        """
        create table s.filtered (gone int, id int primary key, "V" text, w int);
        alter table s.filtered drop column gone;
        create publication filtered for table s.filtered (id)
            where (id > 0 and lower("V") = 'x' or (w, id) = (1, 2));
        create publication inserted for table s.filtered where (w > 0)
            with (publish = 'insert, truncate')
        """
    )
    code, text = check("-p", "filtered")
    assert code == 1, text
    assert (
        'table "s.filtered" is published with a row filter over columns that are not in'
        ' its replica identity ("V", "w"), so the source refuses UPDATE and DELETE on it'
    ) in text
    with pytest.raises(RuntimeError, match="cannot update table"):
        pg18.psql("insert into s.filtered values (1); update s.filtered set w = 1")
    assert check("-p", "inserted")[0] == 0
    # Together they publish all but one operation.
    assert (
        'table "s.good" is published without TRUNCATE:'
        in check("-p", "inserts", "-p", "rest")[1]
    )


def test_servers_of_each_version_are_asked(any_pg, capsys):
    any_pg.psql(
        """
        create table t (id int primary key, g int generated always as (id * 2) stored);
        create unlogged table u (id int primary key);
        create table root (id int primary key) partition by list (id);
        create table leaf partition of root default;
        create publication p for all tables
        """
    )
    assert cli.main(["check", any_pg.conninfo(), "-p", "p"]) == 0
    text = capsys.readouterr().out
    assert "no problems, 3 notes" in text, text
    for told in (
        'table "public.u" is not logged, so it is not published',
        'table "public.t" has generated columns that are not published: "g"',
        'table "public.leaf" is a partition that is published under its own name',
    ):
        assert told in text, text


def test_a_pooler_in_between_is_found_and_named(check, pg18, monkeypatch):
    pg18.psql("create table t (a int primary key); create publication p for table t")
    port = pg18.server.port
    with PoolerFront(port) as front:
        code, text = check("-p", "p", port=str(front.port))
    assert code == 0, text
    assert (
        "note     a connection pooler is in between: its limits and time-outs" in text
    )
    pg18.psql(
        f"alter database {pg18.name} set datestyle = german;"
        f"alter database {pg18.name} set extra_float_digits = 0"
    )
    with PoolerFront(port) as front:
        code, text = check("-p", "p", port=str(front.port))
    assert code == 1, text
    assert (
        "problem  a connection pooler is in between that ignores what a connection sets"
        " at its start (datestyle, extra_float_digits): the copy may bring values in another form"
    ) in text
    assert "another server process" not in text
    with PoolerFront(port, transactions=True) as front:
        code, text = check("-p", "p", port=str(front.port))
    assert (
        "problem  a connection pooler is in between that gives each transaction" in text
    )
    assert "hint: Connect to the server itself, not to a pooler." in text
    monkeypatch.setattr(pooler, "ANSWER_SECONDS", 0.5)
    with PoolerFront(port, single=True) as front:
        code, text = check("-p", "p", port=str(front.port))
    assert (
        "problem  a connection pooler is in between, and does not serve two connections at"
        " once, which the copy needs: the server has not answered within 0.5 seconds\n"
    ) in text
    with PoolerFront(port, old=True) as front:
        code, text = check("-p", "p", port=str(front.port))
    assert code == 1
    assert "unsupported startup parameter: options" in text
    assert "hint: A connection pooler (PgBouncer) has answered" in text
    assert "pooler" not in check("-p", "p")[1]


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="no PgBouncer here")
def test_a_real_pgbouncer_is_found_too(check, pg18, tmp_path):
    """1.18 takes no replication connection; which server process it gives is its mode."""
    pg18.psql("create table t (a int primary key); create publication p for table t")
    tmp_path.chmod(0o777)
    for mode, told in (
        ("session", "note     a connection pooler is in between: its limits"),
        ("transaction", "problem  a connection pooler is in between that gives each"),
    ):
        with _pgbouncer(pg18, tmp_path, mode) as port:
            code, text = check("-p", "p", port=str(port))
        assert code == 1, text
        assert told in text
        assert "unsupported startup parameter: replication" in text


@contextlib.contextmanager
def _pgbouncer(database, folder, mode):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = folder / f"{mode}.ini"
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={database.server.port} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"auth_type = any\npool_mode = {mode}\nunix_socket_dir =\n"
        "ignore_startup_parameters = options\n"
    )
    as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
    with subprocess.Popen(
        ["pgbouncer", "-q", *as_user, str(settings)], stderr=subprocess.DEVNULL
    ) as pooler:
        try:
            wait_until(lambda: _listens(port), describe="pgbouncer listens")
            yield port
        finally:
            pooler.terminate()


def _listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
