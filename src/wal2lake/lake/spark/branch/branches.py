"""Opens branches of Delta tables, cuts them back, carries their files over, and removes them.

Comes in: a table, a version of it, a place. Goes out: a Delta table there that begins with that
version's files and takes any statement of Spark's. Called by transactions of the front door.

A branch of a table in a known store is written here in two milliseconds, or a few requests: its
files are known, and its checksum file saves Delta from reading them. It has all of the table's
features, and may begin with an earlier version; so a transaction need not wait while a batch is
committed to its tables and is not visible yet. The branch of a table in another storage is Delta's
own shallow clone.

The new files of a branch get a second name in the table's location before the commit: a link in a
directory, a copy made by the object store. Until then the table's location has nothing of a
transaction that is not about to commit, so VACUUM, which tells files by their age, and DROP TABLE
need to know nothing of branches.

A branch is not synced, because it ends with its process. The files that a commit takes from it
are.

Sources: Delta transaction log protocol; delta-spark 4.4 CloneTableBase.scala.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from wal2lake.errors import StorageError, Wal2LakeError
from wal2lake.lake.branch.netchange import BranchChange, in_branch, net_change
from wal2lake.lake.delta.durability import settle_files
from wal2lake.lake.delta.log.checksum import checksum_line
from wal2lake.lake.delta.log.firstversion import (
    commit_lines,
    own_time_of,
    write_first,
)
from wal2lake.lake.delta.log.place import LOG, dump
from wal2lake.lake.delta.protocol.features import refuse_unknown
from wal2lake.lake.delta.protocol.newtables import as_new
from wal2lake.lake.partitions import instants
from wal2lake.lake.port import TableState
from wal2lake.lake.spark.delta.deltatables import BRANCHES_FOLDER, DeltaTables
from wal2lake.lake.spark.delta.jvm import DeltaJvm
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.store import LocalStore, Store, remove_file, store_at
from wal2lake.lake.tablefiles import DataFile
from wal2lake.observe import get_logger
from wal2lake.pgtypes.spark_ddl import identifier

_COPIES_AT_ONCE: Final = 8
"""Requests to copy that are under way together. A guess: each takes some tens of milliseconds."""

_POINTER: Final = "_last_checkpoint"


def place_of_branches(warehouse: str, node: object) -> str:
    """Return the location of all branches of a node, named by its system identifier."""
    return f"{warehouse}{BRANCHES_FOLDER}{node}"


@dataclass(frozen=True, slots=True)
class Branch:
    """A table as one transaction writes it."""

    location: str
    table: str
    """Location of the table that was branched."""
    table_id: str
    base: int
    """The table's version with which the branch began."""


class Branches:
    """Opens branches on one session; safe for all threads, one thread at a time for a branch."""

    def __init__(
        self, spark: SparkSession, tables: DeltaTables, queries: Queries
    ) -> None:
        self._delta = DeltaJvm(spark)
        self._tables = tables
        self._queries = queries
        self._lock = threading.Lock()
        self._open: defaultdict[str, dict[str, int | None]] = defaultdict(dict)
        """By table, the locations of open branches, each with its base; None: not yet chosen."""

    def open(
        self,
        table: str,
        version: int | None,
        place: str,
        job_group: str,
    ) -> Branch:
        """Branch a table at ``place``, which is empty; ``version`` None: the newest one."""
        with self._lock:
            # Register the branch before choosing the files with which it begins.
            self._open[table][place] = version
        try:
            state = self._tables.state(table)
            base = state.version if version is None else version
            with self._lock:
                self._open[table][place] = base
            if not self._write(state, base, place):
                self._queries.run(
                    f"CREATE TABLE delta.{identifier(place)} SHALLOW CLONE"
                    f" {relation(table, base)}",
                    job_group=job_group,
                ).batches.close()
        except BaseException:
            self._close(table, place)
            raise
        return Branch(place, table, state.table_id, base)

    def of(self, table: str) -> int:
        """Return how many branches of a table are open. Their transactions cannot commit changes
        of files that have been removed."""
        with self._lock:
            return len(self._open.get(table, ()))

    def bases(self, table: str) -> list[int | None]:
        """Return the versions with which open branches of a table begin; None for one that is not
        chosen yet."""
        with self._lock:
            return list(self._open.get(table, {}).values())

    def places(self) -> set[str]:
        """Return the locations of all open branches."""
        with self._lock:
            return {place for places in self._open.values() for place in places}

    def _close(self, table: str, place: str) -> None:
        with self._lock:
            self._open[table].pop(place, None)
            if not self._open[table]:
                del self._open[table]

    def begin_anew(
        self, state: TableState, metadata: Mapping[str, Any], place: str
    ) -> Branch:
        """Create a branch without rows and with other columns, for a transaction that inserts all
        rows again. See ``TablePort.metadata``."""
        with self._lock:
            self._open[state.location][place] = state.version
        try:
            self._tables.create_like(place, metadata)
        except BaseException:
            self._close(state.location, place)
            raise
        return Branch(place, state.location, state.table_id, state.version)

    def _write(self, state: TableState, base: int, place: str) -> bool:
        """Write version 0, with the files of version ``base``; False if Delta must do it."""
        target = store_at(place)
        listed = self._tables.listed(state, base)
        if listed is None or target is None:
            return False
        version, files = listed
        refuse_unknown(state.location, version.protocol)
        adds = [in_branch(file.action, state.location) for file in files]
        metadata = as_new({**version.metadata, "id": str(uuid.uuid4())})
        txn_id = str(uuid.uuid4())
        commit = [
            *commit_lines(metadata, version.protocol, txn_id, version.domains),
            *(dump({"add": add}) for add in adds),
        ]
        checksum = checksum_line(
            metadata,
            version.protocol,
            txn_id,
            version.totals,
            domains=version.domains,
            files=[DataFile(add) for add in adds],
            committed_ms=own_time_of(metadata),
        )
        write_first(target, commit, checksum)
        return True

    def state(self, branch: Branch) -> TableState:
        """Return the newest version of the branch."""
        return self._tables.state(branch.location)

    def net_change(self, branch: Branch) -> BranchChange:
        """Return the branch's changes as actions for its table; 0A000 if that is not possible."""
        state = self.state(branch)
        commits = self._tables.actions(branch.location, 1, state.version)
        return net_change(commits, branch.table, instants(state.physical_fields))

    def cut_back(self, branch: Branch, version: int) -> None:
        """Remove the versions above ``version``, from the newest down."""
        if self.state(branch).version <= version:
            return
        store = _objects_at(branch.location)
        if store is not None:
            names = [
                name
                for name in store.list_after(LOG)
                if name == _POINTER or _is_above(name, version)
            ]
            store.delete_all([f"{LOG}/{name}" for name in names])
            self._tables.forget(branch.location)
            with self._delta.calling(branch.location):
                self._delta.forget(branch.location)
            return
        with self._delta.calling(branch.location):
            log = self._delta.path(f"{branch.location}/_delta_log")
            files = log.getFileSystem(self._delta.hadoop_conf())
            paths = [status.getPath() for status in files.listStatus(log)]
            for path in sorted(paths, key=lambda path: path.getName(), reverse=True):
                name = path.getName()
                if name == _POINTER or _is_above(name, version):
                    files.delete(path, True)
            self._delta.forget(branch.location)
        self._tables.forget(branch.location)

    def carry_over(self, branch: Branch, files: Sequence[str]) -> None:
        """Give files of a branch a name in the table's location, durably. May be repeated."""
        table, own = store_at(branch.table), store_at(branch.location)
        if table is None or own is None:
            for file in files:
                self._rename(f"{branch.location}/{file}", f"{branch.table}/{file}")
            return
        if isinstance(table, LocalStore) or len(files) < 2:
            for file in files:
                table.copy(file, own, file)
        else:
            with ThreadPoolExecutor(min(_COPIES_AT_ONCE, len(files))) as pool:
                for _ in pool.map(lambda file: table.copy(file, own, file), files):
                    pass
        settle_files(table, files)

    def take_back(self, branch: Branch, files: Sequence[str]) -> None:
        """Undo ``carry_over`` for files that no commit names or will name."""
        for file in files:
            remove_file(f"{branch.table.rstrip('/')}/{file}")

    def _rename(self, source: str, target: str) -> None:
        with self._delta.calling(target):
            old, new = self._delta.path(source), self._delta.path(target)
            files = old.getFileSystem(self._delta.hadoop_conf())
            if files.exists(new):
                return
            files.mkdirs(new.getParent())
            if not files.rename(old, new):
                raise StorageError(
                    f'could not rename file "{source}" to "{target}"', sqlstate="58030"
                )

    def drop(self, branch: Branch) -> None:
        """Remove a branch. Files that cannot be removed now are removed at the next start: the
        transaction has ended, and a failure here must not change its result."""
        self._close(branch.table, branch.location)
        try:
            self._tables.drop(branch.location)
        except Wal2LakeError as error:
            get_logger().warning("could not remove a branch", error=error)

    def sweep(self, place: str) -> None:
        """Remove at a start all branches that an earlier process has left below ``place``."""
        store = _objects_at(place)
        if store is not None:
            store.delete_all([*store.list_below("", lambda folder: True)])
            return
        with self._delta.calling(place):
            path = self._delta.path(place)
            path.getFileSystem(self._delta.hadoop_conf()).delete(path, True)


def _objects_at(location: str) -> Store | None:
    """Return the store of a location if it is one of objects."""
    store = store_at(location)
    return None if isinstance(store, LocalStore) else store


def _is_above(name: str, version: int) -> bool:
    """Whether a file of a log is of a later version."""
    return name[:20].isdecimal() and int(name[:20]) > version
