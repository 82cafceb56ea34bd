"""Delta's own code, over py4j: its logs, snapshots, transactions and actions.

In: a session; values of ours. Out: objects of the JVM, for ``tables`` to work with. A call takes
a tenth of a millisecond and more, and each step through a package name is one.

Sources: delta-spark 4.4 DeltaLog.scala, OptimisticTransaction.scala, DeltaOperations.scala.
"""

from __future__ import annotations

import json
import math
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from wal2lake.errors import UndefinedObjectError
from wal2lake.lake.delta.log.commit import Change
from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.delta.log.version import state_of
from wal2lake.lake.port import Cursor, TableState
from wal2lake.lake.spark.errors import translated


class DeltaJvm:
    """One per session; safe for all threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # py4j's views are untyped; java, scala and Delta classes are all below it.
        self.jvm: Any = spark._jvm
        conf = spark._jsparkSession.sessionState().conf()
        self._settings: Any = conf.settings()

    def settings_hash(self) -> int:
        """Another one when a setting of the session has changed."""
        found: int = self._settings.hashCode()
        return found

    def forget(self, location: str) -> None:
        """Drop Delta's cached snapshots of a table."""
        self.jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(
            self._spark._jsparkSession, self.path(location)
        )

    def path(self, location: str) -> Any:
        """Hadoop's."""
        return self.jvm.org.apache.hadoop.fs.Path(location)

    @contextmanager
    def calling(self, location: str) -> Iterator[None]:
        """Delta takes settings from the thread's active session: make it ours."""
        with translated(f'Delta table "{location}"'):
            self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(
                self._spark._jsparkSession
            )
            yield

    def log(self, location: str) -> Any:
        """Delta's ``DeltaLog``, which it keeps."""
        return self.jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession, location
        )

    def snapshot(self, location: str) -> Any:
        """The newest one; its version is -1 if there is no table."""
        none = self.jvm.scala.Option.empty()
        return self.log(location).update(False, none, none)

    def existing(self, location: str) -> Any:
        """The newest snapshot; UndefinedObjectError (42P01) if there is no table."""
        snapshot = self.snapshot(location)
        if snapshot.version() < 0:
            raise UndefinedObjectError(
                f'there is no Delta table at "{location}"',
                sqlstate="42P01",
                hint="Put the directory back. Or drop the table and make it anew; ALTER"
                " SUBSCRIPTION ... REFRESH PUBLICATION makes and copies one of a"
                ' subscription. If all tables have been moved, set "warehouse" of [spark]'
                " in wal2lake.toml to where they are now, and restart the node.",
            )
        return snapshot

    def version_at(self, location: str, time: datetime) -> int | None:
        """The newest version that was committed by ``time``; None: none that is kept."""
        none = self.jvm.scala.Option.empty()
        stamp = self.jvm.java.sql.Timestamp(math.floor(time.timestamp() * 1000))
        # Of a time before all of them Delta gives the first, of one after them the last.
        commit = (
            self.log(location)
            .history()
            .getActiveCommitAtTime(stamp, none, True, True, True)
        )
        version: int = commit.version()
        return version if commit.timestamp() <= stamp.getTime() else None

    def hadoop_conf(self) -> Any:
        """The session's."""
        state = self._spark._jsparkSession.sessionState()
        return state.newHadoopConf()

    def state_of(self, location: str, snapshot: Any) -> TableState:
        """Return the state that a snapshot describes."""
        metadata = json.loads(snapshot.metadata().json())["metaData"]
        cursors, domains = self._cursors(snapshot), self._domains(snapshot)
        return state_of(location, metadata, snapshot.version(), cursors, domains)

    def _domains(self, snapshot: Any) -> list[Object]:
        """``domainMetadata`` in force, of a table that has such."""
        if "domainMetadata" not in snapshot.protocol().json():
            return []
        found: list[Object] = self.from_java(snapshot.domainMetadata())
        return found

    def _cursors(self, snapshot: Any) -> dict[str, int]:
        checksum = snapshot.checksumOpt()
        known = checksum.get().setTransactions() if checksum.isDefined() else checksum
        if known.isEmpty():
            found: dict[str, int] = self.from_java(snapshot.transactions())
            return found
        return {one["appId"]: one["version"] for one in self.from_java(known.get())}

    def from_java(self, value: Any) -> Any:
        """A Scala collection as Delta writes it in JSON: one call over py4j. Its iterators end
        with an exception, whose translation takes longer than all the rest."""
        mapper = self.jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper()
        return json.loads(mapper.writeValueAsString(value))

    def actions(
        self, changes: Sequence[Change], cursor: Cursor, removes: Any | None
    ) -> Any:
        """The actions of a commit; ``removes`` is a collection of Delta's."""
        now = int(clock.time() * 1000)
        token = {"appId": cursor.app_id, "version": cursor.version, "lastUpdated": now}
        actions = [self.action({"txn": token})]
        if removes is not None:
            converters = self.jvm.scala.jdk.javaapi.CollectionConverters
            for file in converters.asJava(removes):
                actions.append(file.remove())
        return self.seq([*actions, *map(self.action, changes)])

    def action(self, action: Change) -> Any:
        """One of Delta's."""
        from_json = self.jvm.org.apache.spark.sql.delta.actions.Action.fromJson
        return from_json(json.dumps(action))

    def seq(self, items: Sequence[Any]) -> Any:
        """A Scala Seq."""
        listed = self.jvm.java.util.ArrayList()
        for item in items:
            listed.add(item)
        return self.jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()

    def operation(self, cursor: Cursor, replace: bool, operation: str) -> Any:
        """Return Delta's operation for the table's history."""
        modes = self.jvm.org.apache.spark.sql.streaming.OutputMode
        return getattr(
            self.jvm.org.apache.spark.sql.delta, "DeltaOperations$StreamingUpdate"
        )(
            modes.Complete() if replace else modes.Append(),
            cursor.app_id,
            cursor.version,
            self.jvm.scala.Option.apply(operation),
        )
