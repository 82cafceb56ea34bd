"""Calls Delta's own code over py4j: its logs, snapshots, transactions and actions.

In: a session, Python values. Out: JVM objects, with which ``deltatables`` works. A call takes a
tenth of a millisecond or more, and each step through a package name is a call.

Sources: delta-spark 4.4 DeltaLog.scala, OptimisticTransaction.scala, DeltaOperations.scala.
"""

from __future__ import annotations

import json
import math
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from wal2lake.lake.delta.log.commit import Change
from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.delta.log.version import state_of
from wal2lake.lake.delta.protocol.newtables import DEFAULTS
from wal2lake.lake.delta.versions.replay import no_table
from wal2lake.lake.port import Cursor, TableState
from wal2lake.lake.spark.errors import translated


class DeltaJvm:
    """Calls Delta; one per session, safe for all threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # py4j's views are untyped; java, scala and Delta classes are all below it.
        self.jvm: Any = spark._jvm

    def defaults(self) -> Mapping[str, str]:
        """Return the session's settings that are properties of each new table."""
        settings = self.from_java(self._spark._jsparkSession.conf().getAll())
        return {
            name: str(value)
            for name, value in settings.items()
            if name.startswith(DEFAULTS)
        }

    def forget(self, location: str) -> None:
        """Drop Delta's cached snapshots of a table."""
        self.jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(
            self._spark._jsparkSession, self.path(location)
        )

    def path(self, location: str) -> Any:
        """Return a location as Hadoop's ``Path``."""
        return self.jvm.org.apache.hadoop.fs.Path(location)

    @contextmanager
    def calling(self, location: str) -> Iterator[None]:
        """Make this session the thread's active one, from which Delta takes its settings, and
        translate errors."""
        with translated(f'Delta table "{location}"'):
            self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(
                self._spark._jsparkSession
            )
            yield

    def log(self, location: str) -> Any:
        """Return Delta's ``DeltaLog``, which Delta caches."""
        return self.jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession, location
        )

    def snapshot(self, location: str) -> Any:
        """Return the newest snapshot; its version is -1 if there is no table."""
        none = self.jvm.scala.Option.empty()
        return self.log(location).update(False, none, none)

    def existing(self, location: str) -> Any:
        """Return the newest snapshot. UndefinedObjectError (42P01) if there is no table."""
        snapshot = self.snapshot(location)
        if snapshot.version() < 0:
            raise no_table(location)
        return snapshot

    def version_at(self, location: str, time: datetime) -> int | None:
        """Return the newest version committed by ``time``; None if the log keeps no such
        version."""
        none = self.jvm.scala.Option.empty()
        stamp = self.jvm.java.sql.Timestamp(math.floor(time.timestamp() * 1000))
        # For a time before all commits Delta returns the first one, after them the last.
        commit = (
            self.log(location)
            .history()
            .getActiveCommitAtTime(stamp, none, True, True, True)
        )
        version: int = commit.version()
        return version if commit.timestamp() <= stamp.getTime() else None

    def hadoop_conf(self) -> Any:
        """Return the session's Hadoop configuration."""
        state = self._spark._jsparkSession.sessionState()
        return state.newHadoopConf()

    def state_of(self, location: str, snapshot: Any) -> TableState:
        """Return the state that a snapshot describes."""
        metadata = json.loads(snapshot.metadata().json())["metaData"]
        cursors, domains = self._cursors(snapshot), self._domains(snapshot)
        return state_of(location, metadata, snapshot.version(), cursors, domains)

    def _domains(self, snapshot: Any) -> list[Object]:
        """Return the ``domainMetadata`` in force; empty if the table's protocol has no such
        feature."""
        if "domainMetadata" not in snapshot.protocol().json():
            return []
        domains: list[Object] = self.from_java(snapshot.domainMetadata())
        return domains

    def _cursors(self, snapshot: Any) -> dict[str, int]:
        checksum = snapshot.checksumOpt()
        stored = checksum.get().setTransactions() if checksum.isDefined() else checksum
        if stored.isEmpty():
            cursors: dict[str, int] = self.from_java(snapshot.transactions())
            return cursors
        return {
            token["appId"]: token["version"] for token in self.from_java(stored.get())
        }

    def from_java(self, value: Any) -> Any:
        """Convert a Scala collection through Delta's JSON, with one call over py4j. A Scala
        iterator ends with an exception, whose translation takes longer than everything else."""
        mapper = self.jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper()
        return json.loads(mapper.writeValueAsString(value))

    def actions(
        self, changes: Sequence[Change], cursor: Cursor, removes: Any | None
    ) -> Any:
        """Build the actions of a commit; ``removes`` is a collection of Delta's."""
        now = int(clock.time() * 1000)
        token = {"appId": cursor.app_id, "version": cursor.version, "lastUpdated": now}
        actions = [self.action({"txn": token})]
        if removes is not None:
            converters = self.jvm.scala.jdk.javaapi.CollectionConverters
            for file in converters.asJava(removes):
                actions.append(file.remove())
        return self.seq([*actions, *map(self.action, changes)])

    def action(self, action: Change) -> Any:
        """Build one of Delta's actions from its JSON."""
        from_json = self.jvm.org.apache.spark.sql.delta.actions.Action.fromJson
        return from_json(json.dumps(action))

    def seq(self, items: Sequence[Any]) -> Any:
        """Build a Scala Seq."""
        listed = self.jvm.java.util.ArrayList()
        for item in items:
            listed.add(item)
        return self.jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()

    def operation(self, cursor: Cursor, replace: bool, operation: str) -> Any:
        """Build Delta's operation for the table's history."""
        modes = self.jvm.org.apache.spark.sql.streaming.OutputMode
        return getattr(
            self.jvm.org.apache.spark.sql.delta, "DeltaOperations$StreamingUpdate"
        )(
            modes.Complete() if replace else modes.Append(),
            cursor.app_id,
            cursor.version,
            self.jvm.scala.Option.apply(operation),
        )
