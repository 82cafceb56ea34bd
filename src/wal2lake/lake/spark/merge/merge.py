"""Applies the net change of a batch to a Delta table, in one commit with its cursor.

Comes in: staged changes (``staging``), the table's state on which they were staged. Goes out:
``plan_merge`` returns the first event that cannot be applied, or a ``Merge``; ``commit_merge``
makes it the table's next version. Called by ``batches``: apply evaluates the batch for all its
tables before it commits any.

Why this way. MERGE with deletion vectors writes only changed rows, and handles partitions,
constraints and generated columns. But it does not notice a writer that commits to the table while
it runs: Delta then lets MERGE commit on the newest version, and an overwrite removes rows that it
has not seen. So Spark writes a *branch* of the version on which the batch was evaluated
(``branch``), as the front door's statements do. The branch's changes then become one commit of
ours on exactly that version: another writer's commit in between is a CommitConflict. Files get a
second name in the table's directory; nothing is written twice.

A batch with a TRUNCATE is an overwrite, not a MERGE: the rows that follow the TRUNCATE are the
table. Inserts into a table without a key are an append; they come here if only Spark may write it.

The settings:

- Delta does not materialise the source. It reads staged files and the table at a fixed version
  with deterministic operators, so both of MERGE's passes see the same rows. A larger net change is
  checkpointed here once instead of computed twice.
- Up to ``SMALL_ROWS`` planning and job starts on the driver dominate. Measured for 1,000 rows into
  100,000 on a busy machine (JVM's CPU-s, median): 3.9 with adaptive execution, which makes every
  exchange a job of its own, 3.1 without. A checkpoint of the source (3.4), a local relation (3.7)
  and no whole-stage code (3.3) gained nothing.
- A small merge reads the table in splits of ``SMALL_SPLIT``, because each split with changed rows
  becomes a new file, and later merges have to read the files.

Sources: delta-spark 4.4 MergeIntoCommand.scala, ClassicMergeExecutor.scala,
MergeIntoMaterializeSource.scala.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from wal2lake.lake.capture.commitfacts import NO_REMARKS, CommitRemarks, with_remarks
from wal2lake.lake.origins import COLUMNS, BatchCommits
from wal2lake.lake.port import (
    Committed,
    Cursor,
    TablePort,
    TableState,
    expect_version,
)
from wal2lake.lake.spark.branch.branches import Branch, Branches
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.spark.merge.netchange import NetChange, net_change
from wal2lake.lake.staging.layout import (
    DELETE,
    INSERT,
    RowFailure,
    Uniqueness,
    spark_schema,
)
from wal2lake.lake.staging.stage import StagedChanges
from wal2lake.observe import failpoint
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


@dataclass(frozen=True, slots=True)
class Merge:
    """A batch's net change, ready to be committed on one version of a table."""

    session: SparkSession
    """Spark session that only this merge uses."""
    state: TableState
    staged: StagedChanges
    net: NetChange
    commits: BatchCommits | None = None
    """Transactions of the batch, if the writers of rows are tracked."""


def plan_merge(
    spark: SparkSession,
    state: TableState,
    staged: StagedChanges,
    uniqueness: Uniqueness,
    commits: BatchCommits | None = None,
) -> Merge | RowFailure:
    """Reduce the staged changes, or return the failure of ``netchange.net_change``."""
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
    return Merge(session, state, staged, net, commits)


def tune(session: SparkSession, staged: StagedChanges) -> None:
    """Set up the session that one batch has for itself."""
    small = staged.contents.rows <= SMALL_ROWS
    for name, value in {**_SETTINGS, **(_SMALL_SETTINGS if small else {})}.items():
        session.conf.set(name, value)


def commit_merge(
    merge: Merge,
    tables: TablePort,
    branches: Branches,
    place: str,
    cursor: Cursor,
    remarks: CommitRemarks = NO_REMARKS,
) -> Committed:
    """Make the merge the next version, which is durable on return. ``place`` is for the branch: an
    empty location on the table's storage. ``remarks`` go into the commit's user metadata.

    Raises CommitConflict, and has written nothing, if the table is not at the version for which
    the merge was planned, or no longer is when the rows are written.
    """
    with tables.writing(merge.state.location):
        return _commit(merge, tables, branches, place, cursor, remarks)


def _commit(
    merge: Merge,
    tables: TablePort,
    branches: Branches,
    place: str,
    cursor: Cursor,
    remarks: CommitRemarks,
) -> Committed:
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
    if merge.net.replaces and not (merge.net.whole or merge.staged.contents.inserts):
        return tables.commit_files(
            location,
            [],
            cursor,
            read_version=now.version,
            replace=True,
            operation=with_remarks("truncate", remarks),
        )
    with _branch(merge, branches, place) as branch:
        with translated(f'Delta table "{location}"'):
            operation = _write(merge, branch, marked=branches.is_marked(branch))
        failpoint("lake.merged")
        change = branches.net_change(branch)
        try:
            branches.carry_over(branch, change.files)
            return tables.commit_changes(
                location,
                change.actions,
                cursor,
                read_version=now.version,
                operation=with_remarks(operation, remarks),
            )
        except Exception:
            if _is_uncommitted(tables, location, cursor):
                branches.take_back(branch, change.files)
            raise


def _is_uncommitted(tables: TablePort, location: str, cursor: Cursor) -> bool:
    """Whether certainly no version has this batch, whatever the commit's answer was."""
    try:
        committed = tables.state(location).cursor(cursor.app_id)
    except Exception:
        return False
    return committed is None or committed < cursor.version


@contextmanager
def _branch(merge: Merge, branches: Branches, place: str) -> Iterator[Branch]:
    """Open a branch for this commit alone. The node's next start removes what a crash leaves of a
    branch; no version names the files that got a second name in the table's directory, and VACUUM
    removes them."""
    state = merge.state
    branch = Branch(place, state.location, state.table_id, state.version)
    try:
        yield branches.open(
            state.location,
            state.version,
            place,
            f"merge {state.location}",
            marked=merge.commits is not None,
        )
    finally:
        branches.drop(branch)


def _write(merge: Merge, branch: Branch, *, marked: bool) -> str:
    """Let Spark write the branch; return the name of the operation."""
    rows = merge.net.rows
    if marked and not merge.net.whole:
        rows = _with_marks(merge, rows)
    else:
        marked = False
    if merge.net.replaces:
        # The rows that follow a TRUNCATE are the table's whole content.
        _write_rows(merge, rows, branch, "overwrite", marked=marked)
        return "overwrite"
    if not merge.staged.shape.key:
        _write_rows(merge, rows, branch, "append", marked=marked)
        return "append"
    _run_merge(merge, rows, branch, marked=marked)
    return "merge"


def _with_marks(merge: Merge, rows: DataFrame) -> DataFrame:
    """Add the writer of each row, as ``origins.COLUMNS``."""
    commits = merge.commits
    assert commits is not None
    names = ("lsn", *COLUMNS[1:])
    table = pa.table([commits.lsn, commits.xid, commits.time_us], names=list(names))
    transactions = merge.session.createDataFrame(table)
    marked = rows.join(F.broadcast(transactions), "lsn", "left")
    origin = F.when(F.col(COLUMNS[1]).isNotNull(), F.lit(commits.origin).cast("bigint"))
    return marked.withColumn(COLUMNS[0], origin)


def _run_merge(merge: Merge, rows: DataFrame, branch: Branch, *, marked: bool) -> None:
    shape, counts, stored_keys = (
        merge.staged.shape,
        merge.staged.contents,
        merge.net.found_by,
    )
    small = counts.rows <= SMALL_ROWS
    rows = F.broadcast(rows) if small else rows.localCheckpoint()
    target = DeltaTable.forPath(merge.session, branch.location).alias("t")
    condition = F.lit(True)
    for i in shape.key:
        name = identifier(shape.fields[i].name)
        key = stored_keys.get(i, f"n{i}")
        condition = condition & (F.col(f"t.{name}") == F.col(f"s.{key}"))
    if merge.staged.first_key is not None and shape.key[0] not in stored_keys:
        low, high = merge.staged.first_key
        first = F.col(f"t.{identifier(shape.fields[shape.key[0]].name)}")
        condition = condition & first.between(F.lit(low), F.lit(high))
    builder = target.merge(rows.alias("s"), condition)
    created = counts.inserts > 0 or counts.moved
    removed = counts.deletes > 0 or counts.moved
    if removed:
        builder = builder.whenMatchedDelete(F.col("s.op") == DELETE)
    values: dict[str, Any] = {
        identifier(f.name): F.col(f"s.n{i}") for i, f in enumerate(shape.fields)
    }
    if marked:
        values |= {name: F.col(f"s.{name}") for name in COLUMNS}
    kept = dict(values)
    for i in shape.unchanged:
        name = identifier(shape.fields[i].name)
        stored = F.when(F.col(f"s.u{i}"), F.col(f"t.{name}"))
        kept[name] = stored.otherwise(F.col(f"s.n{i}"))
    builder = builder.whenMatchedUpdate(set=kept)
    if created:
        builder = builder.whenNotMatchedInsert(F.col("s.op") == INSERT, values=values)
    builder.execute()


def _write_rows(
    merge: Merge, rows: DataFrame, branch: Branch, mode: str, *, marked: bool
) -> None:
    columns = [
        F.col(f"n{i}").alias(f.name) for i, f in enumerate(merge.staged.shape.fields)
    ]
    written = rows.select(*columns, *(COLUMNS if marked else ()))
    written.write.format("delta").mode(mode).save(branch.location)
