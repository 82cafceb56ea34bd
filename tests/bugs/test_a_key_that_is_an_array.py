"""An UPDATE that changes a primary key of an array type. Whether the key has changed was an
internal error: Arrow compares no lists."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.fakes.columns_in_files import in_files

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.rowchanges import StageTarget, change_rows
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity

INTS = Oid(1007)


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (b"{1,2}", b"{2,1}", True),
        (b"{1,NULL}", b"{1}", True),
        (b"{1,NULL}", b"{1,NULL}", False),
        (b"{}", b"{NULL}", True),
    ],
)
def test_it_has_moved_if_it_is_another_array(
    before: bytes, after: bytes, moved: bool
) -> None:
    relation = Relation(
        Oid(1), "public", "t", ReplicaIdentity.DEFAULT, (Column("k", INTS, -1, True),)
    )
    field = FieldSpec("k", "array<int>", pg_type_oid=INTS)
    rows = pa.RecordBatch.from_pydict(
        {
            "commit_lsn": pa.array([1], pa.int64()),
            "ordinal": pa.array([0], pa.int64()),
            "op": pa.array([ord("U")], pa.uint8()),
            "old": pa.array([ord("K")], pa.uint8()),
            "c0": pa.array([after], pa.binary()),
            "o0": pa.array([before], pa.binary()),
        }
    )
    target = StageTarget("public", "t", "", (field,), in_files((field,)), ("k",))
    table, found, failures = change_rows(rows, relation, target)
    assert failures == ()
    assert (found.moved, table.column("moved").to_pylist()) == (moved, [moved])
