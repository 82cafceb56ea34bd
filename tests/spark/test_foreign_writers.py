"""Other writers of a table, with Spark or without: no row of theirs is lost, and none of ours."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from tests.fakes.apply_world import World
from tests.fakes.lake_log import FIELDS, RELATION, rows_of, write_log
from tests.fakes.publisher import Change, Transaction
from tests.spark.test_batches import batches_of, operations, request

from wal2lake.lake.port import CommitConflict, Cursor, FieldSpec
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.model import Oid, ReplicaIdentity
from wal2lake.observe.failpoints import arm
from wal2lake.testing.rowmodel import Row, RowEvent
from wal2lake.testing.waits import wait_until

Model = dict[int, Row]


class Foreign:
    """What somebody else does to the table, and to the model: rows by ``number``."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.spark, self.table = spark, f"delta.`{location}`"
        self.location = location
        self.numbers = itertools.count(1000)

    def append(self, rows: Model) -> None:
        number = next(self.numbers)
        self.spark.sql(f"insert into {self.table} values (0, {number}, 'append', null)")
        rows[number] = (0, number, "append", None)

    def merge(self, rows: Model) -> None:
        number = next(self.numbers)
        source = self.spark.createDataFrame(
            [(0, 3, "merge", None), (0, number, "merge", None)],
            "grp int, number int, a string, b string",
        )
        target = DeltaTable.forPath(self.spark, self.location).alias("t")
        (
            target.merge(source.alias("s"), "t.grp = s.grp and t.number = s.number")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )
        rows[3] = (0, 3, "merge", None)
        rows[number] = (0, number, "merge", None)

    def delete(self, rows: Model) -> None:
        """With a deletion vector."""
        number = max(n for n in rows if 10 <= n < 100)
        self.spark.sql(f"delete from {self.table} where number = {number}")
        del rows[number]

    def overwrite(self, rows: Model) -> None:
        frame = self.spark.read.format("delta").load(self.location)
        frame = frame.where("number <> 9").localCheckpoint()
        frame.write.format("delta").mode("overwrite").save(self.location)
        rows.pop(9, None)

    def optimize(self, rows: Model) -> None:
        self.spark.sql(f"optimize {self.table}")

    def vacuum(self, rows: Model) -> None:
        name = "spark.databricks.delta.retentionDurationCheck.enabled"
        self.spark.conf.set(name, "false")
        try:
            self.spark.sql(f"vacuum {self.table} retain 0 hours")
        finally:
            self.spark.conf.unset(name)


ACTIONS = ("append", "delete", "overwrite", "merge", "optimize", "vacuum")


def ours(rows: Model, lsn: int, *, whole: bool) -> list[RowEvent]:
    """A batch of each kind of event, and what it does to the model."""

    def named(number: int) -> Row:
        return rows[number] if whole else (0, number)

    return [
        RowEvent(lsn, 0, "I", (0, 3000 + lsn, "ours", "b")),
        RowEvent(lsn, 1, "U", (0, 3, f"ours{lsn}", "b"), named(3) if whole else None),
        RowEvent(lsn, 2, "D", None, named(20 + lsn)),
    ]


def apply_ours(rows: Model, lsn: int, *, whole: bool) -> None:
    for event in ours(rows, lsn, whole=whole):
        if event.new is not None:
            rows[event.new[1]] = event.new
        else:
            rows.pop(20 + lsn, None)


@pytest.mark.parametrize(
    ("upsert_bytes", "key", "actions"),
    [
        (1 << 20, True, ACTIONS[:3]),
        pytest.param(300, True, ACTIONS[:3], marks=pytest.mark.slow),
        pytest.param(1 << 20, True, ACTIONS[3:], marks=pytest.mark.slow),
        (1 << 20, False, ACTIONS[:2]),
    ],
    ids=["at once", "runs", "more", "without a key"],
)
def test_whoever_commits_while_a_batch_is_applied_loses_nothing_and_gets_nothing_lost(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    upsert_bytes: int,
    key: bool,
    actions: Sequence[str],
) -> None:
    """Between evaluation and commit."""
    port = batches_of(spark_session, lake, tmp_path, upsert_bytes)
    lake.create(location, FIELDS)
    rows: Model = {n: (0, n, "old", "b") for n in range(40)}
    ddl = "grp int, number int, a string, b string"
    frame = spark_session.createDataFrame(list(rows.values()), ddl).repartition(2)
    frame.write.format("delta").mode("append").save(location)
    foreign = Foreign(spark_session, location)
    relation = RELATION
    if not key:
        columns = tuple(replace(c, is_key=True) for c in RELATION.columns)
        relation = replace(RELATION, identity=ReplicaIdentity.FULL, columns=columns)
    hook: list[Callable[[], None]] = []

    tried = 0

    def attempt(lsn: int) -> None:
        nonlocal tried
        tried += 1
        source = write_log(
            tmp_path / f"{tried}.parquet", ours(rows, lsn, whole=not key), relation
        )
        staged = port.stage(
            request(lake, location, source, key=("grp", "number") if key else ())
        )
        assert not staged.failures
        while hook:
            hook.pop()()
        try:
            port.commit(staged, Cursor("app", lsn))
        except CommitConflict:
            port.discard(staged)
            raise

    for lsn, action in enumerate(actions, start=1):
        if lsn == 2:
            # Between batches it is noticed, too.
            foreign.append(rows)
        hook.append(functools.partial(getattr(foreign, action), rows))
        listed = set(Path(location).glob("*.parquet"))
        with pytest.raises(CommitConflict):
            attempt(lsn)
        if action not in ("overwrite", "optimize", "vacuum"):
            left = {path.name for path in set(Path(location).glob("*")) - listed}
            state = lake.state(location)
            named = json.dumps([dict(file.action) for file in lake.files(state) or ()])
            assert all(name in named for name in left if name.startswith("part-")), (
                "a file of the attempt has stayed"
            )
        attempt(lsn)
        apply_ours(rows, lsn, whole=not key)
        assert sorted(rows_of(spark_session, location), key=str) == sorted(
            rows.values(), key=str
        ), action
    seen = operations(location)
    assert seen[0] == "upsert"
    assert not any((tmp_path / "warehouse" / "public").glob("_*"))


def test_rows_that_others_append_are_met_by_the_next_insert_of_their_key(
    lake: DeltaTables,
    spark_session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker, whose inserts need no look as long as nobody else writes."""
    root = tmp_path / "warehouse"
    fields = tuple(FieldSpec(n, "string", pg_type_oid=Oid(25)) for n in ("a0", "a1"))
    lake.create(str(root / "t1"), fields)
    faults = tmp_path / "faults"
    monkeypatch.setenv("WAL2LAKE_FAILPOINTS", str(faults))
    faults.mkdir()

    def insert(key: str) -> Change:
        return Change(1, "I", (key.encode(), b"ours"))

    def append(key: str) -> None:
        spark_session.createDataFrame(
            [(key, "theirs")], "a0 string, a1 string"
        ).write.format("delta").mode("append").save(location)

    def found() -> list[Row]:
        return sorted(rows_of(spark_session, location))

    with World(tmp_path, tables=(1,), root=str(root)) as world:
        side = world.side
        location = side.location(1)
        batches = DeltaBatches(
            spark_session, lake, tmp_path / "staging", cores=2, upsert_bytes=1 << 20
        )
        side.start(lake, batches)
        side.send(Transaction(100, (insert("a"),)))
        side.reaches(108)
        # While a batch waits for its commit: it is evaluated again, and nobody is told.
        arm(faults, "apply.staged", "pause 4")
        side.send(Transaction(200, (insert("b"),)))
        wait_until(lambda: not (faults / "apply.staged").exists())
        append("c")
        side.reaches(208)
        assert found() == [("a", "ours"), ("b", "ours"), ("c", "theirs")]
        assert side.error == ""
        # What came that way is met.
        side.send(Transaction(300, (insert("c"),)))
        assert "conflict=insert_exists" in side.stops("finished at 0/12C")
        spark_session.sql(f"delete from delta.`{location}` where a0 = 'c'")
        side.reaches(308)
        assert found() == [("a", "ours"), ("b", "ours"), ("c", "ours")]
