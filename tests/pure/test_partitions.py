"""A partition's values as text, and rows that are written partition by partition."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wal2lake.errors import StorageError
from wal2lake.lake.compaction.rewrite import MANY, MANY_IN_PARTITION, worth_compacting
from wal2lake.lake.delta import datafile
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.partitions import by_partition, column_of, value_of, values_in
from wal2lake.lake.port import PhysicalField, can_partition
from wal2lake.lake.tablefiles import (
    DataFile,
    add_action,
    files_from_json,
    files_to_json,
)

_COLUMNS = {
    "i": pa.array([7, -5, None, 2**62], pa.int64()),
    "b": pa.array([True, False, None, True]),
    "d": pa.array([0, -800_000, None, 4_000_000], pa.date32()),
    "t": pa.array([-1, 253_402_300_800_000_000, None, 5], pa.timestamp("us", "UTC")),
    "n": pa.array([-62_135_596_800_000_001, 0, None, 5], pa.timestamp("us")),
    "c": pa.array(
        [Decimal("-1.50"), Decimal("0.00"), None, Decimal("12345678.90")],
        pa.decimal128(10, 2),
    ),
}


def test_each_value_comes_back_from_its_text() -> None:
    table = pa.table({**_COLUMNS, "row": list(range(4))})
    places = range(len(_COLUMNS))
    for columns in ([place] for place in places), [list(places)]:
        for chosen in columns:
            seen = 0
            for values, rows in by_partition(table, chosen):
                at = pa.array(rows.column("row").to_pylist())
                seen += len(at)
                for i, text in zip(chosen, values, strict=True):
                    kind = table.schema.field(i).type
                    wanted = table.column(i).take(at).combine_chunks()
                    assert column_of(text, kind, len(at)).equals(wanted)
                    known = values_in(table.column(i))
                    assert text is None or value_of(text, kind) in known
            assert seen == 4


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("", pa.int32(), None),
        ("2024-2-9", pa.date32(), (datetime.date(2024, 2, 9)).toordinal() - 719_163),
        ("-0044-03-15", pa.date32(), -735_525),
        ("1970-01-01 00:00:01", pa.timestamp("us", "UTC"), 1_000_000),
        ("1970-01-01T00:00:01.5Z", pa.timestamp("us", "UTC"), 1_500_000),
        ("TRUE", pa.bool_(), True),
    ],
)
def test_what_others_write_is_read_too(
    text: str, kind: pa.DataType, value: object
) -> None:
    assert value_of(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2023-02-29", pa.date32()),
        ("2023-13-01", pa.date32()),
        ("today", pa.timestamp("us")),
        ("1.5", pa.int64()),
        ("yes", pa.bool_()),
    ],
)
def test_what_is_no_value_is_not_taken_for_one(text: str, kind: pa.DataType) -> None:
    with pytest.raises(StorageError):
        value_of(text, kind)


def test_types_whose_values_their_texts_do_not_tell_apart() -> None:
    assert all(map(can_partition, ("int", "DATE", "decimal(10,2)", "timestamp_ntz")))
    refused = ("string", "binary", "double", "float", "array<int>", "char(3)")
    assert not any(map(can_partition, refused))


def test_many_partitions_do_not_open_as_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datafile, "MOST_OPEN", 3)
    physical = (
        PhysicalField("p", "p", None, "int", is_partition=True),
        PhysicalField("v", "v", None, "int"),
    )
    values = list(range(10)) * 2
    rows = pa.table({"p": pa.array(values, pa.int32()), "v": list(range(20))})
    most = 0
    with TableWriter(str(tmp_path), physical) as writer:
        for part in (rows.slice(0, 10), rows.slice(10, 10)):
            writer.write(part)
            most = max(most, len(writer._open))
        added = writer.finish()
    assert most == 3
    assert writer.rows == 20
    assert files_from_json(files_to_json(added)) == added
    found = []
    for one in added:
        file = DataFile(add_action(one, data_change=True))
        table = pq.read_table(tmp_path / file.path, partitioning=None)
        assert table.column_names == ["v"]
        assert set(json.loads(file.action["stats"])["minValues"]) == {"v"}
        (value,) = file.partition.values()
        found += [(int(value or "-1"), v) for v in table.column("v").to_pylist()]
    assert sorted(found) == sorted(zip(values, range(20), strict=True))

    with pytest.raises(RuntimeError), TableWriter(str(tmp_path / "."), physical) as w:
        w.write(rows)
        raise RuntimeError
    assert len(list(tmp_path.iterdir())) == len(added)


def test_partitions_are_compacted_apart() -> None:
    def file(name: str, partition: str) -> DataFile:
        stats = json.dumps({"numRecords": 10})
        values = {"p": partition}
        return DataFile(
            {"path": name, "size": 100, "stats": stats, "partitionValues": values}
        )

    few = [file(f"f{n}", str(n)) for n in range(MANY)]
    assert worth_compacting(few) == []
    more = [file(f"m{n}", "x") for n in range(MANY_IN_PARTITION)]
    assert worth_compacting([*few, *more]) == more
    assert worth_compacting([*few[:2], *more]) == []
