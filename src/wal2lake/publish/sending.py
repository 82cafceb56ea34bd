"""Decides what publications together send of each table: columns, operations, rows.

Comes in: what publications and tables were at a position of the log, the names that a client has
asked for. Goes out: a ``Sending`` for each table; runs of rows with what the filters leave of them.

Source: get_rel_sync_entry(), pgoutput_row_filter() in pgoutput.c.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.catalog import Catalog, HistoricDefinitions, PublishedOperation, TableDef
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.model import Lsn, Oid, Relation
from wal2lake.pgtypes.expressions import Filter, decode
from wal2lake.publish.filtering import FilterOutcome, combined, transforms
from wal2lake.publish.publications import PublishedRelation, all_published

_INSERT, _UPDATE, _DELETE, _TRUNCATE = map(ord, "IUDT")
_KEY = ord("K")

_OPERATIONS = {
    "I": PublishedOperation.INSERT,
    "U": PublishedOperation.UPDATE,
    "D": PublishedOperation.DELETE,
    "T": PublishedOperation.TRUNCATE,
}


Warn = Callable[[Wal2LakeError, Lsn], None]
"""Takes what is to be said of a publication that is not there, and the commit that asked for it."""


@dataclass(frozen=True, slots=True)
class Sending:
    """Columns, operations and rows of one table that are sent."""

    operations: frozenset[str]
    """I, U, D, T."""
    columns: frozenset[str] | None
    """None: all that the table had when it was changed."""
    filters: Mapping[str, Filter]
    """By operation; all rows of those that have none."""
    root: TableDef | None = None
    """Table as which this one is sent (publish_via_partition_root); None: as itself."""
    contradicted: str | None = None
    """The table whose column lists are not the same: no change of it can be sent."""

    def check(self) -> None:
        """0A000 if there is no one list of columns."""
        if self.contradicted is not None:
            raise UsageError(
                "cannot use different column lists for table"
                f' "{self.contradicted}" in different publications',
                sqlstate="0A000",
            )

    def has(self, column: str) -> bool:
        """Whether a column is sent."""
        return self.columns is None or column in self.columns

    def shown(self, relation: Relation) -> Relation:
        """The relation as subscribers know it."""
        root = self.root
        if root is None:
            return relation
        return replace(
            relation, relid=root.oid, namespace=root.namespace, name=root.name
        )


class ClientPublications:
    """Publications of one client, as they were at the positions of the log that the client
    reads."""

    def __init__(self, catalog: Catalog, warn: Warn) -> None:
        """``warn`` is told of a publication that is not there, once."""
        self._catalog = catalog
        self._warn = warn
        self._counter = -1
        self._positions: Sequence[Lsn] = ()
        """Where something begins to be otherwise."""
        self._known: tuple[tuple[str, ...], Lsn | None] | None = None
        """The last lookup: names, and the position from which they are valid."""
        self._missing: set[str] = set()
        self._found: Mapping[Oid, Sending] = {}

    def sending(self, names: Sequence[str], lsn: Lsn) -> Mapping[Oid, Sending]:
        """Return the tables that publications of these names sent at a position of the log, by
        OID."""
        counter = self._catalog.change_counter
        if counter != self._counter:
            positions = self._catalog.definition_positions()
            if positions != self._positions or not positions:
                self._positions, self._known = positions, None
            self._counter = counter
        # What an earlier release has captured is sent as what was noted first, or is there now.
        place = max(0, bisect_right(self._positions, lsn) - 1)
        since = self._positions[place] if self._positions else None
        if self._known != (tuple(names), since):
            then = self._catalog.definitions_at(since)
            self._found = self._look_up(names, then, lsn)
            self._known = tuple(names), since
        return self._found

    def table(self, relid: Oid) -> TableDef | None:
        """Return the table's definition now; None: it was dropped."""
        return self._catalog.table_by_oid(relid)

    def origin_number(self, name: str) -> int:
        """Return an origin's number, as pg_replication_origin has it; 0: there is none of that
        name."""
        return self._catalog.origin_numbers().get(name, 0)

    def _look_up(
        self, names: Sequence[str], then: HistoricDefinitions, lsn: Lsn
    ) -> Mapping[Oid, Sending]:
        chosen = [one for one in then.publications if one.name in names]
        present = {one.name for one in chosen}
        for name in names:
            if name not in present and name not in self._missing:
                self._missing.add(name)
                self._warn(_skipped(name), lsn)
        found: dict[Oid, list[PublishedRelation]] = {}
        tables = then.tables
        # The log has partitions, whichever name was used to write them.
        partitions = {
            t.partition_of: t.oid for t in tables if t.partition_of is not None
        }
        for one in all_published(chosen, tables, then.namespaces):
            relid = partitions.get(one.table.oid, one.table.oid)
            found.setdefault(relid, []).append(one)
        return {relid: _together(relid, several) for relid, several in found.items()}


def _skipped(name: str) -> Wal2LakeError:
    return UsageError(
        f'skipped loading publication "{name}"',
        sqlstate="55000",
        detail="The publication does not exist at this point in the WAL.",
        hint="Create the publication if it does not exist.",
    )


def _together(relid: Oid, several: Sequence[PublishedRelation]) -> Sending:
    first = several[0]
    differ = any(set(one.columns) != set(first.columns) for one in several)
    operations, filters = set(), {}
    for letter, operation in _OPERATIONS.items():
        senders = [one for one in several if operation in one.publication.publishes]
        if not senders:
            continue
        operations.add(letter)
        condition = combined(
            None
            if one.named is None or one.named.filter is None
            else (decode(one.named.filter), one.named.filter_columns)
            for one in senders
        )
        if condition is not None and letter != "T":
            filters[letter] = Filter(*condition)
    # A TRUNCATE has no columns.
    if differ and operations - {"T"}:
        name = first.table.qualified
        return Sending(frozenset(operations), None, {}, contradicted=name)
    whole = any(one.named is None or one.named.columns is None for one in several)
    if not {name for name, _ in first.table.generated} <= set(first.columns):
        # The log has them.
        whole = False
    return Sending(
        frozenset(operations),
        None if whole else frozenset(first.columns),
        filters,
        None if first.table.oid == relid else first.table,
    )


def published_rows(
    sending: Sending, relation: Relation, rows: pa.RecordBatch
) -> pa.RecordBatch:
    """A run's rows as they are sent: those of operations that are published, which the filters
    let through; an UPDATE may have become an INSERT or a DELETE, or both (``_in_two``)."""
    blind = {
        letter
        for letter, filter_ in sending.filters.items()
        if letter in "UD" and _is_blind(filter_, relation)
    }
    if "U" in blind:
        rows, moved = _in_two(rows, relation)
    else:
        moved = np.zeros(rows.num_rows, bool)
    ops = rows.column("op").to_numpy().copy()
    old = rows.column("old").to_numpy().copy()
    keep = np.isin(ops, [ord(letter) for letter in sending.operations])
    if moved.any():
        keep[moved] = "U" in sending.operations
    if not relation.key_positions:
        # Nobody could find the row.
        keep &= (ops != _UPDATE) & (ops != _DELETE)
    for letter, filter_ in sending.filters.items():
        if letter == "D" and letter in blind:
            # Who has the row is not known, and it is gone.
            continue
        if letter == "U" and letter in blind:
            here, by = np.flatnonzero(moved & (ops == _INSERT)), "I"
        else:
            here, by = np.flatnonzero((ops == ord(letter)) & keep & ~moved), letter
        if not here.size:
            continue
        some = rows.take(pa.array(here))
        outcomes = _outcomes(filter_, by, relation, some)
        for place, outcome in zip(here.tolist(), outcomes, strict=True):
            if outcome is FilterOutcome.NOTHING:
                keep[place] = False
            elif outcome is FilterOutcome.INSERT and letter == "U":
                ops[place], old[place] = _INSERT, 0
            elif outcome is FilterOutcome.DELETE and letter == "U":
                ops[place] = _DELETE
    for name, values in (("op", ops), ("old", old)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, pa.array(values))
    return rows if keep.all() else rows.filter(pa.array(keep))


def _is_blind(filter_: Filter, relation: Relation) -> bool:
    """Old rows do not have all columns of the filter. Who writes through the node is refused then;
    other writers, and subscriptions, are not."""
    keys = {column.name for column in relation.columns if column.is_key}
    return bool(keys) and not keys.issuperset(filter_.columns)


def _in_two(
    rows: pa.RecordBatch, relation: Relation
) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.bool_]]]:
    """UPDATEs as a DELETE of the old row, which a subscriber need not have, and an INSERT of the
    new one; which rows are those."""
    ops = rows.column("op").to_numpy()
    updates = ops == _UPDATE
    if not updates.any():
        return rows, updates
    times = np.where(updates, 2, 1)
    rows = rows.take(pa.array(np.repeat(np.arange(len(ops)), times)))
    moved = np.repeat(updates, times)
    first = np.cumsum(times) - times
    ops = np.repeat(ops, times)
    ops[first[updates]], ops[first[updates] + 1] = _DELETE, _INSERT
    old = rows.column("old").to_numpy().copy()
    # The identity has not changed: the new row has the old one's.
    same = pa.array(moved & (old == 0))
    for i in relation.key_positions:
        name = f"o{i}"
        key = pc.if_else(same, rows.column(f"c{i}"), _column(rows, name))
        at = rows.schema.get_field_index(name)
        rows = (
            rows.append_column(name, key) if at < 0 else rows.set_column(at, name, key)
        )
    old[moved & (ops == _DELETE) & (old == 0)] = _KEY
    old[moved & (ops == _INSERT)] = 0
    for name, values in (("op", ops), ("old", old)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, pa.array(values))
    return rows, moved


def _outcomes(
    filter_: Filter, letter: str, relation: Relation, rows: pa.RecordBatch
) -> list[FilterOutcome]:
    # A column that the table did not have yet is NULL.
    known = {column.name: i for i, column in enumerate(relation.columns)}
    places = [known.get(name) for name in filter_.columns]
    count = rows.num_rows
    new = [_column(rows, f"c{i}") for i in places]
    before = [_column(rows, f"o{i}") for i in places]
    if letter == "U":
        has_old = (rows.column("old").to_numpy() != 0).tolist()
        return transforms(filter_, before, new, has_old)
    arrays = before if letter == "D" else new
    found = filter_.matches(arrays, count)
    return [FilterOutcome.KEEP if one else FilterOutcome.NOTHING for one in found]


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.binary())
    return rows.column(name)
