"""Tables without a primary key, of which Spark reads what batches leave.

The model is a list that is searched from its beginning, as in ``pure/test_upsert_repeats.py``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.fakes.lake_log import write_log
from tests.spark.test_batches import operations

from wal2lake.lake.batch.batchport import StageRequest
from wal2lake.lake.port import Cursor, FieldSpec
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.staging.defaults import Fill
from wal2lake.lake.staging.logrows import LsnRange
from wal2lake.model import Column, ConflictType, Oid, Relation, ReplicaIdentity
from wal2lake.testing.rowmodel import RowEvent

FIELDS = (
    FieldSpec("n", "bigint", pg_type_oid=Oid(20)),
    FieldSpec("own", "string", pg_type_oid=Oid(25)),
    FieldSpec("f", "double", pg_type_oid=Oid(701)),
    FieldSpec("t", "string", pg_type_oid=Oid(25)),
    FieldSpec("ts", "timestamp", pg_type_oid=Oid(1184)),
    FieldSpec("l", "array<int>", pg_type_oid=Oid(1007)),
)
SENT = [f for f in FIELDS if f.name != "own"]
RELATION = Relation(
    Oid(1),
    "public",
    "t",
    ReplicaIdentity.FULL,
    tuple(Column(f.name, f.pg_type_oid, -1, True) for f in SENT),
)
CONTENTS = (
    ("1", "0", "a", "2026-01-01 00:00:00.000001+00", "{1,NULL}"),
    ("1", "-0", "a", "2026-01-01 00:00:00.000001+00", "{1,NULL}"),
    ("1", "NaN", "a", "2026-01-01 00:00:00.000002+00", "{1}"),
    (None, "1.5", None, None, None),
    (None, None, None, None, "{}"),
    ("2", None, "é", None, "{NULL,1}"),
)

Content = tuple[str | None, ...]


@dataclass
class World:
    """A table, filled and changed by batches."""

    spark: SparkSession
    lake: DeltaTables
    location: str
    port: DeltaBatches
    relation: Relation = RELATION
    batch: int = 0

    def apply(self, events: Sequence[RowEvent]) -> list[tuple[ConflictType, int]]:
        self.batch += 1
        source = write_log(
            Path(self.location).parent / f"{self.batch}.parquet", events, self.relation
        )
        staged = self.port.stage(
            StageRequest(
                namespace="public",
                name="t",
                state=self.lake.state(self.location),
                key=(),
                constraint="t_pkey",
                sources=[source],
                span=LsnRange(0),
                append=False,
                trusted=False,
                fills={"own": Fill(pa.array(["default"]))}
                if self.relation is RELATION
                else {},
            )
        )
        assert not staged.failures
        self.port.commit(staged, Cursor("app", self.batch))
        assert self.lake.state(self.location).cursor("app") == self.batch
        return [(c.type, c.count) for c in staged.conflicts]

    def rows(self) -> list[tuple[object, ...]]:
        """Contents as text, with ``own`` first."""
        frame = self.spark.read.format("delta").load(self.location)
        rows = frame.selectExpr(
            "own", "string(n)", "string(f)", "t", "unix_micros(ts)", "string(l)"
        )
        return [tuple(row) for row in rows.collect()]


@pytest.fixture
def world(
    spark_session: SparkSession, lake: DeltaTables, location: str, tmp_path: Path
) -> World:
    lake.create(location, FIELDS)
    port = DeltaBatches(
        spark_session, lake, tmp_path / "staging", cores=2, upsert_bytes=0
    )
    return World(spark_session, lake, location, port)


def shown(contents: Iterable[Content]) -> Counter[object]:
    """As ``World.rows`` reads them."""
    start = 1767225600_000000
    numbers = {"0": "0.0", "-0": "-0.0"}
    lists = {"{1,NULL}": "[1, null]", "{NULL,1}": "[null, 1]", "{1}": "[1]", "{}": "[]"}
    return Counter(
        (
            n,
            numbers.get(f or "", f),
            t,
            None if ts is None else start + int(ts[20:26]),
            lists.get(items or ""),
        )
        for n, f, t, ts, items in contents
    )


def meant(row: Content, model: list[Content]) -> Content:
    """The identical row if it is there, else the one that is equal: 0 is -0."""
    other: dict[Content, Content] = {
        CONTENTS[0]: CONTENTS[1],
        CONTENTS[1]: CONTENTS[0],
    }
    return row if row in model else other.get(row, row)


@pytest.mark.slow
def test_a_random_history_leaves_what_one_event_after_the_other_leaves(
    world: World,
) -> None:
    rng = random.Random(11)
    model: list[Content] = []
    world.apply([RowEvent(1, i, "I", CONTENTS[i % 6]) for i in range(12)])
    model += [CONTENTS[i % 6] for i in range(12)]
    for lsn in range(2, 4):
        events, missed = [], Counter[ConflictType]()
        for ordinal in range(30):
            kind = rng.choice("IUUUDD")
            old, new = rng.choice(CONTENTS), rng.choice(CONTENTS)
            if lsn == 3 and ordinal == 10:
                events.append(RowEvent(lsn, ordinal, "T"))
                model.clear()
                # What comes before it does not count.
                missed.clear()
            elif kind == "I":
                events.append(RowEvent(lsn, ordinal, "I", new))
                model.append(new)
            elif kind == "D":
                events.append(RowEvent(lsn, ordinal, "D", None, old))
                if meant(old, model) in model:
                    model.remove(meant(old, model))
                else:
                    missed[ConflictType.DELETE_MISSING] += 1
            else:
                events.append(RowEvent(lsn, ordinal, "U", new, old))
                if meant(old, model) in model:
                    model[model.index(meant(old, model))] = new
                else:
                    missed[ConflictType.UPDATE_MISSING] += 1
        conflicts = world.apply(events)
        assert Counter(row[1:] for row in world.rows()) == shown(model)
        assert Counter(kind for kind, _ in conflicts) == missed


@pytest.mark.slow
@pytest.mark.parametrize("constraint", [False, True])
def test_a_column_of_our_own_keeps_its_value_and_gets_its_default(
    world: World, constraint: bool
) -> None:
    a, b, c, d = CONTENTS[0], CONTENTS[3], CONTENTS[5], CONTENTS[1]
    world.apply(
        [RowEvent(1, 0, "I", a), RowEvent(1, 1, "I", b), RowEvent(1, 2, "I", b)]
    )
    world.spark.sql(f"update delta.`{world.location}` set own = 'mine' where n = 1")
    if constraint:
        world.spark.sql(
            f"alter table delta.`{world.location}` add constraint k check (n is null or n <> 99)"
        )
    conflicts = world.apply(
        [
            RowEvent(2, 0, "U", c, a),
            RowEvent(2, 1, "D", None, b),
            RowEvent(2, 2, "U", a, d),
            RowEvent(2, 3, "I", d),
            RowEvent(2, 4, "U", CONTENTS[4], d),
            RowEvent(2, 5, "D", None, d),
        ]
    )
    assert Counter((row[0], row[3]) for row in world.rows()) == Counter(
        {("mine", "é"): 1, ("default", None): 2}
    )
    assert conflicts == [
        (ConflictType.UPDATE_MISSING, 1),
        (ConflictType.DELETE_MISSING, 1),
    ]
    assert operations(world.location)[0] == "upsert"


@pytest.mark.slow
def test_intervals_of_one_span_are_equal(
    spark_session: SparkSession, lake: DeltaTables, location: str, tmp_path: Path
) -> None:
    fields = (FieldSpec("i", "string", pg_type_oid=Oid(1186)),)
    lake.create(location, fields)
    relation = replace(RELATION, columns=(Column("i", Oid(1186), -1, True),))
    port = DeltaBatches(
        spark_session, lake, tmp_path / "staging", cores=2, upsert_bytes=0
    )
    world = World(spark_session, lake, location, port, relation)
    here = ["30 days", "-1 years -1 mons +04:05:06.7", "infinity", "24:00:00.000001"]
    there = ["1 mon", "-390 days +04:05:06.7", "-infinity", "1 day 00:00:00.000001"]
    world.apply([RowEvent(1, i, "I", (text,)) for i, text in enumerate(here)])
    missed = world.apply(
        [RowEvent(2, i, "D", None, (text,)) for i, text in enumerate(there)]
    )
    assert missed == [(ConflictType.DELETE_MISSING, 1)]
    rows = spark_session.read.format("delta").load(location).collect()
    assert [row.i for row in rows] == ["infinity"]
