"""Determines the columns, operations and rows of each table that publications send together.

In: definitions of publications and tables at a position of the log, the client's list of
publications. Out: a ``Sending`` for each table; runs of rows with filters applied.

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
from wal2lake.publish.published import PublishedRelation, all_published

_INSERT, _UPDATE, _DELETE, _TRUNCATE = map(ord, "IUDT")
_KEY = ord("K")

_OPERATIONS = {
    "I": PublishedOperation.INSERT,
    "U": PublishedOperation.UPDATE,
    "D": PublishedOperation.DELETE,
    "T": PublishedOperation.TRUNCATE,
}


Warn = Callable[[Wal2LakeError, Lsn], None]
"""Takes a warning about a missing publication, and the commit LSN at which it is missing."""


@dataclass(frozen=True, slots=True)
class Sending:
    """Columns, operations and rows of one table to send."""

    operations: frozenset[str]
    """Operations to send: I, U, D, T."""
    columns: frozenset[str] | None
    """Columns to send. None for all columns that the table had when it was changed."""
    filters: Mapping[str, Filter]
    """Row filters by operation. Without a filter, all rows are sent."""
    root: TableDef | None = None
    """Table as which this one is sent (publish_via_partition_root). None if it is sent as
    itself."""
    contradicted: str | None = None
    """Name of the table if publications have different column lists for it. Then no change can be
    sent."""

    def check(self) -> None:
        """Raise 0A000 if publications have different column lists."""
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
        """Return the relation as which the table is sent."""
        root = self.root
        if root is None:
            return relation
        return replace(
            relation, relid=root.oid, namespace=root.namespace, name=root.name
        )


class ClientPublications:
    """Publications of one client, as defined at the positions of the log that the client reads."""

    def __init__(self, catalog: Catalog, warn: Warn) -> None:
        """``warn`` is called once for each missing publication."""
        self._catalog = catalog
        self._warn = warn
        self._counter = -1
        self._positions: Sequence[Lsn] = ()
        """Positions at which definitions change."""
        self._known: tuple[tuple[str, ...], Lsn | None] | None = None
        """Arguments of the last lookup: names, and the position from which the definitions are
        valid."""
        self._missing: set[str] = set()
        self._sendings: Mapping[Oid, Sending] = {}

    def sending(self, names: Sequence[str], lsn: Lsn) -> Mapping[Oid, Sending]:
        """Return the tables that publications of these names sent at a position of the log, by
        OID."""
        counter = self._catalog.change_counter
        if counter != self._counter:
            positions = self._catalog.definition_positions()
            if positions != self._positions or not positions:
                self._positions, self._known = positions, None
            self._counter = counter
        # Changes that an earlier release captured have no definitions. The oldest recorded ones
        # are used, or the present ones.
        place = max(0, bisect_right(self._positions, lsn) - 1)
        since = self._positions[place] if self._positions else None
        if self._known != (tuple(names), since):
            then = self._catalog.definitions_at(since)
            self._sendings = self._look_up(names, then, lsn)
            self._known = tuple(names), since
        return self._sendings

    def table(self, relid: Oid) -> TableDef | None:
        """Return the table's present definition; None if it was dropped."""
        return self._catalog.table_by_oid(relid)

    def origin_number(self, name: str) -> int:
        """Return an origin's number in pg_replication_origin; 0 if the name does not exist."""
        return self._catalog.origin_numbers().get(name, 0)

    def _look_up(
        self, names: Sequence[str], then: HistoricDefinitions, lsn: Lsn
    ) -> Mapping[Oid, Sending]:
        chosen = [
            published for published in then.publications if published.name in names
        ]
        present = {published.name for published in chosen}
        for name in names:
            if name not in present and name not in self._missing:
                self._missing.add(name)
                self._warn(_skipped(name), lsn)
        relations: dict[Oid, list[PublishedRelation]] = {}
        tables = then.tables
        # The log has partitions, whether they were written under their own name or their root's.
        partitions = {
            t.partition_of: t.oid for t in tables if t.partition_of is not None
        }
        for published in all_published(chosen, tables, then.namespaces):
            relid = partitions.get(published.table.oid, published.table.oid)
            relations.setdefault(relid, []).append(published)
        return {
            relid: _sending_of(relid, published_as)
            for relid, published_as in relations.items()
        }


def _skipped(name: str) -> Wal2LakeError:
    return UsageError(
        f'skipped loading publication "{name}"',
        sqlstate="55000",
        detail="The publication does not exist at this point in the WAL.",
        hint="Create the publication if it does not exist.",
    )


def _sending_of(relid: Oid, relations: Sequence[PublishedRelation]) -> Sending:
    first = relations[0]
    differ = any(set(relation.columns) != set(first.columns) for relation in relations)
    operations, filters = set(), {}
    for letter, operation in _OPERATIONS.items():
        senders = [
            relation
            for relation in relations
            if operation in relation.publication.publishes
        ]
        if not senders:
            continue
        operations.add(letter)
        condition = combined(
            None
            if relation.named is None or relation.named.filter is None
            else (decode(relation.named.filter), relation.named.filter_columns)
            for relation in senders
        )
        if condition is not None and letter != "T":
            filters[letter] = Filter(*condition)
    # A TRUNCATE has no columns.
    if differ and operations - {"T"}:
        name = first.table.qualified
        return Sending(frozenset(operations), None, {}, contradicted=name)
    whole = any(
        relation.named is None or relation.named.columns is None
        for relation in relations
    )
    if not {name for name, _ in first.table.generated} <= set(first.columns):
        # The log has the generated columns.
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
    """Return the rows of a run to send: rows of published operations that the filters accept. An
    UPDATE may become an INSERT or a DELETE, or both (``_in_two``)."""
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
        # Subscribers could not find the row.
        keep &= (ops != _UPDATE) & (ops != _DELETE)
    for letter, filter_ in sending.filters.items():
        if letter == "D" and letter in blind:
            # The filter cannot be evaluated, so every DELETE is sent.
            continue
        if letter == "U" and letter in blind:
            places, by = np.flatnonzero(moved & (ops == _INSERT)), "I"
        else:
            places, by = np.flatnonzero((ops == ord(letter)) & keep & ~moved), letter
        if not places.size:
            continue
        candidates = rows.take(pa.array(places))
        outcomes = _outcomes(filter_, by, relation, candidates)
        for place, outcome in zip(places.tolist(), outcomes, strict=True):
            if outcome is FilterOutcome.NOTHING:
                keep[place] = False
            elif outcome is FilterOutcome.INSERT and letter == "U":
                ops[place], old[place] = _INSERT, 0
            elif outcome is FilterOutcome.DELETE and letter == "U":
                ops[place] = _DELETE
    for name, values in (("op", ops), ("old", old)):
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, name, pa.array(values))
    return rows if keep.all() else rows.filter(pa.array(keep))


def _is_blind(filter_: Filter, relation: Relation) -> bool:
    """Whether old rows lack columns of the filter. Sessions of the node cannot write such changes;
    other writers and subscriptions can."""
    keys = {column.name for column in relation.columns if column.is_key}
    return bool(keys) and not keys.issuperset(filter_.columns)


def _in_two(
    rows: pa.RecordBatch, relation: Relation
) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Replace UPDATEs by a DELETE of the old row, which a subscriber need not have, and an INSERT
    of the new one. The second value marks these rows."""
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
    # Without an old row, the identity has not changed: take it from the new row.
    without_old = pa.array(moved & (old == 0))
    for i in relation.key_positions:
        name = f"o{i}"
        key = pc.if_else(without_old, rows.column(f"c{i}"), _column(rows, name))
        index = rows.schema.get_field_index(name)
        rows = (
            rows.append_column(name, key)
            if index < 0
            else rows.set_column(index, name, key)
        )
    old[moved & (ops == _DELETE) & (old == 0)] = _KEY
    old[moved & (ops == _INSERT)] = 0
    for name, values in (("op", ops), ("old", old)):
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, name, pa.array(values))
    return rows, moved


def _outcomes(
    filter_: Filter, letter: str, relation: Relation, rows: pa.RecordBatch
) -> list[FilterOutcome]:
    # A column that did not exist yet is NULL.
    places_by_name = {column.name: i for i, column in enumerate(relation.columns)}
    places = [places_by_name.get(name) for name in filter_.columns]
    count = rows.num_rows
    new = [_column(rows, f"c{i}") for i in places]
    before = [_column(rows, f"o{i}") for i in places]
    if letter == "U":
        has_old = (rows.column("old").to_numpy() != 0).tolist()
        return transforms(filter_, before, new, has_old)
    arrays = before if letter == "D" else new
    matches = filter_.matches(arrays, count)
    return [
        FilterOutcome.KEEP if matched else FilterOutcome.NOTHING for matched in matches
    ]


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.binary())
    return rows.column(name)
