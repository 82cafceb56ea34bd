"""Is a key there twice, now that a statement has added rows?

Comes in: a branch, the files that a statement has added to it, the key. Goes out: a key that more
than one row has, or nothing. Delta enforces no key, so who writes has to look.

What is looked at is limited to the keys that came: file statistics say which files can hold them
(integers: often none, and then nothing is read). Few keys are looked up in this process
(``lookup``); the rest is one join of the key columns in Spark. NULLs are no matter: a key has none.

Called by transactions of the front door. Source: Delta transaction log protocol, "Per-file
Statistics".
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import SparkSession

from wal2lake.lake.branch.changes import Action
from wal2lake.lake.branch.lookup import Files, find
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.port import TableState
from wal2lake.lake.spark.branch.branches import Branch
from wal2lake.lake.spark.delta.rows import rows_of_files
from wal2lake.lake.spark.delta.tables import DeltaTables
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.memory import TooLarge
from wal2lake.pgtypes.equality import alike_key
from wal2lake.pgtypes.spark_ddl import identifier

_INTEGERS: Final = ("tinyint", "smallint", "int", "integer", "bigint")
"""Types whose bounds in file statistics are the values."""


@dataclass(frozen=True, slots=True)
class Key:
    """The columns that no two rows may share."""

    columns: tuple[str, ...]


class BranchKeys:
    """On one session; safe for all threads."""

    def __init__(
        self,
        spark: SparkSession,
        tables: DeltaTables,
        queries: Queries,
        index: KeyIndex | None = None,
    ) -> None:
        """``index``: where keys of large files are."""
        self._spark = spark
        self._index = index
        self._tables = tables
        self._queries = queries

    def repeated(
        self, branch: Branch, added: Sequence[Action], key: Key, job_group: str
    ) -> pa.RecordBatch | None:
        """A row of the key's columns: a key of ``added``, the ``add`` objects of the branch's
        newest commit, that is in the branch more than once. None: there is none."""
        state = self._tables.state(branch.location)
        coming = [DataFile(add) for add in added]
        rows = sum(file.rows or 2 for file in coming)
        bounds = _bounds(state, coming, key)
        files = self._tables.files(state)
        alone = _alone(state, files, coming, bounds)
        if not rows or (alone and rows == 1):
            return None
        with suppress(TooLarge, pa.ArrowInvalid):
            return self._here(state, coming, state, files, key, more_than=1)
        with self._view(state, coming, key) as view:
            source = view
            if not alone:
                where = _between(key, bounds)
                source = (
                    f"(SELECT {_columns(state, key)} FROM"
                    f" {relation(branch.location, state.version)}{where}) AS stored"
                    f" LEFT SEMI JOIN {view} AS coming ON {_same(key)}"
                )
            return self._one(
                f"SELECT {_shown(key)} FROM {source} GROUP BY {_grouped(key)}"
                " HAVING count(*) > 1 LIMIT 1",
                job_group,
            )

    def taken(
        self,
        branch: Branch,
        added: Sequence[Action],
        newest: TableState,
        others: Sequence[str],
        key: Key,
        job_group: str,
    ) -> pa.RecordBatch | None:
        """The same of rows that the branch has in files ``added`` (the branch's, or of its table
        with the same path) and the table in files ``others``, as its log names them."""
        state = self._tables.state(branch.location)
        coming = [DataFile(add) for add in added]
        files = self._tables.files(newest)
        if files is not None:
            paths = frozenset(others)
            files = [file for file in files if file.key in paths]
        with suppress(TooLarge, pa.ArrowInvalid):
            return self._here(state, coming, newest, files, key, more_than=0)
        where = _between(key, _bounds(state, coming, key))
        ours = _in_files(add["path"] for add in added)
        theirs = _in_files(others)
        both = " WHERE " if not where else f"{where} AND "
        return self._one(
            f"SELECT {_shown(key)} FROM (SELECT {_columns(state, key)} FROM"
            f" {relation(newest.location, newest.version)}{both}{theirs}) AS stored"
            f" LEFT SEMI JOIN (SELECT {_columns(state, key)} FROM"
            f" {relation(branch.location, state.version)}{both}{ours}) AS coming"
            f" ON {_same(key)} GROUP BY {_grouped(key)} LIMIT 1",
            job_group,
        )

    @contextmanager
    def _view(
        self, state: TableState, coming: Sequence[DataFile], key: Key
    ) -> Iterator[str]:
        """The keys of these files, as a view of Spark's."""
        name = f"wal2lake_keys_{uuid.uuid4().hex}"
        files = {file.path: file.partition for file in coming}
        frame = rows_of_files(self._spark, state, files, key.columns)
        frame.selectExpr(*_columns_of(state, key)).createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self._spark.catalog.dropTempView(name)

    def _here(
        self,
        state: TableState,
        coming: Sequence[DataFile],
        of: TableState,
        files: Sequence[DataFile] | None,
        key: Key,
        *,
        more_than: int,
    ) -> pa.RecordBatch | None:
        """Look it up in this process. TooLarge, or ArrowInvalid for values that only Spark can
        read as their column's type: it is for Spark."""
        if files is None:
            raise TooLarge
        return find(
            Files(state, coming),
            Files(of, files),
            key.columns,
            more_than=more_than,
            index=self._index,
        )

    def _one(self, sql: str, job_group: str) -> pa.RecordBatch | None:
        with self._queries.run(sql, job_group=job_group).batches as batches:
            return next((batch for batch in batches if batch.num_rows), None)


def _alone(
    state: TableState,
    files: Sequence[DataFile] | None,
    coming: Sequence[DataFile],
    bounds: dict[str, tuple[int, int]],
) -> bool:
    """No other file can hold one of the keys."""
    if files is None:
        return False
    mine = {file.key for file in coming}
    physical = {f.name: f.physical_name for f in state.physical_fields}
    for file in files:
        if file.key in mine:
            continue
        for name, (low, high) in bounds.items():
            found = file.bounds(physical[name])
            if found is not None and (found[1] < low or high < found[0]):
                break
        else:
            return False
    return True


def _columns_of(state: TableState, key: Key) -> list[str]:
    """Return the key's columns as they are stored and as they are compared."""
    compared = alike_key(state.fields, key.columns)
    found = []
    for at, (name, alike) in enumerate(zip(key.columns, compared, strict=True)):
        found += [f"{identifier(name)} AS k{at}", f"{alike} AS c{at}"]
    return found


def _columns(state: TableState, key: Key) -> str:
    return ", ".join(_columns_of(state, key))


def _shown(key: Key) -> str:
    return ", ".join(f"first(k{at}) AS k{at}" for at in range(len(key.columns)))


def _grouped(key: Key) -> str:
    return ", ".join(f"c{at}" for at in range(len(key.columns)))


def _same(key: Key) -> str:
    places = range(len(key.columns))
    return " AND ".join(f"stored.c{at} = coming.c{at}" for at in places)


def _bounds(
    state: TableState, coming: Sequence[DataFile], key: Key
) -> dict[str, tuple[int, int]]:
    """(lowest, highest) value of each key column that statistics say it of, by its name."""
    physical = {field.name: field for field in state.physical_fields}
    found: dict[str, tuple[int, int]] = {}
    for name in key.columns:
        if physical[name].spark_ddl.lower() not in _INTEGERS:
            continue
        known: list[Any] = [
            file.bounds(physical[name].physical_name) for file in coming
        ]
        if known and all(one is not None for one in known):
            found[name] = min(one[0] for one in known), max(one[1] for one in known)
    return found


def _between(key: Key, bounds: dict[str, tuple[int, int]]) -> str:
    if not bounds:
        return ""
    return " WHERE " + " AND ".join(
        f"{identifier(name)} BETWEEN {low} AND {high}"
        for name, (low, high) in bounds.items()
    )


def _in_files(paths: Any) -> str:
    names = {unquote(path).rsplit("/", 1)[-1].replace("'", "\\'") for path in paths}
    listed = ", ".join(f"'{name}'" for name in sorted(names))
    return f"_metadata.file_name IN ({listed})"
