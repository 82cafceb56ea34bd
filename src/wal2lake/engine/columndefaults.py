"""Defaults of columns that the publisher does not send, evaluated for a batch or a copy.

Takes a table's OID and some of its columns; returns a ``Fill`` for each column with a default.
Called by the threads of apply and tablesync, once for each batch or copy that needs a default. For
serial and identity columns as many values are taken as rows may need; a retried batch takes new
ones.

The expressions are the front door's, so a default means the same for every insert. Constants are
evaluated once. The time is this process's time. Spark evaluates everything else. The time zone is
UTC, the node's.

Source: PostgreSQL worker.c (slot_fill_defaults); 10.4 (Value Storage).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from sqlglot import exp

from wal2lake.catalog import Catalog, ColumnDef
from wal2lake.errors import FeatureNotSupportedError, Wal2LakeError, sqlstate_of
from wal2lake.lake.spark import Queries
from wal2lake.lake.staging import Fill, Fills, Volatile
from wal2lake.local.concurrency.sequencevalues import SequenceLocks, held
from wal2lake.model import Oid
from wal2lake.sql.query.changes.stored import default_tree
from wal2lake.sql.query.writes import default_sql

_ZONE: Final = "UTC"

_CONSTANT: Final = (
    exp.Literal,
    exp.Null,
    exp.Boolean,
    exp.HexString,
    exp.ByteString,
    exp.Cast,
    exp.Neg,
    exp.Paren,
    exp.Array,
    exp.DataType,
    exp.DataTypeParam,
    exp.Identifier,
)
_UUID_TYPES: Final = (2950, 25, 1043)
_TIMES: Final = {1114: pa.timestamp("us"), 1184: pa.timestamp("us", "UTC")}

_Key = tuple[str, ColumnDef]


class EvaluatedDefaults:
    """Implements the port ``ColumnDefaults``. Thread-safe."""

    def __init__(
        self, catalog: Catalog, queries: Queries, sequences: SequenceLocks
    ) -> None:
        self._catalog = catalog
        self._sequences = sequences
        self._queries = queries
        self._numbers = itertools.count(1)
        self._constants: dict[_Key, Fill] = {}
        self._lock = threading.Lock()

    def __call__(self, relid: Oid, columns: Collection[str]) -> Fills:
        """Return the fills, as the port specifies."""
        table = self._catalog.table_by_oid(relid)
        if table is None:
            return {}
        fills: dict[str, Fill] = {}
        unknown: list[ColumnDef] = []
        for column in table.columns:
            if column.name in columns and column.sequence is not None:
                fills[column.name] = Fill(sequence=column.sequence)
                continue
            if column.name not in columns or column.default is None:
                continue
            fill = self._local_fill(column)
            if fill is None:
                unknown.append(column)
            else:
                fills[column.name] = fill
        fills.update(self._evaluated(unknown))
        return fills

    def numbered(self, fills: Fills, rows: int) -> Fills:
        """Number the fills, as the port specifies."""
        if not rows:
            return fills
        return {
            name: fill if fill.sequence is None else self._taken(fill.sequence, rows)
            for name, fill in fills.items()
        }

    @contextmanager
    def restarting(self, sequences: Collection[Oid]) -> Iterator[None]:
        """Hold sequences while they restart, as the port specifies."""
        with ExitStack() as alone:
            for oid in sorted(sequences):
                alone.enter_context(held(self._sequences.of(oid), lambda: None))
            yield
            # A session that takes a value in between sees the old count of restarts and fails.
            self._sequences.restarts.update(sequences)

    def _taken(self, oid: Oid, rows: int) -> Fill:
        """Take the next values, after waiting for an INSERT ... SELECT that takes some now."""
        step = next((s.increment for s in self._catalog.sequences() if s.oid == oid), 1)
        try:
            with held(self._sequences.of(oid), lambda: None):
                first = self._catalog.next_values(oid, rows)
        except Wal2LakeError as error:
            return _failed(error)
        return Fill(sequence=oid, first=first, step=step)

    def _local_fill(self, column: ColumnDef) -> Fill | None:
        """Return the fill if Spark is not needed, else None."""
        with self._lock:
            constant = self._constants.get((str(column.default), column))
        if constant is not None:
            return constant
        try:
            tree = default_tree(column)
        except Wal2LakeError as error:
            return _failed(error)
        bare = tree
        takes_uuid = column.type_oid in _UUID_TYPES and column.typmod == -1
        while takes_uuid and (isinstance(bare, exp.Paren) or _keeps_uuid(bare)):
            bare = bare.this
        if takes_uuid and _is_random_uuid(bare):
            return Fill(volatile=Volatile.UUID)
        if column.type_oid == 701 and isinstance(tree, exp.Rand):
            return Fill(volatile=Volatile.RANDOM)
        if _is_volatile(tree):
            return _failed(
                FeatureNotSupportedError(
                    f'the default of column "{column.name}" has another value for each'
                    " row: of such only gen_random_uuid() and random() are supported"
                    " for replicated rows"
                )
            )
        kind = _TIMES.get(int(column.type_oid))
        exact = column.typmod == -1 and tree.args.get("this") is None
        if isinstance(tree, exp.CurrentTimestamp) and kind and exact:
            now = datetime.now(UTC)
            if kind.tz is None:
                now = now.replace(tzinfo=None)
            return Fill(pa.array([now], kind))
        return None

    def _evaluated(self, columns: Sequence[ColumnDef]) -> dict[str, Fill]:
        """Evaluate by one query, so that all see one time; if it fails, each by its own."""
        if not columns:
            return {}
        try:
            items = [default_sql(column, _ZONE) for column in columns]
            values = self._row(items)
        except Wal2LakeError as error:
            if len(columns) == 1:
                return {columns[0].name: _failed(error)}
            return {
                name: fill
                for column in columns
                for name, fill in self._evaluated([column]).items()
            }
        fills = {
            column.name: Fill(value)
            for column, value in zip(columns, values, strict=True)
        }
        with self._lock:
            for column in columns:
                if all(isinstance(n, _CONSTANT) for n in default_tree(column).walk()):
                    key = (str(column.default), column)
                    self._constants[key] = fills[column.name]
        return fills

    def _row(self, items: Sequence[str]) -> list[pa.Array]:
        named = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(items))
        result = self._queries.run(
            f"SELECT {named}", job_group=f"defaults {next(self._numbers)}"
        )
        with result.batches:
            table = pa.Table.from_batches(list(result.batches), result.schema)
        return [column.combine_chunks() for column in table.columns]


def _keeps_uuid(tree: exp.Expression) -> bool:
    """True for a cast to a type without a length."""
    return isinstance(tree, exp.Cast) and not tree.to.expressions


def _is_random_uuid(tree: exp.Expression) -> bool:
    return isinstance(tree, exp.Anonymous) and tree.name.lower() == "gen_random_uuid"


def _is_volatile(tree: exp.Expression) -> bool:
    return any(
        isinstance(node, exp.Rand)
        or _is_random_uuid(node)
        or (isinstance(node, exp.Anonymous) and node.name.lower() == "clock_timestamp")
        for node in tree.walk()
    )


def _failed(error: Wal2LakeError) -> Fill:
    return Fill(error=(sqlstate_of(error) or "XX000", error.message))
