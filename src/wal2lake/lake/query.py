"""Spark SQL for the front door: text in, Arrow out.

Comes in: Spark SQL whose tables are in path form (``relation``). Goes out: the result's
columns, with the PostgreSQL type where the table's metadata names it, and Arrow record
batches. Called by frontend; one thread per running statement.

Why this way. Batches are served one Spark partition after the other, in result order, and
the next partition is computed while this one is consumed: memory is bounded by two
partitions however large the result is. A statement is cancelled through its job group,
which must therefore be unique per statement; the group stays cancelled, so a cancel that
comes during planning stops the jobs that would follow.

Sources: Spark 4.1 Dataset.toArrowBatchRdd, PythonRDD.toLocalIteratorAndServe,
SparkContext.cancelJobGroupAndFutureJobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.serializers import NoOpSerializer, read_int, write_int
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.util import local_connect_and_auth

from wal2lake.lake.fields import from_struct_field
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.sparkerrors import translated


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A running statement's answer. Iterate ``batches`` once, in the same thread."""

    fields: tuple[FieldSpec, ...]
    schema: pa.Schema
    """Of every batch; duplicate column names are possible."""
    batches: Iterator[pa.RecordBatch]
    """Raises Wal2LakeError; 57014 after ``cancel``."""


class Queries:
    """Runs statements on one session; safe for many threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm

    def run(
        self, sql: str, *, job_group: str, row_limit: int | None = None
    ) -> QueryResult:
        """Execute. A command (DML, DDL) has happened when this returns.

        ``row_limit`` caps a query's rows. ``job_group`` must be new for each statement.
        """
        context = self._spark.sparkContext
        with translated():
            context.setJobGroup(job_group, "wal2lake query", interruptOnCancel=False)
            frame = self._spark.sql(sql)
            if row_limit is not None:
                frame = frame.limit(row_limit)
            fields = _fields(frame._jdf.schema())
            schema = to_arrow_schema(frame.schema)
            batches = frame._jdf.toArrowBatchRdd()
            served = self._jvm.PythonRDD.toLocalIteratorAndServe(batches, True)
        return QueryResult(
            fields, schema, _receive(self._spark, served, schema, job_group)
        )

    def describe(self, sql: str) -> tuple[FieldSpec, ...]:
        """Return the result columns without running anything (commands neither)."""
        with translated():
            state = self._spark._jsparkSession.sessionState()
            plan = state.sqlParser().parsePlan(sql)
            return _fields(state.analyzer().executeAndCheck(plan, None).schema())

    def cancel(self, job_group: str) -> None:
        """Stop a statement, from any thread. Unknown groups do no harm."""
        with translated():
            self._spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(job_group)


def identifier(name: str) -> str:
    """Quote one identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def relation(location: str, version: int | None = None) -> str:
    """Return the FROM item of a Delta table by its place, optionally at one version."""
    item = f"delta.{identifier(location)}"
    return item if version is None else f"{item} version as of {int(version)}"


def _fields(java_schema: Any) -> tuple[FieldSpec, ...]:
    struct = StructType.fromJson(json.loads(java_schema.json()))
    return tuple(from_struct_field(field) for field in struct.fields)


_NEXT_PARTITION = 1
_PARTITION_FOLLOWS = 1
_FAILED = -1


def _receive(
    spark: SparkSession, served: Any, schema: pa.Schema, job_group: str
) -> Iterator[pa.RecordBatch]:
    """Ask for one partition after the other; each is a run of length-prefixed frames.

    An abandoned iterator cancels what it left running.
    """
    port, secret, server = served
    finished = False
    with translated():
        stream, connection = local_connect_and_auth(port, secret)
        try:
            # Spark's handshake leaves a timeout; a slow partition is no error.
            connection.settimeout(None)
            while not finished:
                write_int(_NEXT_PARTITION, stream)
                stream.flush()
                status = read_int(stream)
                finished = status != _PARTITION_FOLLOWS
                if status == _FAILED:
                    server.getResult()  # Raises what went wrong.
                if finished:
                    break
                for message in NoOpSerializer().load_stream(stream):
                    yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)
        finally:
            stream.close()
            connection.close()
            if not finished:
                spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(job_group)
