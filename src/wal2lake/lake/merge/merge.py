"""Applying the net change of a batch to a Delta table, in one commit with its cursor.

Comes in: staged changes (``staging``), the table's state that they were staged on. Goes
out: ``plan_merge`` tells the first event that cannot be applied, or gives a ``Merge``;
``commit_merge`` makes it the table's next version. Called by apply, which evaluates the
batch for all its tables before it commits any.

Why this way. MERGE with deletion vectors writes only changed rows, and the cursor goes into its
commit as Delta's ``txn`` action. Delta takes that from two session settings and
silently skips the write if the version is not newer, so each batch has a session of its
own (they cannot leak), and the cursor is read back afterwards. A batch with a TRUNCATE is
no MERGE but an overwrite: one commit removes every old file and adds the rows that came
after it. Inserts into a table without a key, which come here if only Spark may write to it,
are an append.

The settings:

- The source is not materialised by Delta: it reads staged files and the table at a fixed
  version with deterministic operators, so both of MERGE's passes see the same rows. A larger
  net change is checkpointed here once instead of computed twice.
- Up to ``SMALL_ROWS`` the work is the driver's, planning and job starts. Measured for 1,000
  rows into 100,000 on a busy machine (JVM's CPU-s, median): 3.9 with adaptive execution,
  which makes every exchange a job of its own, 3.1 without. No gain from a checkpoint of
  the source (3.4), a local relation (3.7), no whole-stage code (3.3).
- A small merge reads the table in splits of ``SMALL_SPLIT``, for each split with changed
  rows becomes a new file, and files are what later merges have to look at.

Sources: delta-spark 4.4 MergeIntoCommand.scala, ClassicMergeExecutor.scala,
MergeIntoMaterializeSource.scala, DeltaSQLConf.scala (txnAppId, txnVersion).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from wal2lake.errors import InternalError
from wal2lake.lake.merge.netchange import NetChange, net_change
from wal2lake.lake.port import Committed, Cursor, TablePort, TableState, expect_version
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.staging.changes import (
    DELETE,
    INSERT,
    RowFailure,
    Uniqueness,
    spark_schema,
)
from wal2lake.lake.staging.stage import StagedChanges
from wal2lake.pgtypes.spark_ddl import identifier

SMALL_ROWS: Final = 20_000
"""Staged rows up to which a merge is tuned for latency."""

SMALL_SPLIT: Final = "32m"
"""About 4 M rows of six columns; a guess."""

_SETTINGS: Final = {
    "spark.databricks.delta.merge.materializeSource": "none",
}

_SMALL_SETTINGS: Final = {
    # Compiling a plan that a few thousand rows run through once costs more than
    # interpreting it: median JVM CPU of a small merge 2.0 s against 2.4 s.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxPartitionBytes": SMALL_SPLIT,
}

_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_LAST_COMMIT: Final = "spark.databricks.delta.lastCommitVersionInSession"


@dataclass(frozen=True, slots=True)
class Merge:
    """A batch's net change, ready to be committed on one version of a table."""

    session: SparkSession
    """Of this merge alone."""
    state: TableState
    staged: StagedChanges
    net: NetChange


def plan_merge(
    spark: SparkSession,
    state: TableState,
    staged: StagedChanges,
    uniqueness: Uniqueness,
) -> Merge | RowFailure:
    """Reduce the staged changes; see ``netchange.net_change`` for what it can refuse."""
    session = spark.newSession()
    tune(session, staged)
    shape = staged.shape
    with translated(f'Delta table "{state.location}"'):
        changes = session.read.schema(spark_schema(shape)).parquet(*staged.paths)
        base = (
            session.read.format("delta")
            .option("versionAsOf", state.version)
            .load(state.location)
            .select(*(identifier(f.name) for f in shape.fields))
        )
        net = net_change(changes, shape, base, uniqueness)
    if isinstance(net, RowFailure):
        return net
    return Merge(session, state, staged, net)


def tune(session: SparkSession, staged: StagedChanges) -> None:
    """Settings of the session that one batch has for itself."""
    small = staged.found.rows <= SMALL_ROWS
    for name, value in {**_SETTINGS, **(_SMALL_SETTINGS if small else {})}.items():
        session.conf.set(name, value)


def commit_merge(merge: Merge, tables: TablePort, cursor: Cursor) -> Committed:
    """Make it the next version; durable when it returns.

    Raises CommitConflict, and has written nothing, if the table is not at the version
    that the merge was planned on. ``interlopers`` is not empty if somebody slipped in
    between that look and the commit.
    """
    with tables.writing(merge.state.location):
        return _commit(merge, tables, cursor)


def _commit(merge: Merge, tables: TablePort, cursor: Cursor) -> Committed:
    location = merge.state.location
    now = tables.state(location)
    done = now.cursor(cursor.app_id)
    if done is not None and done >= cursor.version:
        return Committed(now.version, already_done=True)
    expect_version(
        location,
        merge.state.version,
        now.version,
        same_table=now.table_id == merge.state.table_id,
    )
    if merge.net.replaces and not (merge.net.whole or merge.staged.found.inserts):
        return tables.commit_files(
            location,
            [],
            cursor,
            read_version=now.version,
            replace=True,
            operation="truncate",
        )
    session = merge.session
    session.conf.set(_APP_ID, cursor.app_id)
    session.conf.set(_VERSION, str(cursor.version))
    with translated(f'Delta table "{location}"'):
        if merge.net.replaces:
            # After a TRUNCATE what came behind it is the table's whole content.
            _write_rows(merge, "overwrite")
        elif not merge.staged.shape.key:
            _write_rows(merge, "append")
        else:
            _run_merge(merge)
    after = tables.state(location)
    if after.cursor(cursor.app_id) != cursor.version:
        raise InternalError(
            f'the merge into the table at "{location}" did not record its cursor',
            detail=f"Expected {cursor.version}, found {after.cursor(cursor.app_id)}.",
        )
    text = session.conf.get(_LAST_COMMIT, None)
    version = after.version if text is None else int(text)
    tables.sync(location, version)
    return Committed(
        version, interlopers=tuple(range(merge.state.version + 1, version))
    )


def _run_merge(merge: Merge) -> None:
    shape, found = merge.staged.shape, merge.staged.found
    small = found.rows <= SMALL_ROWS
    rows = merge.net.rows
    rows = F.broadcast(rows) if small else rows.localCheckpoint()
    target = DeltaTable.forPath(merge.session, merge.state.location).alias("t")
    condition = F.lit(True)
    for i in shape.key:
        name = identifier(shape.fields[i].name)
        condition = condition & (F.col(f"t.{name}") == F.col(f"s.n{i}"))
    if merge.staged.first_key is not None:
        low, high = merge.staged.first_key
        first = F.col(f"t.{identifier(shape.fields[shape.key[0]].name)}")
        condition = condition & first.between(F.lit(low), F.lit(high))
    builder = target.merge(rows.alias("s"), condition)
    created = found.inserts > 0 or found.moved
    removed = found.deletes > 0 or found.moved
    if removed:
        builder = builder.whenMatchedDelete(F.col("s.op") == DELETE)
    values: dict[str, Any] = {
        identifier(f.name): F.col(f"s.n{i}") for i, f in enumerate(shape.fields)
    }
    kept = dict(values)
    for i in shape.unchanged:
        name = identifier(shape.fields[i].name)
        stored = F.when(F.col(f"s.u{i}"), F.col(f"t.{name}"))
        kept[name] = stored.otherwise(F.col(f"s.n{i}"))
    builder = builder.whenMatchedUpdate(set=kept)
    if created:
        builder = builder.whenNotMatchedInsert(F.col("s.op") == INSERT, values=values)
    builder.execute()


def _write_rows(merge: Merge, mode: str) -> None:
    columns = [
        F.col(f"n{i}").alias(f.name) for i, f in enumerate(merge.staged.shape.fields)
    ]
    rows = merge.net.rows.select(*columns)
    rows.write.format("delta").mode(mode).save(merge.state.location)
