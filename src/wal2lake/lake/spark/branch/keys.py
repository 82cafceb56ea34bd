"""Finds keys that more than one row has after a statement has added rows.

Comes in: a branch, the files that a statement has added to it, the key. Goes out: a key that more
than one row has, or nothing. Delta enforces no key, so each writer must check.

The check is limited to the keys of the added rows: file statistics show which files can hold them
(for integers often none, and then nothing is read). Few keys are looked up in this process
(``lookup``); otherwise Spark joins the key columns once. NULLs need no care: a key has none.

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

from wal2lake.lake.branch.lookup import Files, find
from wal2lake.lake.branch.netchange import Action
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.port import TableState
from wal2lake.lake.spark.branch.branches import Branch
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.delta.filerows import rows_of_files
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.memory import TooLarge
from wal2lake.pgtypes.equality import alike_key
from wal2lake.pgtypes.spark_ddl import identifier

_INTEGERS: Final = ("tinyint", "smallint", "int", "integer", "bigint")
"""Types whose bounds in file statistics are exact values."""


@dataclass(frozen=True, slots=True)
class Key:
    """The columns that no two rows may share."""

    columns: tuple[str, ...]


class BranchKeys:
    """Checks keys on one session; safe for all threads."""

    def __init__(
        self,
        spark: SparkSession,
        tables: DeltaTables,
        queries: Queries,
        index: KeyIndex | None = None,
    ) -> None:
        """``index``: positions of keys in large files."""
        self._spark = spark
        self._index = index
        self._tables = tables
        self._queries = queries

    def repeated(
        self, branch: Branch, added: Sequence[Action], key: Key, job_group: str
    ) -> pa.RecordBatch | None:
        """Return a row of the key's columns: a key that the branch has more than once. None if
        there is none.

        ``added`` are the ``add`` objects of the branch's newest commit; only their keys are
        checked.
        """
        state = self._tables.state(branch.location)
        coming = [DataFile(add) for add in added]
        rows = sum(file.rows or 2 for file in coming)
        bounds = _bounds(state, coming, key)
        files = self._tables.files(state)
        alone = _are_only_files(state, files, coming, bounds)
        if not rows or (alone and rows == 1):
            return None
        with suppress(TooLarge, pa.ArrowInvalid):
            return self._look_up(state, coming, state, files, key, more_than=1)
        with self._view(state, coming, key) as view:
            source = view
            if not alone:
                condition = _bounds_condition(key, bounds)
                source = (
                    f"(SELECT {_columns(state, key)} FROM"
                    f" {relation(branch.location, state.version)}{condition}) AS stored"
                    f" LEFT SEMI JOIN {view} AS coming ON {_join_condition(key)}"
                )
            return self._first_row(
                f"SELECT {_select_list(key)} FROM {source} GROUP BY {_group_list(key)}"
                " HAVING count(*) > 1 LIMIT 1",
                job_group,
            )

    def taken(
        self,
        branch: Branch,
        added: Sequence[Action],
        newest: TableState,
        foreign: Sequence[str],
        key: Key,
        job_group: str,
    ) -> pa.RecordBatch | None:
        """Return a key that rows in files ``added`` share with rows that other writers have
        committed.

        The branch has the files ``added`` (its own, or its table's with the same path), and the
        table the files ``foreign``, as its log names them. None if there is no such key.
        """
        state = self._tables.state(branch.location)
        coming = [DataFile(add) for add in added]
        files = self._tables.files(newest)
        if files is not None:
            paths = frozenset(foreign)
            files = [file for file in files if file.key in paths]
        with suppress(TooLarge, pa.ArrowInvalid):
            return self._look_up(state, coming, newest, files, key, more_than=0)
        condition = _bounds_condition(key, _bounds(state, coming, key))
        ours = _files_condition(add["path"] for add in added)
        theirs = _files_condition(foreign)
        both = " WHERE " if not condition else f"{condition} AND "
        return self._first_row(
            f"SELECT {_select_list(key)} FROM (SELECT {_columns(state, key)} FROM"
            f" {relation(newest.location, newest.version)}{both}{theirs}) AS stored"
            f" LEFT SEMI JOIN (SELECT {_columns(state, key)} FROM"
            f" {relation(branch.location, state.version)}{both}{ours}) AS coming"
            f" ON {_join_condition(key)} GROUP BY {_group_list(key)} LIMIT 1",
            job_group,
        )

    @contextmanager
    def _view(
        self, state: TableState, coming: Sequence[DataFile], key: Key
    ) -> Iterator[str]:
        """Register the keys of these files as a view in Spark."""
        name = f"wal2lake_keys_{uuid.uuid4().hex}"
        files = {file.path: file.partition for file in coming}
        frame = rows_of_files(self._spark, state, files, key.columns)
        frame.selectExpr(*_columns_of(state, key)).createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self._spark.catalog.dropTempView(name)

    def _look_up(
        self,
        state: TableState,
        coming: Sequence[DataFile],
        of: TableState,
        files: Sequence[DataFile] | None,
        key: Key,
        *,
        more_than: int,
    ) -> pa.RecordBatch | None:
        """Look keys up in this process. If Spark must do it, raises TooLarge, or ArrowInvalid for
        values that only Spark can read as their column's type."""
        if files is None:
            raise TooLarge
        return find(
            Files(state, coming),
            Files(of, files),
            key.columns,
            more_than=more_than,
            index=self._index,
        )

    def _first_row(self, sql: str, job_group: str) -> pa.RecordBatch | None:
        with self._queries.run(sql, job_group=job_group).batches as batches:
            return next((batch for batch in batches if batch.num_rows), None)


def _are_only_files(
    state: TableState,
    files: Sequence[DataFile] | None,
    coming: Sequence[DataFile],
    bounds: dict[str, tuple[int, int]],
) -> bool:
    """Whether no other file can hold one of the keys."""
    if files is None:
        return False
    own_keys = {file.key for file in coming}
    physical = {f.name: f.physical_name for f in state.physical_fields}
    for file in files:
        if file.key in own_keys:
            continue
        for name, (low, high) in bounds.items():
            limits = file.bounds(physical[name])
            if limits is not None and (limits[1] < low or high < limits[0]):
                break
        else:
            return False
    return True


def _columns_of(state: TableState, key: Key) -> list[str]:
    """Return SQL for the key's columns as they are stored and as they are compared."""
    compared = alike_key(state.fields, key.columns)
    columns = []
    for i, (name, alike) in enumerate(zip(key.columns, compared, strict=True)):
        columns += [f"{identifier(name)} AS k{i}", f"{alike} AS c{i}"]
    return columns


def _columns(state: TableState, key: Key) -> str:
    return ", ".join(_columns_of(state, key))


def _select_list(key: Key) -> str:
    return ", ".join(f"first(k{i}) AS k{i}" for i in range(len(key.columns)))


def _group_list(key: Key) -> str:
    return ", ".join(f"c{i}" for i in range(len(key.columns)))


def _join_condition(key: Key) -> str:
    places = range(len(key.columns))
    return " AND ".join(f"stored.c{i} = coming.c{i}" for i in places)


def _bounds(
    state: TableState, coming: Sequence[DataFile], key: Key
) -> dict[str, tuple[int, int]]:
    """Return the (lowest, highest) value of each key column that has exact statistics, by its
    name."""
    physical = {field.name: field for field in state.physical_fields}
    limits: dict[str, tuple[int, int]] = {}
    for name in key.columns:
        if physical[name].spark_ddl.lower() not in _INTEGERS:
            continue
        per_file: list[Any] = [
            file.bounds(physical[name].physical_name) for file in coming
        ]
        if per_file and all(bounds is not None for bounds in per_file):
            limits[name] = (
                min(bounds[0] for bounds in per_file),
                max(bounds[1] for bounds in per_file),
            )
    return limits


def _bounds_condition(key: Key, bounds: dict[str, tuple[int, int]]) -> str:
    if not bounds:
        return ""
    return " WHERE " + " AND ".join(
        f"{identifier(name)} BETWEEN {low} AND {high}"
        for name, (low, high) in bounds.items()
    )


def _files_condition(paths: Any) -> str:
    names = {unquote(path).rsplit("/", 1)[-1].replace("'", "\\'") for path in paths}
    listed = ", ".join(f"'{name}'" for name in sorted(names))
    return f"_metadata.file_name IN ({listed})"
