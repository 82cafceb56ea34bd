"""Reports events of a batch that met another state than the publisher's, in PostgreSQL's words.

Comes in: a loaded batch, and the numbers of these events. Goes out: ``RowConflict`` values in log
order, the first ones with the text of their keys. Called by ``plan``.

Source: src/backend/replication/logical/conflict.c (build_tuple_value_details).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.lake.rowtexts import row_texts, value_texts
from wal2lake.lake.staging.layout import (
    DELETE,
    NAMED_CONFLICTS,
    ChangeShape,
    RowConflict,
    RowFailure,
    Seq,
    Uniqueness,
    key_taken,
)
from wal2lake.lake.upsert.judging import TableJudge
from wal2lake.lake.upsert.lives.lives import Index, MetEvent
from wal2lake.model import ConflictType, Resolution

_OF_NEW_KEYS: Final = (ConflictType.INSERT_EXISTS, ConflictType.UPDATE_EXISTS)

_OF_DELETES: Final = (ConflictType.DELETE_MISSING, ConflictType.DELETE_ORIGIN_DIFFERS)

_INCOMPLETE: Final = (
    "Could not find the row to be updated, and values of it that did not change were not"
    " sent."
)


def missing_rows(
    shape: ChangeShape, table: pa.Table, missed: Index, *, values: bool
) -> list[RowConflict]:
    """Return the conflicts of the events ``missed``, by their positions in ``table``; with the new
    rows if ``values``."""
    named = missed[:NAMED_CONFLICTS]
    rows = table.take(pa.array(named))
    kinds = [_kind(op) for op in rows.column("op").to_pylist()]
    lsns = rows.column("lsn").to_pylist()
    keys = keys_of(shape, rows)
    new = [None] * len(named) if not values else _rows_of(shape, rows)
    conflicts = [
        RowConflict(kind, lsn, key, row if kind is not _kind(DELETE) else None)
        for kind, lsn, key, row in zip(kinds, lsns, keys, new, strict=True)
    ]
    rest = table.take(pa.array(missed[NAMED_CONFLICTS:]))
    ops = rest.column("op").to_numpy()
    for op in np.unique(ops):
        positions = np.flatnonzero(ops == op)
        first = rest.column("lsn")[int(positions[0])].as_py()
        conflicts.append(RowConflict(_kind(int(op)), first, None, count=len(positions)))
    return conflicts


def met_rows(
    shape: ChangeShape,
    table: pa.Table,
    met: Sequence[MetEvent],
    judge: TableJudge,
    stored_row: Callable[[Sequence[int]], Sequence[str | None]],
    *,
    values: bool,
) -> list[RowConflict]:
    """Return the conflicts that a judge has decided, in the form of ``missing_rows``.
    ``stored_row`` returns the texts of the stored rows of keys."""
    named = met[:NAMED_CONFLICTS]
    rows = table.take(pa.array([conflict.event for conflict in named], pa.int64()))
    lsns = rows.column("lsn").to_pylist()
    old, new = keys_of(shape, rows), new_keys_of(shape, rows)
    texts: Sequence[str | None] = [None] * len(named)
    local = texts
    if values:
        texts, local = (
            _rows_of(shape, rows),
            stored_row([conflict.stored for conflict in named]),
        )
    conflicts = [
        RowConflict(
            conflict.type,
            lsns[index],
            new[index] if conflict.type in _OF_NEW_KEYS else old[index],
            None if conflict.type in _OF_DELETES else texts[index],
            resolution=conflict.resolution,
            local=local[index],
            modified=judge.modified(conflict.stored, conflict.writer),
        )
        for index, conflict in enumerate(named)
    ]
    rest: dict[tuple[ConflictType, Resolution], tuple[int, int]] = {}
    for conflict in met[NAMED_CONFLICTS:]:
        first, count = rest.get(
            (conflict.type, conflict.resolution), (conflict.event, 0)
        )
        rest[conflict.type, conflict.resolution] = first, count + 1
    conflicts += [
        RowConflict(
            kind,
            table.column("lsn")[event].as_py(),
            None,
            count=count,
            resolution=resolution,
        )
        for (kind, resolution), (event, count) in rest.items()
    ]
    return conflicts


def stop(
    shape: ChangeShape,
    table: pa.Table,
    met: MetEvent,
    judge: TableJudge,
    uniqueness: Uniqueness,
) -> RowFailure:
    """Build the failure of an event that must not be applied."""
    row = table.slice(met.event, 1)
    seq = Seq(row.column("lsn")[0].as_py(), row.column("ord")[0].as_py())
    modified = judge.modified(met.stored, met.writer)
    failed = judge.error(met)
    if failed is not None:
        key = (new_keys_of if met.type in _OF_NEW_KEYS else keys_of)(shape, row)[0]
        return RowFailure(
            seq,
            None,
            failed[0],
            failed[1],
            detail=f"The expression that resolves {met.type} could not be evaluated.",
            key=key,
            hint="Choose another conflict_resolution (ALTER SUBSCRIPTION ... SET).",
            op=row.column("op")[0].as_py(),
        )
    if met.type in _OF_NEW_KEYS:
        inserted = met.type is ConflictType.INSERT_EXISTS
        key = new_keys_of(shape, row)[0]
        failure = key_taken(seq, uniqueness, inserted=inserted, key=key)
        return replace(failure, modified=modified)
    return RowFailure(
        seq,
        None,
        "40001",
        f'conflict detected on relation "{uniqueness.relation}": conflict={met.type}',
        met.type,
        _INCOMPLETE if met.incomplete else None,
        keys_of(shape, row)[0],
        modified,
    )


def shown(
    failure: RowFailure,
    shape: ChangeShape,
    table: pa.Table,
    event: int,
    local: str | None,
) -> RowFailure:
    """Add the text of the event's row, and of the row that it met, to a failure."""
    if failure.conflict is None:
        return failure
    event_row = table.slice(event, 1)
    row = identity = None
    if failure.conflict not in _OF_DELETES:
        row = _rows_of(shape, event_row)[0]
    if failure.conflict is ConflictType.UPDATE_EXISTS:
        identity = keys_of(shape, event_row)[0]
    return replace(failure, row=row, local=local, identity=identity)


def unwritable(relation: str, rows: pa.Table, why: str) -> RowFailure:
    """Build the failure of a batch of a table that this node cannot write. ``rows``: lsn and ord of
    the batch's events; ``why``: a sentence."""
    return RowFailure(
        _first_of(rows),
        None,
        "0A000",
        f'cannot write relation "{relation}"',
        detail=why,
        hint="Drop the table here, and let ALTER SUBSCRIPTION ... REFRESH PUBLICATION create"
        " and copy it anew. Or leave it out of the publication.",
    )


def uncounted(relation: str, rows: pa.Table) -> RowFailure:
    """Build the failure of a batch in which a key is repeated before the transactions end, and
    which does not fit into memory. It is divided at one of its transactions, if it has several."""
    lsn = np.sort(rows.column("lsn").to_numpy())
    cut = _middle_lsn(lsn)
    return RowFailure(
        _first_of(rows) if cut is None else Seq(cut, 0),
        None,
        "53200",
        f'cannot judge the deferrable primary key of relation "{relation}": what is changed'
        " does not fit into memory",
        hint='Increase "upsert_bytes" under [apply] in wal2lake.toml and restart the node.',
        divides=cut is not None,
    )


def _first_of(rows: pa.Table) -> Seq:
    first = rows.sort_by([("lsn", "ascending"), ("ord", "ascending")]).slice(0, 1)
    return Seq(first.column("lsn")[0].as_py(), first.column("ord")[0].as_py())


def _middle_lsn(lsn: Index) -> int | None:
    """Return one of the ascending commit LSNs with about half of them below it; None if all are
    equal."""
    cut = lsn[len(lsn) // 2]
    if cut == lsn[0]:
        above = lsn[lsn > cut]
        return int(above[0]) if above.size else None
    return int(cut)


def keys_of(shape: ChangeShape, rows: pa.Table) -> list[str]:
    """Return ``(a, b)=(1, 2)`` for each event: the key of the row that it changes."""
    columns = []
    moved = rows.column("moved").to_pylist() if shape.moved else []
    for i in shape.key:
        texts = value_texts(shape.fields[i], rows.column(f"n{i}"))
        if shape.moved:
            old = value_texts(shape.fields[i], rows.column(f"o{i}"))
            texts = [o if m else n for o, n, m in zip(old, texts, moved, strict=True)]
        columns.append(texts)
    return _format_keys(shape, columns)


def new_keys_of(shape: ChangeShape, rows: pa.Table) -> list[str]:
    """Return the same for the rows that the events would make."""
    return _format_keys(
        shape, [value_texts(shape.fields[i], rows.column(f"n{i}")) for i in shape.key]
    )


def _format_keys(shape: ChangeShape, columns: Sequence[Sequence[str]]) -> list[str]:
    names = ", ".join(shape.fields[i].name for i in shape.key)
    return [f"({names})=({', '.join(values)})" for values in zip(*columns, strict=True)]


def _rows_of(shape: ChangeShape, rows: pa.Table) -> list[str]:
    names = [f"n{i}" for i in range(len(shape.fields))]
    return row_texts(shape.fields, rows.select(names))


def _kind(op: int) -> ConflictType:
    return ConflictType.DELETE_MISSING if op == DELETE else ConflictType.UPDATE_MISSING
