"""Looks few added keys up in this process, in the files that can hold them.

Comes in: files with added rows, files that may have the same keys, the key. Goes out: a key that
occurs too often, or nothing; ``TooLarge`` if Spark must look. Called by ``keys``.

Why this way. A Spark query takes a second of planning and scheduling, whatever it finds. Reading a
key column of a million rows takes a twentieth of that. Apply finds the keys of its batches in the
same way: this module uses its search (``lake.upsert``).

Keys are equal if PostgreSQL's ``=`` says so (``pgtypes.equality``); two NaN are one key. NULLs
need no care: a key has none.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.staging.layout import ChangeShape
from wal2lake.lake.store import has_store, is_object_store, local_path
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.keys import Index, open_keys
from wal2lake.lake.upsert.locating import candidates
from wal2lake.lake.upsert.memory import TooLarge
from wal2lake.lake.upsert.stored import StoredRows, is_readable
from wal2lake.pgtypes.equality import loose_columns

_MAX_SCANNED_BYTES: Final = 256 << 20
"""Most key bytes that are read, uncompressed: 32 M of bigint, about 0.8 s. A guess at the size from
which Spark's cores, if it has more of them, are faster."""

_FEW: Final = 10_000
"""Most added rows. More are rare, and then Spark's time is a small part of writing them."""


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
    """Return a row ``k0``.. of a key that ``coming`` adds and more than ``more_than`` rows of
    ``stored`` have; None if there is none. Both have the same columns.

    Raises TooLarge if there are many rows or much to read, and for tables that are not plain, not
    in a known store, or have types that this node does not write.
    """
    places = _positions(coming, key)
    if not has_store(coming.state.location):
        raise TooLarge
    parts = list(opened(coming).live(places))
    if not parts:
        return None
    table = pa.concat_tables(parts).rename_columns([f"k{i}" for i in range(len(key))])
    table = table.drop_null()
    if not table.num_rows:
        return None
    loose = loose_columns(coming.state.fields, places)
    root = local_path(coming.state.location)
    if root is None:
        root = Path(tempfile.gettempdir(), f"wal2lake-{os.getpid()}")
    with open_keys(table.columns, str(root / "_keys"), loose=loose) as keys:
        shape = ChangeShape(coming.state.fields, places)
        key_columns = (table.columns, np.zeros(0, np.int64))
        reader = opened(stored)
        reader.files = candidates(shape, stored.state, reader.files, key_columns)
        places_found = reader.locate(keys, places, index, most_bytes=_MAX_SCANNED_BYTES)
        refused = _first_refused(
            keys.numbers, np.bincount(places_found.key, minlength=keys.count), more_than
        )
    if not refused.size:
        return None
    return table.take(pa.array(refused)).combine_chunks().to_batches()[0]


def _first_refused(numbers: Index, counts: Index, more_than: int) -> Index:
    """Return the first row that PostgreSQL would refuse, or none: its key existed before the
    statement, or an earlier row has it.

    ``numbers``: the rows' keys. ``counts``: how often the stored files have each key; with
    ``more_than`` they include the rows themselves.
    """
    brought = np.bincount(numbers, minlength=len(counts)) if more_than else 0
    before = counts > brought
    again = np.ones(len(numbers), np.bool_)
    again[np.unique(numbers, return_index=True)[1]] = False
    refused = (counts > more_than)[numbers] & (before[numbers] | again)
    return np.flatnonzero(refused)[:1]


def _positions(coming: Files, key: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the key's columns. TooLarge if this reader does not support their
    types, or too many rows were added."""
    state = coming.state
    counts = [file.rows for file in coming.files]
    present = [count for count in counts if count is not None]
    if len(present) < len(counts) or sum(present) > _FEW or not is_readable(state):
        raise TooLarge
    names = [field.name for field in state.fields]
    positions = tuple(map(names.index, key))
    for field in map(state.fields.__getitem__, positions):
        ddl = field.spark_ddl.lower()
        # Spark pads CHAR on reading, and compares collated and nested values by its own rules.
        if (
            ddl.startswith("char")
            or "collate" in ddl
            or pa.types.is_nested(mapping_of(field).arrow_type)
        ):
            raise TooLarge
    return positions


def opened(files: Files) -> StoredRows:
    """Return a reader of the files' rows."""
    return StoredRows(
        files.state, [_by_path(files.state, file) for file in files.files]
    )


def _by_path(state: TableState, file: DataFile) -> DataFile:
    """Return a file of this machine under its plain path. A branch names the table's files by URL,
    whose percent signs are decoded once."""
    root = local_path(state.location)
    if ":" in file.key.split("/", 1)[0]:
        place = local_path(file.key)
    else:
        # Joining an absolute path yields that path alone.
        place = None if root is None else root / file.path
    if place is None:
        if is_object_store(file.place(state.location)):
            return file
        raise TooLarge
    return DataFile({**file.action, "path": quote(str(place))})
