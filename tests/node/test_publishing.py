r"""Publications on a whole node, beside PostgreSQL's: psql's commands, writes that are refused,
what ALTER TABLE and DROP do to what is published."""

from __future__ import annotations

import difflib
import re

from tests.conftest import Database
from tests.node.conftest import Psql

from wal2lake.testing.node import Node

SAME = r"""
create schema px;
set search_path = px;
create table t1(id int primary key, a int, b text not null);
create table t2(x int, y int);
create table pt(id int primary key, a int) partition by range(id);
create table pd partition of pt default;

create publication p1 for table t1 (id, a) where (id > 0 and id in (1, 2)), t2;
create publication p2 for tables in schema px with (publish = 'insert, truncate');
create publication p3 for all tables with (publish = '');
create publication p4 for table pt where (a < 5) with (publish_via_partition_root);
comment on publication p1 is 'one';
\dRp
\dRp p1
\dRp+
\d t1
\d pt
\d pd
\d t2

insert into t1 values (1, 2, 'x');
insert into t2 values (1, 2);
update t1 set a = 3;
update t2 set x = 2;
delete from t2;
truncate t2;
insert into t2 values (1, 2);
alter table t2 replica identity full;
update t2 set x = 2;
alter publication p1 set table t1 where (a > 1), t2;
update t1 set a = 3;
delete from t1;
alter table t1 replica identity full;
update t1 set a = 3;
\d t1
\d t2

alter table t1 rename column a to aa;
alter table t1 drop column aa;
alter publication p1 add table pt (id);
alter table t1 drop column aa cascade;
alter table t1 replica identity using index t1_pkey;
\dRp+ p1
\d t1
select tablename, attnames, rowfilter from pg_publication_tables where pubname = 'p1' order by 1;
alter table t2 rename to t3;
alter table t3 set schema public;
\dRp+ p1
drop table t1, t3;
drop table pt;
\dRp+ p1
drop schema px cascade;
\dRp+ p2
drop publication p1, p2, p3, p4;
\dRp
"""


def test_publications_answer_as_postgresql_does(
    node: Node, pg18: Database, psql: Psql
) -> None:
    def run(conninfo: str, owner: str) -> list[str]:
        # In parts: psql has three minutes for each.
        text = ""
        for part in SAME.split("\n\n"):
            done = psql(conninfo, stdin=f"set search_path = px;\n{part}")
            text += f"{done.stdout}\n{done.stderr}"
        # The owner's name is of another length.
        shown = re.sub(r" +", " ", text).replace(f" {owner} |", " me |")
        return re.sub(r"-+", "-", shown).split("\n")

    theirs = run(pg18.conninfo(), "postgres")
    ours = run(node.conninfo(), str(node.value("select current_user")))
    differences = [
        line
        for line in difflib.unified_diff(theirs, ours, lineterm="", n=0)
        if not line.startswith(("@@", "---", "+++"))
    ]
    assert differences == [], "\n".join(differences)


CONTRADICTING = r"""
create schema cl;
create table cl.t (id int primary key, a int, b int);
create table cl.other (id int primary key);
create publication cl1 for table cl.t (id, a), cl.other;
create publication cl2 for table cl.t (id, b), cl.other;
create publication cl3 for table cl.other;
select 1 from pg_create_logical_replication_slot('cl', 'pgoutput');
insert into cl.other values (1);
{both}
begin;
insert into cl.other values (2);
insert into cl.t values (1, 1, 1);
commit;
{both}
{one}
delete from cl.t;
{both}
{one}
truncate cl.t;
{both}
{one}
alter publication cl2 set table cl.t, cl.other;
insert into cl.t values (2, 2, 2);
{both}
{one}
alter publication cl2 set (publish = 'insert');
update cl.t set a = 3;
{both}
{one}
alter publication cl1 set (publish = 'truncate');
alter publication cl2 set (publish = 'truncate');
truncate cl.t;
{both}
alter publication cl1 set (publish = 'insert');
alter publication cl2 set (publish = 'insert');
alter publication cl2 set table cl.t (a, id), cl.other;
insert into cl.t values (3, 3, 3);
{both}
alter publication cl2 set table cl.t (id), cl.other;
delete from cl.t;
{both}
{one}
alter publication cl1 set table cl.t (id, a, b), cl.other;
alter publication cl2 set table cl.t, cl.other;
insert into cl.t values (4, 4, 4);
{both}
select pg_drop_replication_slot('cl');
drop publication cl1, cl2, cl3;
drop table cl.t, cl.other;
drop schema cl;
"""

READ = (
    "select data from pg_logical_slot_get_binary_changes('cl', null, null,"
    " 'proto_version', '1', 'publication_names', '{}');"
)


def test_contradicting_column_lists_stop_the_changes_of_their_table_alone(
    pg18: Database, node: Node, psql: Psql
) -> None:
    script = CONTRADICTING.format(both=READ.format("cl1,cl2"), one=READ.format("cl3"))

    def said(conninfo: str) -> list[str]:
        # Of each message the kind; no positions.
        done = psql(
            f"{conninfo} options='-c client_min_messages=error'", "-Atqa", stdin=script
        )
        lines = f"{done.stdout}{done.stderr}".splitlines()
        return [re.sub(r"(?<=^\\x..).*|[0-9A-F]+/[0-9A-F]+", "", one) for one in lines]

    wanted = said(pg18.conninfo())
    assert said(node.conninfo()) == wanted
    assert sum("different column lists" in line for line in wanted) == 6
