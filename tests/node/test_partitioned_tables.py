"""Partitioned tables with their default partition, beside PostgreSQL's."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.node.conftest import Psql

from wal2lake.errors import PublisherError
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

SAME = r"""
create table pt_c(b int) partition by range(a);
create table pt_c(a int, b int) partition by list(a, b);
create table pt_c(a int, b int primary key) partition by range(a);
create table pt_c(a int) partition by foo(a);
create table pt_plain(a int);
create table pt_x partition of pt_plain default;
create table pt_x partition of pt_nope default;
create table pt(a int primary key, "B" text not null) partition by range(a);
select * from pt;
update pt set "B" = 'x';

create table pt_rest partition of pt default;
create table pt_rest partition of pt default;
create table if not exists pt_rest partition of pt default;
create table pt_other partition of pt default;
insert into pt values (1, 'one'), (20, 'twenty');
insert into pt_rest values (3, 'three');
select * from pt order by a;
select * from pt_rest order by a;

update pt set "B" = 'drei' where a = 3;
delete from pt_rest where a = 20;
select p.a, r."B" from pt p join pt_rest r using (a) order by a;
truncate only pt;
truncate only pt_rest;
select count(*) from pt;

create table pt_l(a int, b text) partition by list(b);
\d pt*
\d pt
\d+ pt
\d pt_rest
\d+ pt_rest
\d pt_l
\di pt*
\dP pt*
\dt pt*
select indexdef from pg_indexes where tablename ~ '^pt' order by 1;
select tablename from pg_tables where tablename ~ '^pt' order by 1;
select table_name, table_type from information_schema.tables where table_name ~ '^pt' order by 1;
select relname, relkind, relispartition, relhassubclass, relam, relhasindex, relreplident
  from pg_class where relname ~ '^pt' order by 1;
select inhrelid::regclass, inhparent::regclass, inhseqno, inhdetachpending
  from pg_inherits order by inhrelid::regclass::text;
select partrelid::regclass, partstrat, partnatts, partdefid::regclass, partattrs, partclass
  from pg_partitioned_table order by partrelid::regclass::text;
select conname, contype, conrelid::regclass, conparentid <> 0 as of_parent, conislocal,
  coninhcount, connoinherit from pg_constraint where conname ~ '^pt'
  order by conrelid::regclass::text, conname;
select attrelid::regclass, attname, attislocal, attinhcount from pg_attribute
  where attrelid in ('pt'::regclass, 'pt_rest'::regclass) and attnum > 0 order by 1, 2;
select pg_get_partkeydef('pt'::regclass), pg_get_partkeydef('pt_rest'::regclass);
drop table pt;
select to_regclass('pt_rest');
drop table pt_l, pt_plain;
"""


@pytest.mark.slow
def test_a_partitioned_table_answers_as_postgresql_does(
    node: Node, pg18: Database, psql: Psql
) -> None:
    def run(conninfo: str, owner: str | None) -> list[str]:
        # In parts: psql has a minute for each.
        parts = [psql(conninfo, stdin=part) for part in SAME.split("\n\n")]
        stdout = "".join(part.stdout for part in parts)
        stderr = "".join(part.stderr for part in parts)
        errors = re.sub(r"(?m)^LINE 1:.*\n.*\n", "", stderr)
        # The owner's name is of another length.
        shown = re.sub(r" +", " ", f"{stdout}\n{errors}").replace(f"{owner}", "me")
        return re.sub(r"-+", "-", shown).split("\n")

    theirs = run(pg18.conninfo(), "postgres")
    assert run(node.conninfo(), node.value("select current_user")) == theirs


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("select * from only pr.t", "0A000"),
        ("update only pr.t set a = 1", "0A000"),
        ("delete from only pr.t", "0A000"),
        ("drop table pr.rest", "0A000"),
        ("insert into pr.empty values (1)", "23514"),
    ],
)
def test_what_is_not_done_to_partitions_is_refused(
    node: Node, sql: str, sqlstate: str
) -> None:
    node.sql(
        "create schema pr; create table pr.t (a int) partition by range (a);"
        " create table pr.rest partition of pr.t default;"
        " create table pr.empty (a int) partition by range (a)"
    )
    try:
        with pytest.raises(PublisherError) as caught:
            node.sql(sql)
        assert caught.value.sqlstate == sqlstate
    finally:
        node.sql("drop schema pr cascade")


@pytest.mark.slow
def test_both_names_show_what_is_replicated_and_written_to_either(
    node: Node, pg18: Database, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema both_names;"
        " create table both_names.t (a int primary key, b int) partition by range (a);"
        " create table both_names.low partition of both_names.t"
        " for values from (0) to (100);"
        " create table both_names.rest partition of both_names.t default;"
        " insert into both_names.t select g, g from generate_series(98, 102) g;"
        " create publication both_names for table both_names.t"
        " with (publish_via_partition_root)"
    )
    node.sql(
        "create schema both_names;"
        " create table both_names.t (a int primary key, b int) partition by range (a)"
    )
    with pytest.raises(PublisherError, match="has no partition") as caught:
        subscribe(pg18, "both_names")
    assert caught.value.sqlstate == "55000"
    node.sql("create table both_names.rest partition of both_names.t default")
    mirror = subscribe(pg18, "both_names")
    mirror.synced()
    pg18.psql(
        "update both_names.t set a = a + 100 where a < 100;"
        " delete from both_names.rest where a = 100"
    )
    mirror.assert_equal(["both_names.t"])
    rows = node.sql("select * from both_names.t order by a")
    assert node.sql("select * from both_names.rest order by a") == rows
    # What is written here under one name is seen under the other, and met by what comes.
    node.sql("insert into both_names.rest values (7, 7)")
    assert node.value("select b from both_names.t where a = 7") == "7"
    node.sql("delete from both_names.t where a = 7")
    assert node.value("select count(*) from both_names.rest where a = 7") == "0"
    pg18.psql("insert into both_names.t values (7, 8)")
    mirror.assert_equal(["both_names.t"])
    # The rows of one table come by one name.
    pg18.psql("create publication both_too for table both_names.rest")
    with pytest.raises(PublisherError, match="cannot be subscribed to both") as refused:
        subscribe(pg18, "both_too")
    assert refused.value.sqlstate == "0A000"
    slots = "select count(*) from pg_replication_slots where slot_name = 'both_too'"
    assert pg18.psql(slots) == "0"
