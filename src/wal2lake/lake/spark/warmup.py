"""Runs once through the code that the first subscription will use.

A Java virtual machine loads and compiles code at its first use. The first copy, commit and SELECT
of an engine cost several CPU-seconds each, later ones a tenth. A node without subscriptions is
otherwise idle, so it prepares for the first one: it creates a table of its own, writes, reads and
drops it. Nothing depends on the result; a failure is only logged.
"""

from __future__ import annotations

import threading
import uuid

import pyarrow as pa
from pyspark.sql import SparkSession

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.delta.datafile import write_data_file
from wal2lake.lake.executors import Pool
from wal2lake.lake.port import Cursor, FieldSpec, TableState
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.executors import SparkExecutors
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.store import store_at
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.observe import get_logger

_FIELDS = (FieldSpec("id", "bigint"), FieldSpec("name", "string"))


def warm_up(spark: SparkSession, place: str) -> threading.Thread:
    """Start the warm-up in the background; tables are created below ``place``, a path or URL."""
    thread = threading.Thread(
        target=_run, args=(spark, f"{place}/warm-up"), name="warm-up", daemon=True
    )
    thread.start()
    return thread


def _run(spark: SparkSession, place: str) -> None:
    location = f"{place}/{uuid.uuid4().hex}"
    try:
        # An earlier engine may have been killed in the middle.
        store = store_at(place)
        if store is not None:
            store.delete_all(list(store.list_below("", lambda folder: True)))
        _walk(spark, location)
    except Wal2LakeError as error:
        get_logger().debug("warm-up failed", error=error)
    except Exception as error:
        # Also happens when a stopping engine closes the session.
        get_logger().debug("warm-up failed", exc_info=error)


def _walk(spark: SparkSession, location: str) -> None:
    tables = DeltaTables(spark)
    state = tables.create(location, _FIELDS)
    added = SparkExecutors(spark).run(Pool.SYNC, _write, state)
    done = tables.commit_files(location, [added], Cursor("warm-up", 1), read_version=0)
    # A new object has not listed the table's files yet, as after a start.
    DeltaTables(spark).files(tables.state(location))
    query = (
        f"select name, count(*) from {relation(location, done.version)}"
        " where id > 0 group by name order by name"
    )
    with Queries(spark).run(query, job_group="warm-up").batches as batches:
        for _ in batches:
            pass
    tables.drop(location)


def _write(state: TableState) -> AddedFile:
    """Write a data file in an executor, as the initial copy does."""
    rows = pa.table({"id": [1, 2], "name": ["a", None]})
    return write_data_file(rows, state.location, state.fields, state.physical_fields)
