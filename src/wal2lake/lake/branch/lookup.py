"""Keys looked up in this process: few that came, in the files that can hold them.

Comes in: files that have brought rows, files that may have the same keys, the key. Goes out: a key
that is there too often, or nothing; or ``TooLarge``: Spark has to look. Called by ``keys``.

Why this way. A query of Spark's takes a second of planning and scheduling, whatever it finds.
Reading a key column of a million rows takes a twentieth of that, and apply finds the keys of
its batches so: this is its search (``lake.upsert``) with another question.

Equal is what PostgreSQL's ``=`` says (``pgtypes.equality``); two NaN are one key. NULLs are no
matter: a key has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from wal2lake.lake.delta.durability import local_path
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.changes import ChangeShape
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.keys import Index, open_keys
from wal2lake.lake.upsert.memory import TooLarge
from wal2lake.lake.upsert.plan import MAX_SCANNED_BYTES, candidates
from wal2lake.lake.upsert.stored import StoredRows, is_readable
from wal2lake.pgtypes.equality import loose_columns

_FEW: Final = 10_000
"""Rows brought. More are rare, and Spark's time is then a small part of writing them."""


@dataclass(frozen=True, slots=True)
class Files:
    """Some files of a version of a table."""

    state: TableState
    files: Sequence[DataFile]


def find(
    coming: Files,
    stored: Files,
    key: Sequence[str],
    *,
    more_than: int,
    index: KeyIndex | None = None,
) -> pa.RecordBatch | None:
    """A row ``k0``..: a key that ``coming`` brings and ``stored``, which has the same columns,
    has in more rows than that. None: there is none.

    Raises TooLarge for what is not looked up here: many rows, or much to read; tables
    that are not plain, not on this machine, or have types that are not ours."""
    places = _positions(coming, key)
    root = local_path(coming.state.location)
    if root is None:
        raise TooLarge
    parts = list(opened(coming).live(places))
    if not parts:
        return None
    table = pa.concat_tables(parts).rename_columns([f"k{i}" for i in range(len(key))])
    table = table.drop_null()
    if not table.num_rows:
        return None
    loose = loose_columns(coming.state.fields, places)
    with open_keys(table.columns, str(root / "_keys"), loose=loose) as keys:
        shape = ChangeShape(coming.state.fields, places)
        given = (table.columns, np.zeros(0, np.int64))
        there = opened(stored)
        there.files = candidates(shape, stored.state, there.files, given)
        found = there.locate(keys, places, index, most_bytes=MAX_SCANNED_BYTES)
        at = _first(
            keys.numbers, np.bincount(found.key, minlength=keys.count), more_than
        )
    if not at.size:
        return None
    return table.take(pa.array(at)).combine_chunks().to_batches()[0]


def _first(numbers: Index, there: Index, more_than: int) -> Index:
    """The first row that PostgreSQL refuses, or none: one whose key was there before the statement,
    or that an earlier row has brought. ``numbers``: the rows' keys; ``there``: how often each is in
    what was looked through, which with ``more_than`` has the rows themselves."""
    brought = np.bincount(numbers, minlength=len(there)) if more_than else 0
    before = there > brought
    again = np.ones(len(numbers), np.bool_)
    again[np.unique(numbers, return_index=True)[1]] = False
    refused = (there > more_than)[numbers] & (before[numbers] | again)
    return np.flatnonzero(refused)[:1]


def _positions(coming: Files, key: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the key's columns; TooLarge if this reader does not take them, or too
    many rows come."""
    state = coming.state
    counts = [file.rows for file in coming.files]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or sum(known) > _FEW or not is_readable(state):
        raise TooLarge
    names = [field.name for field in state.fields]
    positions = tuple(map(names.index, key))
    for field in map(state.fields.__getitem__, positions):
        ddl = field.spark_ddl.lower()
        # Spark pads CHAR when it reads, and has ideas of its own of what else is equal.
        if (
            ddl.startswith("char")
            or "collate" in ddl
            or pa.types.is_nested(mapping_of(field).arrow_type)
        ):
            raise TooLarge
    return positions


def opened(files: Files) -> StoredRows:
    """Their rows."""
    return StoredRows(files.state, [_here(files.state, file) for file in files.files])


def _here(state: TableState, file: DataFile) -> DataFile:
    """A file by its plain path: a branch names the table's by URL, whose percent signs are
    decoded once."""
    root = local_path(state.location)
    if ":" in file.key.split("/", 1)[0]:
        place = local_path(file.key)
    else:
        # Absolute ones too: then it is the path alone.
        place = None if root is None else root / file.path
    if place is None:
        raise TooLarge
    return DataFile({**file.action, "path": quote(str(place))})
