"""A branch takes any statement, and what it has become is what its table becomes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from wal2lake.errors import InternalError
from wal2lake.lake import Cursor, FieldSpec
from wal2lake.lake.branch import lookup
from wal2lake.lake.delta.datafile import write_data_file
from wal2lake.lake.spark.branch.branches import Branch, Branches, place_of_branches
from wal2lake.lake.spark.branch.keys import BranchKeys, Key
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries, QueryResult, relation
from wal2lake.model import Oid
from wal2lake.observe import locks


def rows(queries: Queries, location: str) -> list[tuple[object, ...]]:
    found = queries.run(f"SELECT * FROM {relation(location)}", job_group="rows")
    return sorted(
        tuple(row.values()) for batch in found.batches for row in batch.to_pylist()
    )


def execute(queries: Queries, sql: str) -> None:
    queries.run(sql, job_group="x").batches.close()


def test_a_branch_is_locked_while_its_table_is(
    lake: DeltaTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the table's schema is called."""
    monkeypatch.setattr(locks, "_is_checked", True)
    monkeypatch.setattr(locks, "_threads", threading.local())
    branch = lake.writing(f"{place_of_branches('/w', 7)}/x-1")
    for name in ("Public", "public"):
        table = lake.writing(f"/w/{name}/t")
        with table, branch:
            pass
        with branch, pytest.raises(InternalError), table:
            pass


def test_an_earlier_version_has_all_that_the_log_says_of_its_files(
    lake: DeltaTables, location: str
) -> None:
    """What later commits say of the files that they remove is less: no statistics."""
    state = lake.create(location, [FieldSpec("id", "int")])
    added = write_data_file(
        pa.table({"id": pa.array([1, 2], pa.int32())}),
        location,
        state.fields,
        state.physical_fields,
    )
    lake.commit_files(location, [added], Cursor("one", 1))
    expected = [file.action for file in lake.files(lake.state(location)) or ()]
    assert "stats" in expected[0]
    checksum = Path(location) / "_delta_log" / f"{1:020}.crc"
    line = json.loads(checksum.read_text())
    # As of a table with more than fifty files.
    del line["allFiles"]
    checksum.write_text(json.dumps(line))
    lake.commit_files(location, [], Cursor("one", 2), replace=True)
    listed = lake.listed(lake.state(location), 1)
    assert listed is not None
    assert [file.action for file in listed[1]] == expected


@pytest.mark.parametrize(
    ("own", "earlier"),
    [
        (True, True),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
    ids=["ours, of an earlier version", "ours", "delta's clone"],
)
def test_what_statements_do_to_a_branch_its_table_becomes(
    spark_session: SparkSession,
    lake: DeltaTables,
    queries: Queries,
    tmp_path: Path,
    own: bool,
    earlier: bool,
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
        # What says which files the version has.
        (Path(table) / "_delta_log" / f"{version:020}.crc").unlink()
    if earlier:
        execute(queries, f"INSERT INTO {relation(table)} VALUES (100, 'later')")
    branch = branches.open(table, version, str(tmp_path / "branch"), "open")
    (made,) = (a["commitInfo"] for a in lake.actions(branch.location, 0, 0)[0][:1])
    assert made["operation"] == "CREATE TABLE"
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
    later = [(100, "later")] if earlier else []
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
    numeric = FieldSpec("n", "string", pg_type_oid=Oid(1700))
    lake.create(table, [FieldSpec("i", "int"), numeric, FieldSpec("v", "int")])
    execute(
        queries, f"INSERT INTO {relation(table)} SELECT id, '1.50', 0 FROM range(9)"
    )
    branches = Branches(spark_session, lake, queries)
    keys = BranchKeys(spark_session, lake, queries)
    branch = branches.open(table, None, str(tmp_path / "branch"), "open")

    def found(values: str, key: Key) -> list[dict[str, object]] | None:
        execute(queries, f"INSERT INTO {relation(branch.location)} VALUES {values}")
        version = branches.state(branch).version
        commit = lake.actions(branch.location, version, version)[0]
        added = [a["add"] for a in commit if "add" in a]
        batch = keys.repeated(branch, added, key, "keys")
        branches.cut_back(branch, version - 1)
        return None if batch is None else batch.to_pylist()

    one, both = Key(("i",)), Key(("i", "n"))
    assert found("(3, 'x', 1)", one) == [{"k0": 3}]
    assert found("(30, 'x', 1)", one) is None
    assert found("(30, 'x', 1), (31, 'x', 1)", one) is None
    assert found("(30, 'x', 1), (30, 'y', 1)", one) == [{"k0": 30}]
    assert found("(3, '1.5', 1)", both) is not None
    assert found("(3, '1.51', 1), (3, '15', 1)", both) is None
    branches.drop(branch)


_STORED = """
    SELECT uuid || id AS u, timestamp'1582-01-01 00:00:00.000001' + make_dt_interval(id) AS t,
      timestamp_ntz'2024-01-01' + make_dt_interval(id) AS n, double(id) AS d,
      decimal(id) AS m, id < 0 AS b, encode(uuid || id, 'utf-8') AS y,
      date'1960-01-01' + int(id) AS dt, array(int(id)) AS a
    FROM (SELECT id, 'ÿ-8b1c-4b1e-9a53-longer than what statistics keep-' AS uuid FROM range({}))
"""


@pytest.mark.slow
def test_few_keys_are_found_here_as_spark_finds_them(
    spark_session: SparkSession,
    lake: DeltaTables,
    queries: Queries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    run = queries.run

    def counted(sql: str, **options: Any) -> QueryResult:
        asked.append(sql)
        return run(sql, **options)

    monkeypatch.setattr(queries, "run", counted)
    kinds = "string timestamp timestamp_ntz double decimal(10,2) boolean binary date"
    kinds += " array<int>"
    names = "u t n d m b y dt a"
    table = str(tmp_path / "a%20b")
    fields = [
        FieldSpec(name, kind)
        for name, kind in zip(names.split(), kinds.split(), strict=True)
    ]
    lake.create(table, fields)
    execute(queries, f"INSERT INTO {relation(table)} {_STORED.format(6)}")
    # Gone before the branch, and in it.
    execute(queries, f"DELETE FROM {relation(table)} WHERE d = 4")
    branches = Branches(spark_session, lake, queries)
    keys = BranchKeys(spark_session, lake, queries)
    branch = branches.open(table, None, str(tmp_path / "branch"), "open")
    there = relation(branch.location)
    execute(queries, f"DELETE FROM {there} WHERE d = 5")

    def insert(condition: str) -> list[dict[str, Any]]:
        rows = f"SELECT * FROM ({_STORED.format(9)}) WHERE {condition}"
        execute(queries, f"INSERT INTO {there} {rows}")
        return newest()

    def newest() -> list[dict[str, Any]]:
        version = branches.state(branch).version
        commit = lake.actions(branch.location, version, version)[0]
        return [action["add"] for action in commit if "add" in action]

    def found(*columns: str) -> list[dict[str, object]] | None:
        asked.clear()
        batch = keys.repeated(branch, added, Key(columns), "keys")
        assert bool(asked) == (columns == ("a",) or not lookup._FEW)
        return None if batch is None else batch.to_pylist()

    added = insert("d IN (3, 8)")
    compared = [
        tuple(key.split()) for key in ("u", "t", "d", "y", "m", "u t n d m b y dt")
    ]
    here = [found(*columns) for columns in compared]
    assert all(here) and found("b") == [{"k0": False}] and found("a") == [{"k0": [3]}]
    with monkeypatch.context() as patch:
        patch.setattr(lookup, "_FEW", 0)
        assert here[-1] == found(*compared[-1])
    branches.cut_back(branch, branches.state(branch).version - 1)

    added = insert("d IN (4, 5, 6, 7, 8)")
    assert not any(found(*columns) for columns in compared)
    twice = "SELECT 'z', double(x) FROM (SELECT explode(array('-0', 'NaN', NULL)) x)"
    execute(queries, f"INSERT INTO {there} (u, d) {twice}")
    added = newest()
    assert found("u") == [{"k0": "z"}]
    assert found("d") == [{"k0": 0.0}]
    assert found("u", "d") is None

    # What others have committed to the table since.
    def taken() -> list[dict[str, object]] | None:
        state = lake.state(table)
        commits = lake.actions(table, branch.base + 1, state.version)
        others = [a["add"]["path"] for commit in commits for a in commit if "add" in a]
        key = Key(("u", "m"))
        asked.clear()
        added = branches.net_change(branch).added
        batch = keys.taken(branch, added, state, others, key, "keys")
        assert bool(asked) == (not lookup._FEW)
        return None if batch is None else batch.to_pylist()

    other = f"INSERT INTO {relation(table)} SELECT * FROM ({_STORED.format(9)})"
    execute(queries, f"{other} WHERE d = 3")
    assert taken() is None
    execute(queries, f"{other} WHERE d = 7")
    met = taken()
    assert met
    with monkeypatch.context() as patch:
        patch.setattr(lookup, "_FEW", 0)
        assert met == taken()
    branches.drop(branch)

    # Delta's own clone names files and vectors in its own way.
    branch = branches.open(table, branch.base, str(tmp_path / "clone"), "open")
    there = relation(branch.location)
    added = insert("d = 4")
    assert found("u") is None
    added = insert("d = 3")
    assert found("u", "n")
    branches.drop(branch)
