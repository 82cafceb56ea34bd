"""Steps of a node on tables in an object store, in processes that a failpoint may kill.

Comes in: a directory with a catalog, the options of a store, a step. Goes out: what became of it.
Each process has the engine's own parts for transactions and VACUUM, without a JVM, which tables in
an object store do not need. They are forked from a server that has imported everything, so one
costs a tenth of a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

import pyarrow as pa

from wal2lake.catalog import Catalog, ColumnDef, Role, TableDef
from wal2lake.lake import AddedFile, Cursor, FieldSpec
from wal2lake.lake.compaction import Compactor
from wal2lake.lake.delta import TableWriter
from wal2lake.lake.iceberg import IcebergMirror
from wal2lake.lake.retention import AgeClock
from wal2lake.lake.spark.branch.branches import Branches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.delta.jvm import DeltaJvm
from wal2lake.lake.store import StoreOptions, use_options
from wal2lake.lake.tablefiles import add_action
from wal2lake.local.commits.commit import WrittenTable, commit_tables
from wal2lake.local.commits.prepared import (
    Preparing,
    finish_interrupted,
    finish_prepared,
    prepare,
)
from wal2lake.local.node import EngineParts
from wal2lake.local.retention import TablePlace, Vacuum, VacuumRequest
from wal2lake.local.transaction.local import scratch
from wal2lake.local.transaction.recovery import recover
from wal2lake.model import Oid
from wal2lake.observe import KeyedLocks, LockRank
from wal2lake.observe.failpoints import VARIABLE
from wal2lake.settings import LakeSettings, Settings, SparkSettings

NAMES = ("a", "b")

GID = "the transaction"

CHURNED = 6
"""Commits of ``churn``."""

_NOTHING: Any = MagicMock()


def open_node(directory: Path, warehouse: str) -> EngineParts:
    """Return the parts of an engine that starts, with what an earlier one has left finished."""
    DeltaJvm.defaults = lambda self: {}  # type: ignore[method-assign]
    catalog = Catalog(directory / "catalog.sqlite")
    tables = DeltaTables(_NOTHING)
    settings = Settings(
        directory,
        spark=SparkSettings(warehouse=warehouse),
        lake=LakeSettings(retention_ms=0, orphan_age_ms=60_000),
    )
    node = EngineParts(
        catalog=catalog,
        settings=settings,
        tables=tables,
        queries=_NOTHING,
        apply=_NOTHING,
        sync=_NOTHING,
        locks=KeyedLocks(LockRank.SUBSCRIPTION),
        branches=Branches(_NOTHING, tables, _NOTHING),
        keys=_NOTHING,
        compactor=Compactor(tables),
        mirrors=IcebergMirror(tables, lambda: 0),
        changed=lambda: None,
    )
    recover(node)
    finish_interrupted(node)
    return node


def create_node(directory: Path, warehouse: str) -> None:
    """Make the catalog and two empty tables."""
    directory.mkdir()
    catalog = Catalog.create(directory / "catalog.sqlite", "me", None)
    node = open_node(directory, warehouse)
    for number, name in enumerate(NAMES):
        location = f"{warehouse}/public/{name}"
        properties = {"delta.checkpointInterval": "4"}
        node.tables.create(location, [FieldSpec("id", "bigint")], properties)
        columns = (ColumnDef("id", Oid(20)),)
        table = TableDef(
            Oid(20_000 + number), "public", name, Oid(10), columns, (), location
        )
        catalog.create_table(table)


def _table(node: EngineParts, name: str) -> TableDef:
    found = node.catalog.table("public", name)
    assert found is not None
    return found


def _written(node: EngineParts, number: int) -> list[WrittenTable]:
    """Write a row of each table, as a transaction does: into branches."""
    written = []
    for name in NAMES:
        table = _table(node, name)
        place = f"{scratch(node)}/{uuid4().hex}"
        branch = node.branches.open(table.location, None, place, "x")
        added = _file(node, place, number)
        node.tables.commit_files(place, [added], Cursor("x", 1), read_version=0)
        change = node.branches.net_change(branch)
        written.append(WrittenTable(table, branch, change))
    return written


def _file(node: EngineParts, location: str, *ids: int) -> AddedFile:
    fields = node.tables.state(location).physical_fields
    with TableWriter(location, fields) as writer:
        writer.write(pa.table({"id": pa.array(ids, pa.int64())}))
        (added,) = writer.finish()
    return added


def commit(node: EngineParts, number: int) -> None:
    """Commit a transaction of both tables."""
    commit_tables(node, _written(node, number), _NOTHING, "x")


def batch(node: EngineParts, number: int) -> None:
    """Commit a batch of one table, unless it has it: the numbers ascend."""
    location = _table(node, "a").location
    cursor = Cursor("wal2lake:1:2:3", number)
    done = node.tables.state(location).cursor(cursor.app_id)
    if done is None or done < number:
        node.tables.commit_files(location, [_file(node, location, number)], cursor)


def prepare_both(node: EngineParts, number: int) -> None:
    """Prepare a transaction of both tables."""
    preparing = Preparing(GID, Oid(10), _NOTHING, "x", lambda: None)
    prepare(node, preparing, number, _written(node, number), (), MagicMock())


def _me(node: EngineParts) -> Role:
    found = node.catalog.role("me")
    assert found is not None
    return found


def commit_prepared(node: EngineParts, number: int) -> None:
    """Commit it."""
    finish_prepared(node, GID, _me(node), lambda: None, commit=True)


def roll_back_prepared(node: EngineParts, number: int) -> None:
    """Roll it back."""
    finish_prepared(node, GID, _me(node), lambda: None, commit=False)


def churn(node: EngineParts, number: int) -> None:
    """Replace the only file of a table often enough for a checkpoint."""
    location = _table(node, "a").location
    for _ in range(CHURNED):
        number += 1
        state = node.tables.state(location)
        files = node.tables.files(state)
        assert files is not None
        removed = [
            {"remove": {"path": one.key, "dataChange": True, "deletionTimestamp": 1}}
            for one in files
        ]
        added = {"add": add_action(_file(node, location, number), data_change=True)}
        node.tables.commit_changes(
            location,
            [*removed, added],
            Cursor("x", number),
            read_version=state.version,
            operation="x",
        )
    assert isinstance(node.tables, DeltaTables)
    node.tables._checkpoints.wait()


def vacuum(node: EngineParts, number: int) -> None:
    """VACUUM one table, an hour later."""
    node.ages = AgeClock(lambda: time.time() + 3600)
    table = _table(node, "a")
    Vacuum(node).run(TablePlace(table.location, (table,)), VacuumRequest())


def start(node: EngineParts, number: int) -> None:
    """Do nothing more than a start does."""


STEPS: dict[str, Callable[[EngineParts, int], None]] = {
    function.__name__: function
    for function in (
        commit,
        batch,
        prepare_both,
        commit_prepared,
        roll_back_prepared,
        churn,
        vacuum,
        start,
    )
}


def run(
    directory: Path,
    warehouse: str,
    options: StoreOptions,
    points: Path,
    step: str,
    number: int = 0,
) -> int | None:
    """Run a step in a process of its own; return its exit code, which is the negative number of
    the signal that has ended it."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(
        target=_run, args=(directory, warehouse, options, points, step, number)
    )
    process.start()
    process.join(120)
    return process.exitcode


def _run(
    directory: Path,
    warehouse: str,
    options: StoreOptions,
    points: Path,
    step: str,
    number: int,
) -> None:
    os.environ[VARIABLE] = str(points)
    use_options(options)
    if step == "create":
        create_node(directory, warehouse)
    else:
        STEPS[step](open_node(directory, warehouse), number)
