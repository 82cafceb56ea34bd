"""What commits have done to rows, by whomever: replaying it gives what the table holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from wal2lake.lake import FieldSpec
from wal2lake.lake.capture.changedrows import row_changes
from wal2lake.lake.capture.commits import read_commit
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity

Row = tuple[bytes | None, ...]

FIELDS = (
    FieldSpec("id", "int", pg_type_oid=Oid(23)),
    FieldSpec("name", "string", pg_type_oid=Oid(25)),
    FieldSpec("n", "decimal(6,2)", pg_type_oid=Oid(1700), pg_typmod=(6 << 16 | 2) + 4),
)


def described(identity: ReplicaIdentity, key: Sequence[str]) -> Relation:
    whole = identity is ReplicaIdentity.FULL
    columns = tuple(
        Column(f.name, f.pg_type_oid, f.pg_typmod, whole or f.name in key)
        for f in FIELDS
    )
    return Relation(Oid(16384), "s", "t", identity, columns)


class Replayed:
    """A copy of a table that knows only what was captured."""

    def __init__(
        self, lake: DeltaTables, table: str, relation: Relation, key: list[int]
    ) -> None:
        self.rows: Counter[Row] = Counter()
        self.said: list[str] = []
        self._lake = lake
        self._table = table
        self._relation = relation
        self._key = key
        self._version = lake.state(table).version

    def go_on(self, memory: ComparisonMemory) -> None:
        newest = self._lake.state(self._table).version
        commits = self._lake.actions(self._table, self._version + 1, newest)
        for version, actions in enumerate(commits, self._version + 1):
            commit = read_commit(version, actions)
            if not commit.changes_rows:
                continue
            if commit.truncates:
                self.rows.clear()
            state = self._lake.state_at(self._table, version)
            for batch in row_changes(state, commit, self._relation, self._key, memory):
                self._take(batch)
        self._version = newest

    def _take(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            new = tuple(row[f"c{i}"] for i in range(len(FIELDS)))
            old = tuple(row.get(f"o{i}") for i in range(len(FIELDS)))
            op = chr(row["op"])
            self.said.append(op)
            if op != "I":
                self._remove(old if row["old"] else new)
            if op != "D":
                self.rows[new] += 1

    def _remove(self, known: Row) -> None:
        if self._key and self._relation.identity is not ReplicaIdentity.FULL:
            (found,) = [
                row for row in self.rows if all(row[i] == known[i] for i in self._key)
            ]
        else:
            found = known
        assert self.rows[found] > 0, found
        self.rows[found] -= 1
        self.rows += Counter()


@pytest.mark.parametrize(
    ("identity", "key", "vectors"),
    [
        (ReplicaIdentity.DEFAULT, ["id"], "true"),
        pytest.param(
            *(ReplicaIdentity.DEFAULT, ["id"], "false"), marks=pytest.mark.slow
        ),
        pytest.param(*(ReplicaIdentity.FULL, [], "true"), marks=pytest.mark.slow),
    ],
    ids=["by key", "rewritten files", "full without a key"],
)
def test_what_was_captured_is_what_the_table_holds(
    spark_session: SparkSession,
    lake: DeltaTables,
    queries: Queries,
    tmp_path: Path,
    identity: ReplicaIdentity,
    key: list[str],
    vectors: str,
) -> None:
    table = str(tmp_path / "t")
    lake.create(table, FIELDS, {"delta.enableDeletionVectors": vectors})
    there = relation(table)
    copy = Replayed(
        lake,
        table,
        described(identity, key),
        [i for i, f in enumerate(FIELDS) if f.name in key],
    )
    memory = ComparisonMemory(64 << 20, tmp_path / "memory")
    source = (
        "(SELECT id, 'm' || id AS name, cast(id as decimal(6,2)) n FROM range(5, 15))"
    )
    steps = {
        f"INSERT INTO {there} SELECT id, 'x' || id, 1.5 FROM range(10)": {"I"},
        f"UPDATE {there} SET name = NULL WHERE id % 3 = 0": {"U", "D", "I"},
        f"DELETE FROM {there} WHERE id IN (1, 2)": {"D"},
        f"MERGE INTO {there} t USING {source} s ON s.id = t.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *": {
            "U",
            "I",
            "D",
        },
        f"OPTIMIZE {there}": set(),
        f"INSERT OVERWRITE {there} SELECT * FROM {there} WHERE id > 4": {"D"},
        f"UPDATE {there} SET n = n": {"U"},
        f"RESTORE TABLE {there} TO VERSION AS OF 1": {"I", "U", "D"},
        f"TRUNCATE TABLE {there}": set("D"),
        f"INSERT INTO {there} VALUES (1, '', -0.01)": {"I"},
    }
    for step, expected in steps.items():
        before = len(copy.said)
        queries.run(step, job_group="x").batches.close()
        copy.go_on(memory)
        found = queries.run(
            f"SELECT cast(id as string), name, cast(n as string) FROM {there}",
            job_group="rows",
        )
        held = Counter(
            tuple(None if v is None else str(v).encode() for v in row.values())
            for batch in found.batches
            for row in batch.to_pylist()
        )
        assert copy.rows == held, step
        assert set(copy.said[before:]) <= expected, step
