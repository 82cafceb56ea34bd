"""Who has made a row is in the tables' files, where no reader sees it, and goes where rows go."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.fakes.lake_log import FIELDS, by_key, rows_of, write_log
from tests.spark.test_batches import batches_of, read_outside, request

from wal2lake.lake.batch.batchport import Staged
from wal2lake.lake.origins import COLUMNS, LOCAL, BatchCommits, tagged
from wal2lake.lake.port import Cursor
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import ConflictType, Modified, Resolution
from wal2lake.pgtypes import Resolutions
from wal2lake.testing.rowmodel import RowEvent

OURS, THEIRS = 7, 9


def origins(lake: DeltaTables, location: str) -> dict[int, int | None]:
    """By ``number``."""
    state = lake.state(location)
    files = lake.files(state)
    assert files is not None
    found: dict[int, int | None] = {}
    for part in StoredRows(state, files).live([1]):
        named = COLUMNS[0] in part.column_names
        for row in part.to_pylist():
            found[row["number"]] = row[COLUMNS[0]] if named else None
    return found


def commits(origin: int) -> BatchCommits:
    lsn = np.arange(1, 50, dtype=np.int64)
    return BatchCommits(origin, lsn, lsn + 1000, lsn * 1_000_000)


@pytest.mark.parametrize(
    "mapping",
    [
        "none",
        pytest.param("name", marks=pytest.mark.slow),
        pytest.param("id", marks=pytest.mark.slow),
    ],
)
def test_origins_follow_their_rows_and_readers_see_none(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    mapping: str,
) -> None:
    properties = {} if mapping == "none" else {"delta.columnMapping.mode": mapping}
    # A checkpoint on the way: tags go through it.
    lake.create(location, FIELDS, {**properties, "delta.checkpointInterval": "3"})
    ours = batches_of(spark_session, lake, tmp_path, 1 << 20)
    done = 0

    def stage(
        port: DeltaBatches, events: list[RowEvent], by: int, **more: Any
    ) -> Staged:
        source = write_log(tmp_path / f"{by}-{done}.parquet", events)
        asked = request(lake, location, source, append=bool(more.pop("append", False)))
        asked = replace(asked, trusted=asked.append, commits=commits(by), **more)
        return port.stage(asked)

    def apply(
        port: DeltaBatches, events: list[RowEvent], by: int, **more: Any
    ) -> Staged:
        nonlocal done
        staged = stage(port, events, by, **more)
        assert not staged.failures, staged.failures
        done += 1
        port.commit(staged, Cursor(f"app{by}", done))
        return staged

    rows = [(0, n, "x", "y") for n in range(6)]
    apply(
        ours,
        [RowEvent(1, n, "I", row) for n, row in enumerate(rows)],
        OURS,
        append=True,
    )
    assert origins(lake, location) == dict.fromkeys(range(6), OURS)
    # Another subscription's change of a row of ours.
    met = apply(ours, [RowEvent(2, 0, "U", (0, 1, "theirs", "y"))], THEIRS).conflicts
    assert [(c.type, c.modified) for c in met] == [
        (ConflictType.UPDATE_ORIGIN_DIFFERS, Modified(OURS, 1001, 1_000_000))
    ]
    # A local statement: files of Spark's, tagged as the front door does.
    spark_session.sql(f"update delta.`{location}` set a = 'local' where number = 2")
    state = lake.state(location)
    (commit,) = lake.actions(location, state.version, state.version)
    (add,) = [
        a["add"] for a in commit if "add" in a and not a["add"].get("deletionVector")
    ]
    tag = tagged(add, Modified(LOCAL, 3, 5_000_000))
    lake.commit_changes(
        location,
        [{"remove": {**add, "deletionTimestamp": 1}}, {"add": tag}],
        Cursor("local", 1),
        read_version=state.version,
        operation="local transaction",
    )
    expected: dict[int, int | None] = dict.fromkeys(range(6), OURS)
    expected |= {1: THEIRS, 2: LOCAL}
    assert origins(lake, location) == expected
    # Somebody deletes with Spark: the others' origins stay.
    spark_session.sql(f"delete from delta.`{location}` where number = 5")
    del expected[5]
    assert origins(lake, location) == expected
    # By whoever wins: the local row is of second 5.
    wins = Resolutions(
        dict.fromkeys(
            (
                ConflictType.UPDATE_ORIGIN_DIFFERS,
                ConflictType.DELETE_ORIGIN_DIFFERS,
                ConflictType.INSERT_EXISTS,
            ),
            Resolution.LAST_UPDATE_WINS,
        )
    )
    staged = apply(
        ours,
        [
            RowEvent(4, 0, "U", (0, 2, "too early", "y")),
            RowEvent(4, 1, "D", None, (0, 1)),
            RowEvent(6, 0, "I", (0, 2, "late", "y")),
        ],
        OURS,
        resolutions=wins,
    )
    assert [(c.type, c.resolution) for c in staged.conflicts] == [
        (ConflictType.UPDATE_ORIGIN_DIFFERS, Resolution.KEEP_LOCAL),
        (ConflictType.DELETE_ORIGIN_DIFFERS, Resolution.APPLY_REMOTE),
        (ConflictType.INSERT_EXISTS, Resolution.APPLY_REMOTE),
    ]
    del expected[1]
    expected[2] = OURS
    assert origins(lake, location) == expected
    want = {(0, n): (0, n, "x", "y") for n in (0, 3, 4)} | {(0, 2): (0, 2, "late", "y")}
    assert by_key(rows_of(spark_session, location)) == want
    assert by_key(read_outside(location)) == want
    names = [field.name for field in deltalake.DeltaTable(location).schema().fields]
    assert names == [f.name for f in FIELDS]
    assert COLUMNS[0] not in json.dumps(
        [dict(file.action) for file in lake.files(lake.state(location)) or ()]
    )
    # Only who rewrites the files does not know whose they are.
    apply(
        ours,
        [
            RowEvent(7, 0, "U", (0, 3, "merged", "y")),
            RowEvent(8, 0, "I", (0, 9, "x", "y")),
        ],
        OURS,
    )
    expected[9] = OURS
    assert origins(lake, location) == expected
    assert COLUMNS[0] not in json.dumps(
        [dict(file.action) for file in lake.files(lake.state(location)) or ()]
    )
    (one,) = apply(ours, [RowEvent(9, 0, "U", (0, 3, "again", "y"))], THEIRS).conflicts
    assert one.modified == Modified(OURS, 1007, 7_000_000)
    assert len(rows_of(spark_session, location)[0]) == len(FIELDS)
    spark_session.sql(f"optimize delta.`{location}`")
    assert set(origins(lake, location).values()) == {None}
