"""Runs Spark SQL for the front door: text in, Arrow out.

Comes in: Spark SQL whose tables are in path form (``relation``). Goes out: the result's columns,
with the PostgreSQL type where the table's metadata names it, and Arrow record batches. Called by
engine; one thread per running statement.

Why this way. Batches are returned one Spark partition after the other, in result order, and the
next partition is computed while this one is consumed: memory is bounded by two partitions however
large the result is.

A statement is cancelled by the name that its caller gave it (a session's, for example). Below that
name it has a Spark job group of its own, because a cancelled group stays cancelled. Spark forgets
a cancel that arrives while a statement is still being planned (a later shuffle stage starts
regardless), so ``cancel`` repeats it until the statement has ended. As in PostgreSQL, a cancel
without a running statement has no effect.

Sources: Spark 4.1 Dataset.toArrowBatchRdd, PythonRDD.toLocalIteratorAndServe,
SparkContext.cancelJobGroupAndFutureJobs, DAGScheduler.handleMapStageSubmitted.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
from pyspark.serializers import NoOpSerializer, read_int, write_int
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.util import local_connect_and_auth

from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.lake.delta.fields import read_field
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.spark.errors import QUERY_CANCELED, translated
from wal2lake.lake.spark.plans import EnginePlan, read_plan
from wal2lake.pgtypes.spark_ddl import identifier

CANCEL_INTERVAL_SECONDS: Final = 0.05
"""Time between two attempts; each is one message to Spark's scheduler."""

CANCEL_TIMEOUT_SECONDS: Final = 10.0
"""After this time ``cancel`` stops waiting: planning alone can take long, and the statement still
ends when it requests its next partition."""


@dataclass(slots=True)
class _Statement:
    job_group: str
    cancelled: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.cancelled:
            raise UsageError(
                "canceling statement due to user request", sqlstate=QUERY_CANCELED
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Translate errors; after a cancel every error becomes the cancel's."""
        try:
            self.check()
            with translated():
                yield
        except Wal2LakeError:
            self.ended.set()
            self.check()
            raise


class ResultBatches:
    """An iterator of record batches for the thread that ran the statement.

    Raises Wal2LakeError; 57014 after a cancel. ``close`` (idempotent; also called at the end)
    cancels the jobs of an unfinished statement.
    """

    def __init__(
        self, spark: SparkSession, statement: _Statement, served: Any, schema: pa.Schema
    ) -> None:
        port, secret, self._server = served
        self._spark = spark
        self._statement = statement
        self._schema = schema
        self._partition: Iterator[bytes] = iter(())
        # Connect at once: the JVM stops listening after fifteen seconds.
        self._stream, self._socket = local_connect_and_auth(port, secret)
        # Remove the handshake's timeout, because a slow partition is no error.
        self._socket.settimeout(None)
        self._open = True

    def __iter__(self) -> ResultBatches:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            while self._open:
                with self._statement.running():
                    for message in self._partition:
                        return pa.ipc.read_record_batch(
                            pa.py_buffer(message), self._schema
                        )
                    self._next_partition()
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def __enter__(self) -> ResultBatches:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _next_partition(self) -> None:
        """Request the next partition: a status word, then length-prefixed frames."""
        write_int(_NEXT_PARTITION, self._stream)
        self._stream.flush()
        status = read_int(self._stream)
        if status == _PARTITION_FOLLOWS:
            self._partition = NoOpSerializer().load_stream(self._stream)
            return
        if status == _FAILED:
            self._server.getResult()  # Raises the error.
        self._statement.ended.set()
        self.close()

    def close(self) -> None:
        """Release the connection; cancel unfinished jobs."""
        if not self._open:
            return
        self._open = False
        self._stream.close()
        self._socket.close()
        if not self._statement.ended.is_set():
            self._statement.ended.set()
            with translated():
                context = self._spark.sparkContext._jsc.sc()
                context.cancelJobGroupAndFutureJobs(self._statement.job_group)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a running statement."""

    fields: tuple[FieldSpec, ...]
    schema: pa.Schema
    """Schema of every batch; duplicate column names are possible."""
    batches: ResultBatches
    """Must be iterated once, then closed."""


class Queries:
    """Runs statements on one session; safe for many threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._statements: dict[str, _Statement] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def run(
        self, sql: str, *, job_group: str, row_limit: int | None = None
    ) -> QueryResult:
        """Execute a statement. A command (DML, DDL) has been executed on return.

        ``job_group`` names the statement for ``cancel``; one at a time may run under a name.
        ``row_limit`` limits a query's rows.
        """
        statement = _Statement(f"{job_group} {next(self._numbers)}")
        with self._lock:
            self._statements = {
                name: running
                for name, running in self._statements.items()
                if not running.ended.is_set()
            }
            self._statements[job_group] = statement
        with statement.running(), self._job_group(statement):
            self._activate()
            frame = self._spark.sql(sql)
            if row_limit is not None:
                frame = frame.limit(row_limit)
            fields = _fields(frame._jdf.schema())
            schema = to_arrow_schema(frame.schema)
            statement.check()
            batches = frame._jdf.toArrowBatchRdd()
            served = self._jvm.PythonRDD.toLocalIteratorAndServe(batches, True)
            return QueryResult(
                fields, schema, ResultBatches(self._spark, statement, served, schema)
            )

    def describe(self, sql: str) -> tuple[FieldSpec, ...]:
        """Return the result columns without executing anything (not even commands)."""
        with translated():
            self._activate()
            state = self._spark._jsparkSession.sessionState()
            plan = state.sqlParser().parsePlan(sql)
            # None: the durations of planning's phases are not recorded.
            analyzed = state.analyzer().executeAndCheck(plan, None)
            return _fields(analyzed.schema())

    def plan(self, sql: str) -> EnginePlan:
        """Return Spark's plan without executing anything (not even commands)."""
        with translated():
            self._activate()
            state = self._spark._jsparkSession.sessionState()
            modes = self._jvm.org.apache.spark.sql.execution.CommandExecutionMode
            execution = state.executePlan(
                state.sqlParser().parsePlan(sql), modes.SKIP()
            )
            return read_plan(execution.executedPlan())

    @contextmanager
    def rows(self, rows: pa.Table, ddl: str) -> Iterator[str]:
        """Show rows to queries as a view, with the columns of ``ddl``; yield the view's name."""
        name = f"wal2lake_rows_{uuid.uuid4().hex}"
        with translated():
            self._activate()
            frame = self._spark.createDataFrame(rows, StructType.fromDDL(ddl))
            frame.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self._spark.catalog.dropTempView(name)

    def _activate(self) -> None:
        """Make this session the thread's active one. Rules of the analyzer and the optimizer, and
        data skipping, read its settings, and few of Spark's entry points set it: another thread of
        the JVM has Spark's defaults, among them another calendar."""
        session = self._spark._jsparkSession
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(session)

    def cancel(self, job_group: str) -> bool:
        """Stop a statement, from any thread; True when it has ended.

        Returns at once if no such statement runs.
        """
        with self._lock:
            statement = self._statements.get(job_group)
        if statement is None or statement.ended.is_set():
            return False
        statement.cancelled = True
        deadline = time.monotonic() + CANCEL_TIMEOUT_SECONDS
        context = self._spark.sparkContext._jsc.sc()
        with translated():
            while time.monotonic() < deadline:
                context.cancelJobGroupAndFutureJobs(statement.job_group)
                if statement.ended.wait(CANCEL_INTERVAL_SECONDS):
                    return True
        return False

    @contextmanager
    def _job_group(self, statement: _Statement) -> Iterator[None]:
        """Set the job group while the result's thread starts, which inherits it; then clear
        ours."""
        self._spark.sparkContext.setJobGroup(statement.job_group, "wal2lake query")
        try:
            yield
        finally:
            self._spark.sparkContext._jsc.clearJobGroup()


def relation(location: str, version: int | None = None) -> str:
    """Return the FROM item of a Delta table by its location, optionally at one version."""
    item = f"delta.{identifier(location)}"
    return item if version is None else f"{item} version as of {int(version)}"


def _fields(java_schema: Any) -> tuple[FieldSpec, ...]:
    return tuple(map(read_field, json.loads(java_schema.json())["fields"]))


_NEXT_PARTITION: Final = 1
_PARTITION_FOLLOWS: Final = 1
_FAILED: Final = -1
