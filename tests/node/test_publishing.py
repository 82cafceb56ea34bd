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
    ours = run(node.conninfo(), node.value("select current_user"))
    differences = [
        line
        for line in difflib.unified_diff(theirs, ours, lineterm="", n=0)
        if not line.startswith(("@@", "---", "+++"))
    ]
    assert differences == [], "\n".join(differences)
