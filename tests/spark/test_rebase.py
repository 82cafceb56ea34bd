"""A branch of real Delta files on a table that others have changed: Spark and deltalake read what
both sides have left, and capture what the branch has changed, once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from wal2lake.lake import Cursor, FieldSpec
from wal2lake.lake.capture.changedrows import row_changes
from wal2lake.lake.capture.commits import read_commit
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.lake.spark.branch.branches import Branch, Branches
from wal2lake.lake.spark.branch.rebase import Overtaken, rebase
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity

FIELDS = (
    FieldSpec("id", "int", pg_type_oid=Oid(23)),
    FieldSpec("v", "string", pg_type_oid=Oid(25)),
)

DESCRIBED = Relation(
    Oid(16384),
    "s",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", Oid(23), -1, True), Column("v", Oid(25), -1, False)),
)

Told = tuple[str, int, str | None]
"""Operation, key, new value."""


@dataclass
class World:
    """A table with rows (0, 'x') to (11, 'x') but for number 3, in a file with a vector; and a
    branch of that."""

    lake: DeltaTables
    queries: Queries
    branches: Branches
    table: str
    branch: Branch
    memory: ComparisonMemory

    def others(self, *statements: str) -> None:
        """They commit each."""
        for sql in statements:
            self._execute(sql, self.table)

    def ours(self, *statements: str) -> None:
        """Of the transaction."""
        for sql in statements:
            self._execute(sql, self.branch.location)

    def _execute(self, sql: str, place: str) -> None:
        self.queries.run(
            sql.replace("TABLE_", relation(place)), job_group="x"
        ).batches.close()

    def commit(self) -> list[Told]:
        """As the front door does; what capture reads from it."""
        state = self.lake.state(self.table)
        since = list(self.lake.actions(self.table, self.branch.base + 1, state.version))
        now = rebase(self.branch, self.branches.net_change(self.branch), since)
        self.branches.carry_over(self.branch, now.files)
        self.branches.carry_over(self.branch, now.files)
        done = self.lake.commit_changes(
            self.table,
            now.actions,
            Cursor("test", 1),
            read_version=state.version,
            operation="test",
        ).version
        self.branches.drop(self.branch)
        commit = read_commit(done, self.lake.actions(self.table, done, done)[0])
        there = self.lake.state_at(self.table, done)
        told: list[Told] = []
        for batch in row_changes(there, commit, DESCRIBED, [0], self.memory):
            for row in batch.to_pylist():
                key = row["o0"] if row["old"] else row["c0"]
                value = row["c1"]
                told.append(
                    (
                        chr(row["op"]),
                        int(key),
                        None if value is None else value.decode(),
                    )
                )
        return sorted(told)

    def rows(self) -> dict[int, str]:
        """As Spark has them, and deltalake the same."""
        sql = f"SELECT id, v FROM {relation(self.table)}"
        with self.queries.run(sql, job_group="rows").batches as batches:
            read = [
                tuple(row.values()) for batch in batches for row in batch.to_pylist()
            ]
        table = QueryBuilder().register("t", DeltaTable(self.table))
        outside = table.execute("select id, v from t").read_all()
        columns = (outside.column(i).to_pylist() for i in range(2))
        assert sorted(zip(*columns, strict=True)) == sorted(read)
        found = dict(read)
        assert len(found) == len(read)
        return found


@pytest.fixture
def begin(
    spark_session: SparkSession, lake: DeltaTables, queries: Queries, tmp_path: Path
) -> Callable[[], World]:
    def go() -> World:
        table = str(tmp_path / "a b")
        lake.create(table, FIELDS)
        for sql in (
            f"INSERT INTO {relation(table)} SELECT id, 'x' FROM range(0, 12, 1, 1)",
            f"DELETE FROM {relation(table)} WHERE id = 3",
        ):
            queries.run(sql, job_group="x").batches.close()
        branches = Branches(spark_session, lake, queries)
        branch = branches.open(table, None, str(tmp_path / "branch"), "open")
        memory = ComparisonMemory(64 << 20, tmp_path / "memory")
        return World(lake, queries, branches, table, branch, memory)

    return go


def test_rows_that_only_one_side_has_changed_are_as_that_side_has_left_them(
    begin: Callable[[], World],
) -> None:
    world = begin()
    world.ours(
        "UPDATE TABLE_ SET v = 'ours' WHERE id = 1",
        "DELETE FROM TABLE_ WHERE id = 2",
        "INSERT INTO TABLE_ VALUES (20, 'ours')",
        "UPDATE TABLE_ SET v = 'ours too' WHERE id IN (5, 20)",
    )
    world.others(
        "UPDATE TABLE_ SET v = 'theirs' WHERE id = 7",
        "INSERT INTO TABLE_ VALUES (30, 'theirs')",
        "DELETE FROM TABLE_ WHERE id IN (8, 30)",
        "UPDATE TABLE_ SET v = v || '!' WHERE id IN (7, 9)",
    )
    before = world.rows()
    assert world.commit() == [
        ("D", 2, None),
        ("I", 20, "ours too"),
        ("U", 1, "ours"),
        ("U", 5, "ours too"),
    ]
    expected = {**before, 1: "ours", 5: "ours too", 20: "ours too"}
    del expected[2]
    assert world.rows() == expected
    assert expected[7] == "theirs!" and 8 not in expected
    # Delta goes on from there.
    world.others("UPDATE TABLE_ SET v = 'z' WHERE id IN (1, 7, 20)")
    assert world.rows() == {**expected, 1: "z", 7: "z", 20: "z"}


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ("UPDATE TABLE_ SET v = 'o' WHERE id < 3", "DELETE FROM TABLE_ WHERE id = 2", "rows"),
        slow("DELETE FROM TABLE_", "UPDATE TABLE_ SET v = 't' WHERE id = 2", "rows"),
        slow("DELETE FROM TABLE_ WHERE id = 1", "DELETE FROM TABLE_", "files"),
        slow("DELETE FROM TABLE_ WHERE id = 1", "REORG TABLE TABLE_ APPLY (PURGE)", "files"),
        slow("DELETE FROM TABLE_ WHERE id = 1", "RESTORE TABLE TABLE_ TO VERSION AS OF 1", "."),
    ],
)  # fmt: skip
def test_what_both_have_changed_is_refused(
    begin: Callable[[], World], ours: str, theirs: str, why: str
) -> None:
    world = begin()
    world.ours(ours)
    world.others(theirs)
    before = world.rows()
    with pytest.raises(Overtaken, match=why):
        world.commit()
    assert world.rows() == before


def test_a_file_of_which_both_together_have_taken_all_goes(
    begin: Callable[[], World],
) -> None:
    world = begin()
    world.ours("DELETE FROM TABLE_ WHERE id < 6")
    world.others(
        "DELETE FROM TABLE_ WHERE id > 5", "INSERT INTO TABLE_ VALUES (40, 't')"
    )
    assert world.commit() == [("D", i, None) for i in (0, 1, 2, 4, 5)]
    assert world.rows() == {40: "t"}
    assert len(DeltaTable(world.table).file_uris()) == 1
