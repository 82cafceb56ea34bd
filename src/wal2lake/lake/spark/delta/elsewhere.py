"""Reads and writes tables in storages that ``lake.store`` does not know, with Delta's own code.

In: requests for a table whose location is a URL as of HDFS. Out: commits of
Delta's OptimisticTransaction, driven over py4j, with two reads registered that make it safe:

- the cursor (``readTxn``): a concurrent commit of the same application conflicts;
- if the changes were made from the table's contents, the whole table (``readWholeTable``): any
  concurrent change of data conflicts.

Called by ``deltatables``. Sources: delta-spark 4.4 OptimisticTransaction.scala,
ConflictChecker.scala.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from wal2lake.lake.delta.protocol.upgrade import MODE
from wal2lake.lake.delta.schemachange import (
    missing_features,
    needs_mapping,
    refuse_unless_plain,
)
from wal2lake.lake.delta.versions.known import Files, KnownVersions, stamp
from wal2lake.lake.port import Committed, NextField, TableState
from wal2lake.lake.spark.delta.jvm import DeltaJvm
from wal2lake.lake.spark.delta.request import CommitRequest
from wal2lake.lake.tablefiles import DataFile
from wal2lake.pgtypes.spark_ddl import identifier


class Elsewhere:
    """Tables elsewhere; one per session, safe for all threads."""

    def __init__(
        self, spark: SparkSession, delta: DeltaJvm, versions: KnownVersions
    ) -> None:
        self._spark = spark
        self._delta = delta
        self._known = versions

    def actions(
        self, location: str, first: int, last: int
    ) -> list[list[dict[str, Any]]]:
        """Return the actions of commits, as in TablePort."""
        commits: list[list[dict[str, Any]]] = []
        with self._delta.calling(location):
            path = self._delta.jvm.org.apache.hadoop.fs.Path(location, "_delta_log")
            store = self._delta.log(location).store()
            for version in range(first, last + 1):
                commit = self._delta.jvm.org.apache.hadoop.fs.Path(
                    path, f"{version:020}.json"
                )
                if not commit.getFileSystem(self._delta.hadoop_conf()).exists(commit):
                    commits.append([])
                    continue
                lines = store.read(commit, self._delta.hadoop_conf())
                converters = self._delta.jvm.scala.jdk.javaapi.CollectionConverters
                commits.append([json.loads(line) for line in converters.asJava(lines)])
        return commits

    def files(self, state: TableState) -> Files | None:
        """Return the live files of a version; None if it is not the newest."""
        location = state.location
        self._known.newest(location)
        listed = self._known.files(state)
        if listed is not None:
            return listed
        commit = stamp(location, state.version)
        with self._delta.calling(location):
            snapshot = self._delta.existing(location)
            if (snapshot.version(), snapshot.metadata().id()) != (
                state.version,
                state.table_id,
            ):
                return None
            live_files = [
                DataFile(json.loads(action.json())["add"])
                for action in snapshot.allFiles().collectAsList()
            ]
        files = {file.key: file for file in live_files}
        self._known.list_files(state, commit, files)
        return files

    def prepare_columns(self, state: TableState, fields: Sequence[NextField]) -> None:
        """Prepare columns, as in TablePort."""
        location = state.location
        refuse_unless_plain(state, fields)
        properties = {MODE: "name"} if needs_mapping(state, fields) else {}
        with self._delta.calling(location):
            snapshot = self._delta.existing(location)
            protocol = json.loads(snapshot.protocol().json())["protocol"]
        for feature in missing_features(protocol, fields):
            properties[f"delta.feature.{feature}"] = "supported"
        if properties:
            listed = ", ".join(f"'{k}' = '{v}'" for k, v in properties.items())
            with self._delta.calling(location):
                self._spark.sql(
                    f"ALTER TABLE delta.{identifier(location)}"
                    f" SET TBLPROPERTIES ({listed})"
                )

    def commit(self, request: CommitRequest) -> Committed:
        """Commit the request."""
        location, cursor = request.location, request.cursor
        with self._delta.calling(location):
            self._delta.existing(location)
            transaction = self._delta.log(location).startTransaction()
            transaction.readTxn().addOne(cursor.app_id)
            state = self._delta.state_of(location, transaction.snapshot())
            commit = stamp(location, state.version)
            done = request.done_in(state)
            if done is not None:
                return done
            if request.reads:
                transaction.readWholeTable()
            if request.metadata is not None:
                changed = self._delta.action({"metaData": request.metadata})
                transaction.updateMetadata(changed, False)
            removes = transaction.filterFiles() if request.replaces else None
            version: int = transaction.commit(
                self._delta.actions(request.changes, cursor, removes),
                self._delta.operation(cursor, request.replaces, request.operation),
            )
        self._known.committed(
            state, commit, version, request.changes, replaces=request.replaces
        )
        read = request.read_version
        return Committed(
            version,
            interlopers=() if read is None else tuple(range(read + 1, version)),
        )
