"""Rows of the tables with which the Delta project tests its own readers: the node's reader and
delta-rs read the same values, before and behind a checkpoint that the node writes.

``fixtures/delta_tables.tar.xz`` has tables with their data files from ``connectors/golden-tables``
in the repository of Delta Lake (Apache License 2.0, in the archive).
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from wal2lake.lake.delta.versions.checkpoints import write_checkpoint
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.delta.versions.replay import replay
from wal2lake.lake.plain import PlainRead
from wal2lake.lake.plain.read import is_plain
from wal2lake.lake.store import LocalStore

ARCHIVE: Final = Path(__file__).parent / "fixtures/delta_tables.tar.xz"

NOT_OF_DELTA_RS: Final = {
    "basic-with-vacuum-protocol-check-feature",
    "type-widening",
    "type-widening-nested",
}
"""Tables with features that delta-rs does not read."""

SPARKS: Final = ("tinyint", "struct", "map", "array", "variant", "float", "double")
"""Types of which the node leaves some columns to Spark: nested ones, those that it does not write,
and partitions by fractions and by text."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        # Python before 3.11.4 has no filter.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)
    golden = root / "connectors/golden-tables/src/main/resources/golden"
    places = (log.parent for log in golden.glob("**/_delta_log"))
    return {str(place.relative_to(golden)): place for place in places}


def _rows_of_ours(table: Path) -> tuple[list[str], pa.Table]:
    """The columns that the node reads by itself, and their rows."""
    known = KnownVersions().newest(str(table))
    assert known is not None
    state = known.state
    files = list(replay(str(table), LocalStore(table), state.version).files.values())
    pairs = list(zip(state.fields, state.physical_fields, strict=True))
    columns = [field.name for field, physical in pairs if is_plain(field, physical)]
    for field, physical in pairs:
        if field.name not in columns:
            ddl = field.spark_ddl
            assert ddl.startswith(SPARKS) or physical.is_partition, (table, ddl)
    port: Any = SimpleNamespace(plainly_read=lambda location, version: (state, files))
    read = PlainRead.of(port, str(table), None, columns)
    assert read is not None
    batches = list(read.read())
    assert read.rows in (None, sum(batch.num_rows for batch in batches))
    return columns, pa.Table.from_batches(batches)


def _values(table: pa.Table, columns: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Values as text that is the same for one value in different types of Arrow."""
    texts = []
    for name in columns:
        column = table.column(name)
        kind = column.type
        if pa.types.is_timestamp(kind):
            column = pc.cast(column, pa.timestamp("us", kind.tz and "UTC"))
        if pa.types.is_binary_view(kind):
            column = pc.cast(column, pa.binary())
        texts.append([str(value) for value in column.to_pylist()])
    return Counter(zip(*texts, strict=True))


def test_every_row_is_read_as_others_read_it(tables: dict[str, Path]) -> None:
    assert len(tables) > 60
    read = 0
    for name, table in sorted(tables.items()):
        columns, ours = _rows_of_ours(table)
        values = _values(ours, columns)
        read += ours.num_rows
        if name not in NOT_OF_DELTA_RS:
            query = QueryBuilder().register("t", DeltaTable(str(table)))
            theirs = pa.table(query.execute("select * from t").read_all())
            assert values == _values(theirs, columns), name
        known = KnownVersions().newest(str(table))
        assert known is not None
        write_checkpoint(str(table), LocalStore(table), known.state.version)
        assert _values(_rows_of_ours(table)[1], columns) == values, name
    assert read > 1500


def test_rows_of_tables_that_only_the_node_and_spark_read(
    tables: dict[str, Path],
) -> None:
    columns, rows = _rows_of_ours(tables["basic-with-vacuum-protocol-check-feature"])
    assert _values(rows, columns[:1]).total() == rows.num_rows == 100
    _, rows = _rows_of_ours(tables["type-widening"])
    narrow, wide = (list(row.values()) for row in rows.to_pylist())
    # The first file has the columns' former types: a float, decimals of fewer digits, a date.
    assert narrow == [
        *(1, 2, float(np.float32(3.4)), 5.0, 6.0, 7.0),
        *map(Decimal, ("123.45", "67.89", "1", "2", "3", "4")),
        datetime(2024, 9, 9),
    ]
    assert wide[:3] == [2**63 - 1, 2**63 - 1, 1.234567890123]
    assert wide[-2:] == [
        Decimal("123456789012345678.9"),
        datetime(2024, 9, 9, 12, 34, 56, 123456),
    ]
