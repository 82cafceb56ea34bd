"""Transactions that change rows, alter their table, and change rows again: what was sent before
ALTER TABLE has in new columns what the server says that older rows have."""

from __future__ import annotations

from tests.conftest import Database
from tests.node.conftest import Subscribe

from wal2lake.testing.node import Node

KEYED = ("changed", "gone", "later", "made", "wider", "again", "other")

TABLES = {
    **dict.fromkeys(KEYED, "id, v, m"),
    "wider": "id, v, k",
    "bag": "x, m",
    "thin": "x",
}
"""What is published of each afterwards."""

TRANSACTIONS = (
    # Rows of before have 5, whatever new rows have by default at the end.
    "insert into al.changed values (40, 'pre'); update al.changed set v = 'u' where id = 1;"
    " alter table al.changed add m int default 5;"
    " alter table al.changed alter m set default 6; insert into al.changed (id) values (41)",
    "insert into al.gone values (40, 'pre'); alter table al.gone add m int default 5;"
    " alter table al.gone alter m drop default; insert into al.gone (id) values (41)",
    "insert into al.later values (40, 'pre'); alter table al.later add m int;"
    " alter table al.later alter m set default 6; insert into al.later (id) values (41)",
    # A column that is not published, behind the one that is: the table is copied anew.
    "insert into al.made values (40, 'pre'); alter table al.made add m int default 5;"
    " alter table al.made add g int generated always as (m * 2) stored;"
    " update al.made set m = 7 where id = 2",
    # Two columns of one name: a row that has the first one says so with the same message.
    "alter table al.again add m int; update al.again set m = 8 where id = 1;"
    " alter table al.again drop m, add m int; update al.again set m = 1 where id = 2",
    "alter table al.other add m int; update al.other set m = 8 where id = 1;"
    " alter table al.other drop m, add m text; update al.other set m = 'x' where id = 2",
    # The key gets the new column.
    "delete from al.wider where id = 1; update al.wider set id = 20 where id = 2;"
    " alter table al.wider drop constraint wider_pkey, add k int not null default 9,"
    " add primary key (k, id); update al.wider set v = 'k' where id = 20;"
    " insert into al.wider values (20, 'other', 10); delete from al.wider where id = 3",
    # Rows that are named by all of their columns.
    "update al.bag set x = 9 where ctid = (select min(ctid) from al.bag where x = 1);"
    " alter table al.bag add m int default 4; update al.bag set m = 1 where x = 9;"
    " delete from al.bag where ctid = (select min(ctid) from al.bag where x = 1)",
    "update al.thin set y = 9 where ctid = (select min(ctid) from al.thin where x = 1);"
    " alter table al.thin drop y; update al.thin set x = 3 where x = 2;"
    " delete from al.thin where ctid = (select min(ctid) from al.thin where x = 1)",
)


def test_rows_before_and_behind_an_alter_table(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema al;"
        + "".join(
            f"create table al.{name} (id int primary key, v text);"
            f" insert into al.{name} select g, 'v' from generate_series(1, 4) g;"
            for name in KEYED
        )
        + "create table al.bag (x int); alter table al.bag replica identity full;"
        " insert into al.bag values (1), (1), (1), (2);"
        " create table al.thin (x int, y int); alter table al.thin replica identity full;"
        " insert into al.thin values (1, 1), (1, 1), (1, 2), (2, 2);"
        " create publication al for tables in schema al"
    )
    mirror = subscribe(pg18, "al", "with (schema_changes = follow)")
    mirror.synced()
    pg18.transactions(TRANSACTIONS)
    mirror.caught_up()
    mirror.synced()
    for name, columns in TABLES.items():
        asked = f"select {columns} from al.{name} order by {columns}"
        with mirror.source() as session:
            assert node.sql(asked) == session.query(asked), name
    assert node.sql("select error from wal2lake.subscription_errors") == []
