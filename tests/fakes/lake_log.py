"""A small log and a small table: what the tests of staging and of batches start from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from wal2lake.lake.port import FieldSpec, TableState
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.staging.layout import Uniqueness
from wal2lake.lake.staging.logrows import LogSource, LsnRange
from wal2lake.lake.staging.rowchanges import StageTarget
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity
from wal2lake.testing.rowmodel import UNCHANGED, Key, Row, RowEvent

INT4, TEXT, NUMERIC = Oid(23), Oid(25), Oid(1700)
FIELDS = (
    FieldSpec("grp", "int", pg_type_oid=INT4),
    FieldSpec("number", "int", pg_type_oid=INT4),
    FieldSpec("a", "string", pg_type_oid=TEXT),
    FieldSpec("b", "string", pg_type_oid=TEXT),
)
RELATION = Relation(
    Oid(1),
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    tuple(Column(f.name, f.pg_type_oid, -1, i < 2) for i, f in enumerate(FIELDS)),
)
TRUSTED = Uniqueness(trusted=True, constraint="t_pkey", relation="public.t")
UNTRUSTED = Uniqueness(trusted=False, constraint="t_pkey", relation="public.t")
EVERYTHING = LsnRange(0)


def text(value: object) -> bytes | None:
    if value is None or value is UNCHANGED:
        return None
    return value if isinstance(value, bytes) else str(value).encode()


def write_log(
    path: Path,
    events: Sequence[RowEvent],
    relation: Relation = RELATION,
    *,
    row_group_rows: int = 50,
) -> LogSource:
    """Events as the change log writes them."""
    width = len(relation.columns)
    full = relation.identity is ReplicaIdentity.FULL
    columns: dict[str, pa.Array] = {
        "commit_lsn": pa.array([e.lsn for e in events], pa.int64()),
        "ordinal": pa.array([e.ordinal for e in events], pa.int64()),
        "op": pa.array([ord(e.kind) for e in events], pa.uint8()),
        "old": pa.array(
            [0 if e.old is None else ord("O" if full else "K") for e in events],
            pa.uint8(),
        ),
    }
    for i in range(width):
        news = [text(e.new[i]) if e.new is not None else None for e in events]
        columns[f"c{i}"] = pa.array(news, pa.binary())
    for i in range(width):
        flags = [e.new is not None and e.new[i] is UNCHANGED for e in events]
        if any(flags):
            columns[f"u{i}"] = pa.array(flags)
    sent = relation.key_positions
    if any(e.old is not None for e in events):
        for at, i in enumerate(sent):
            olds = [text(e.old[at]) if e.old is not None else None for e in events]
            columns[f"o{i}"] = pa.array(olds, pa.binary())
    pq.write_table(
        pa.table(columns),
        path,
        row_group_size=row_group_rows,
        use_dictionary=False,
        write_statistics=["commit_lsn"],
        write_page_checksum=True,
    )
    return LogSource(str(path), relation, len(events), path.stat().st_size)


def target_of(
    state: TableState, key: tuple[str, ...] = ("grp", "number")
) -> StageTarget:
    return StageTarget(
        "public", "t", state.location, state.fields, state.physical_fields, key
    )


def rows_of(spark: SparkSession, location: str) -> list[Row]:
    return [tuple(r) for r in spark.read.format("delta").load(location).collect()]


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    listed = list(rows)
    found: dict[Key, Row] = {(row[0], row[1]): row for row in listed}
    assert len(found) == len(listed), "a key twice"
    return found


def fill(
    lake: DeltaTables, spark: SparkSession, location: str, rows: list[Row]
) -> None:
    ddl = ", ".join(f"{f.name} {f.spark_ddl}" for f in FIELDS)
    frame = spark.createDataFrame(rows, ddl)
    frame.write.format("delta").mode("append").save(location)
