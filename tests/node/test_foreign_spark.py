"""A Spark job of somebody else's commits to a node's tables while it applies and publishes them.

The source writes keys below a million, the job keys above it, and takes rows away that the source
leaves alone: so what must be there at the end is known without the order of the two.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.conftest import Database
from tests.fakes.foreign_spark import ForeignSpark
from tests.node.conftest import create

from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


def write(source: Database, number: int) -> None:
    """A transaction of all three tables; numbers ascend."""
    source.transactions(
        [
            f"insert into fs.item values ({number}, 0, 'new');"
            f" update fs.item set n = n + 1 where id in ({number}, {number % 90 + 11});"
            f" delete from fs.item where id = {number - 5} and id >= 2000;"
            f" insert into fs.note values ({number % 7}, 'source');"
            " delete from fs.note where ctid = (select min(ctid) from fs.note"
            "  where b = 'source');"
            f" insert into fs.part values ({number}, '2026-01-01', 'source')"
        ]
    )


class Expected:
    """What the job adds to the source's rows, and takes from them."""

    def __init__(self, source: Database) -> None:
        self._source = source
        self.added: dict[str, list[str]] = {"item": [], "note": [], "part": []}
        self.gone: set[str] = set()
        """Rows of ``item``."""

    def rows(self, table: str) -> list[str]:
        here = self._source.psql(f"select t::text from fs.{table} t").splitlines()
        if table == "item":
            here = [row for row in here if row not in self.gone]
        return sorted([*here, *self.added[table]])


def lake_rows(node: Node, table: str) -> list[str]:
    columns = {"item": "id, n, v", "note": "a, b", "part": "id, day, v"}[table]
    found = node.sql(f"select {columns} from fs.{table}")
    return sorted("(" + ",".join(v or "" for v in row) + ")" for row in found)


def own(node: Node) -> str:
    """The node as a publisher."""
    facts = dict(one.split("=", 1) for one in node.conninfo().split(" ") if "=" in one)
    user = facts["user"].strip("'")
    return f"host=127.0.0.1 port={node.port} dbname=lake user={user}"


@pytest.mark.slow
def test_a_foreign_spark_job_beside_a_node(
    tmp_path: Path,
    make_node: Callable[..., Node],
    pg18: Database,
    database: Callable[..., Database],
) -> None:
    node = make_node(settings={"node.authentication": "trust"}).start()
    source, copy = pg18, database(18, "fs_copy")
    item = "create table fs.item (id int primary key, n int, v text)"
    part = "create table fs.part (id int, day date, v text, primary key (id, day))"
    source.psql(
        f"create schema fs; {item}; {part}; create table fs.note (a int, b text);"
        " alter table fs.note replica identity full;"
        " insert into fs.item select i, 0, 'start' from generate_series(1, 1000) i;"
        " insert into fs.note select i % 7, 'start' from generate_series(1, 100) i;"
        " insert into fs.part select i, date '2026-01-01' + i % 2, 'start'"
        "  from generate_series(1, 100) i;"
        " create publication fs for tables in schema fs"
    )
    node.sql("create schema fs")
    node.sql(f"{part} with (partition_columns = 'day')")
    create(node, source, "fs")
    mirror = Mirror(node, source.conninfo(), "fs")
    mirror.synced()
    node.sql("alter table fs.note replica identity full")
    node.sql("create publication on_it for tables in schema fs")
    copy.psql(f"create schema fs; {item}; {part}; create table fs.note (a int, b text)")
    copy.psql(f"create subscription fs connection '{own(node)}' publication on_it")

    expected = Expected(source)

    def equal(table: str) -> None:
        found: list[list[str]] = []

        def is_equal() -> bool:
            found[:] = [lake_rows(node, table), expected.rows(table)]
            return found[0] == found[1]

        def differ() -> str:
            ours, wanted = map(set, found)
            return (
                f"{table}: more {sorted(ours - wanted)[:9]}, less {sorted(wanted - ours)[:9]},"
                f" {len(found[0])} and {len(found[1])} rows\n{node.log_text()[-3000:]}"
            )

        wait_until(is_equal, timeout_seconds=60, describe=differ)

    def has(sql: str, rows: list[str]) -> bool:
        return sorted(copy.psql(sql).splitlines()) == rows

    def differs(table: str) -> str:
        return f"the subscriber's {table} is equal\n{node.log_text()[-3000:]}"

    def same() -> None:
        mirror.caught_up()
        for table in expected.added:
            equal(table)
            rows = expected.rows(table)
            of_copy = f"select t::text from fs.{table} t"
            wait_until(
                partial(has, of_copy, rows),
                timeout_seconds=90,
                describe=partial(differs, table),
            )

    def place(table: str) -> str:
        return f"delta.`{node.directory / 'warehouse' / 'fs' / table}`"

    items, notes, parts = place("item"), place("note"), place("part")
    jars = locate_jars(JarSource.from_environment(os.environ), os.environ)
    numbers = itertools.count(2000)
    with ForeignSpark(tmp_path / "foreign", jars) as spark:

        def beside(statement: str) -> None:
            """While what the source has just committed is being applied. Who commits all the time
            overtakes every MERGE, so it is three transactions."""
            for _ in range(3):
                write(source, next(numbers))
            spark.sql(statement)

        beside(
            f"insert into {items} select cast(id as int), 1, 'appended'"
            " from range(1000000, 1000010)"
        )
        beside(
            f"merge into {items} t using (select cast(id as int) as id from"
            " range(1000005, 1000015)) s on t.id = s.id when matched then update set"
            " v = 'merged' when not matched then insert (id, n, v) values (s.id, 2, 'merged')"
        )
        beside(f"update {items} set n = 7 where id = 1000001")
        beside(f"delete from {items} where id in (3, 1000002)")
        beside(f"insert into {notes} values (1000000, 'job'), (1000000, 'job')")
        beside(f"delete from {notes} where a = 6 and b = 'job'")
        beside(f"insert into {parts} values (1, date '2001-01-01', 'old')")
        beside(
            f"insert into {parts} replace where day = date '2001-01-01'"
            " values (2, date '2001-01-01', 'new')"
        )
        beside(f"optimize {items}")
        names = dict.fromkeys((0, 1, 3, 4), "appended") | dict.fromkeys(
            range(5, 15), "merged"
        )
        number = {n: 1 if n < 10 else 2 for n in names} | {1: 7}
        expected.added["item"] = [
            f"({1_000_000 + n},{number[n]},{v})" for n, v in names.items()
        ]
        expected.gone = {"(3,0,start)"}
        expected.added["note"] = ["(1000000,job)"] * 2
        expected.added["part"] = ["(2,2001-01-01,new)"]
        same()

        # Taken back as a whole, to where it stood.
        before = DeltaTable(node.directory / "warehouse" / "fs" / "item").version()
        spark.sql(f"delete from {items} where id < 1000005 and id > 20")
        spark.sql(f"insert into {items} values (3000000, 0, 'mistaken')")
        spark.sql(f"restore table {items} to version as of {before}")
        same()

        # The source changes a row that the job has deleted; and inserts one that it has inserted:
        # an error until the job takes its own away.
        spark.sql(f"insert into {items} values (500000, 0, 'first')")
        source.psql("update fs.item set n = 1 where id = 3")
        expected.gone = {"(3,1,start)"}
        source.psql("insert into fs.item values (500000, 9, 'second')")
        wait_until(
            lambda: (
                "23505"
                in str(node.sql("select sqlstate from wal2lake.subscription_errors"))
            ),
            timeout_seconds=60,
            describe=lambda: f"insert_exists stops apply\n{node.log_text()[-3000:]}",
        )
        spark.sql(f"delete from {items} where id = 500000")
        same()
        met = node.sql("select conflict_type, tablename from wal2lake.conflicts")
        assert ("update_missing", "item") in met

        # Killed in the middle of it.
        beside(f"insert into {items} values (2000000, 0, 'before')")
        node.kill()
        beside(f"delete from {items} where id = 4")
        beside(f"insert into {notes} values (null, 'away')")
        node.start()
        copy.psql(f"alter subscription fs connection '{own(node)}'")
        beside(f"update {items} set v = 'after' where id = 2000000")
        expected.gone.add("(4,0,start)")
        expected.added["item"].append("(2000000,0,after)")
        expected.added["note"].append("(,away)")
        same()
        copy.psql("drop subscription fs")
