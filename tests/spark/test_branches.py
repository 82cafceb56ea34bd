"""A branch takes any statement, and what it has become is what its table becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from wal2lake.lake import Cursor, FieldSpec
from wal2lake.lake.branch.branches import Branch, Branches
from wal2lake.lake.branch.keys import Key, Keys
from wal2lake.lake.delta.tables import DeltaTables
from wal2lake.lake.query import Queries, relation


def rows(queries: Queries, location: str) -> list[tuple[object, ...]]:
    found = queries.run(f"SELECT * FROM {relation(location)}", job_group="rows")
    return sorted(
        tuple(row.values()) for batch in found.batches for row in batch.to_pylist()
    )


def execute(queries: Queries, sql: str) -> None:
    queries.run(sql, job_group="x").batches.close()


@pytest.mark.parametrize("own", [True, False], ids=["ours", "delta's clone"])
def test_what_statements_do_to_a_branch_its_table_becomes(
    spark_session: SparkSession,
    lake: DeltaTables,
    queries: Queries,
    tmp_path: Path,
    own: bool,
) -> None:
    table = str(tmp_path / "s" / "a%20b")
    # The name of a column asks for column mapping.
    column = "a b" if own else "ab"
    lake.create(table, [FieldSpec("id", "int"), FieldSpec(column, "string")])
    execute(
        queries, f"INSERT INTO {relation(table)} SELECT id, 'x' || id FROM range(20)"
    )
    execute(queries, f"DELETE FROM {relation(table)} WHERE id = 3")
    before = rows(queries, table)
    branches = Branches(spark_session, lake, queries)
    version = lake.state(table).version
    if not own:
        # Of an older version the files are not at hand.
        execute(queries, f"INSERT INTO {relation(table)} VALUES (100, 'later')")
    branch = branches.open(table, version, str(tmp_path / "branch"), "open")
    there = relation(branch.location)
    assert rows(queries, branch.location) == before
    name = f"`{column}`"
    execute(queries, f"INSERT INTO {there} VALUES (50, 'new'), (51, 'new')")
    execute(queries, f"UPDATE {there} SET {name} = 'upd' WHERE id IN (5, 50)")
    execute(queries, f"DELETE FROM {there} WHERE id IN (7, 51)")
    kept, noted = rows(queries, branch.location), branches.state(branch).version
    execute(queries, f"DELETE FROM {there}")
    execute(queries, f"INSERT INTO {there} VALUES (1, 'gone')")
    branches.cut_back(branch, noted)
    assert rows(queries, branch.location) == kept
    execute(queries, f"DELETE FROM {there} WHERE id = 9")
    kept = rows(queries, branch.location)
    _commit(lake, branches, branch, table)
    branches.drop(branch)
    later = [] if own else [(100, "later")]
    assert rows(queries, table) == sorted([*kept, *later])
    assert not (tmp_path / "branch").exists()
    # Delta goes on from there.
    execute(queries, f"UPDATE {relation(table)} SET {name} = 'z' WHERE id = 50")
    assert (50, "z") in rows(queries, table)


def _commit(lake: DeltaTables, branches: Branches, branch: Branch, table: str) -> None:
    change = branches.net_change(branch)
    branches.carry_over(branch, change.files)
    branches.carry_over(branch, change.files)
    lake.commit_changes(
        table,
        change.actions,
        Cursor("test", 1),
        read_version=lake.state(table).version,
        operation="test",
    )


def test_a_key_that_is_there_twice_is_found(
    spark_session: SparkSession, lake: DeltaTables, queries: Queries, tmp_path: Path
) -> None:
    table = str(tmp_path / "t")
    lake.create(
        table, [FieldSpec("i", "int"), FieldSpec("n", "string"), FieldSpec("v", "int")]
    )
    execute(
        queries, f"INSERT INTO {relation(table)} SELECT id, '1.50', 0 FROM range(9)"
    )
    branches = Branches(spark_session, lake, queries)
    keys = Keys(spark_session, lake, queries)
    branch = branches.open(table, None, str(tmp_path / "branch"), "open")

    def found(values: str, key: Key) -> list[dict[str, object]] | None:
        execute(queries, f"INSERT INTO {relation(branch.location)} VALUES {values}")
        version = branches.state(branch).version
        commit = lake.actions(branch.location, version, version)[0]
        added = [a["add"] for a in commit if "add" in a]
        batch = keys.repeated(branch, added, key, "keys")
        branches.cut_back(branch, version - 1)
        return None if batch is None else batch.to_pylist()

    one, both = Key(("i",)), Key(("i", "n"), frozenset({"n"}))
    assert found("(3, 'x', 1)", one) == [{"k0": 3}]
    assert found("(30, 'x', 1)", one) is None
    assert found("(30, 'x', 1), (31, 'x', 1)", one) is None
    assert found("(30, 'x', 1), (30, 'y', 1)", one) == [{"k0": 30}]
    assert found("(3, '1.5', 1)", both) is not None
    assert found("(3, '1.51', 1), (3, '15', 1)", both) is None
    branches.drop(branch)
