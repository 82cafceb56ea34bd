"""Rows of the log as Parquet bytes, and the facts about them for the manifest.

The columns are those of wire.columnar's log layout. Batches of one relation version differ in
their optional columns. A file has all of them; the rows of a batch without a column get the value
that its absence means: false, 0, or null. Encoding is plain with zstd level 1: measured on 1 M
rows of six text columns (128 MB), 0.18 CPU-s and 30 MB, compared with 0.15 s and 62 MB for lz4,
0.17 s and 64 MB for snappy. Dictionaries cost time and save nothing on text that does not repeat.
The bytes must also be fsynced, so saving half of them is worth more than 0.03 s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal2lake.changelog.manifest import LogFile, RowsFile, encode_relation
from wal2lake.errors import InternalError
from wal2lake.model import INVALID_LSN, Lsn, Oid, Relation
from wal2lake.wire.columnar import ChangeBlock, no_transactions

_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1

# A reader's unit of work and of memory: about 25 MB of text rows. Chosen arbitrarily.
_ROW_GROUP_ROWS: Final = 256 * 1024

_FIXED: Final = ("commit_lsn", "xid", "ordinal", "op", "old", "options")
_OF_COLUMN: Final = ("c", "u", "b", "o", "ob")
_NUMBERED = re.compile(r"(c|u|b|ob?)(\d+)\Z")


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Facts about a rows file for its manifest."""

    inserts: int
    updates: int
    deletes: int
    truncates: int
    min_commit_lsn: Lsn
    max_commit_lsn: Lsn
    has_unchanged: bool
    has_old_rows: bool
    has_key_change: bool


@dataclass(slots=True)
class VersionRows:
    """Rows of one relation version in memory."""

    relation: Relation
    type_names: Mapping[Oid, str]
    batches: list[Any] = field(default_factory=list)


VersionKey = tuple[Relation, tuple[tuple[Oid, str], ...]]
"""Identity of a relation version: rows with equal keys can share a file."""
RowsInMemory = dict[VersionKey, VersionRows]


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """Facts about a messages file for its manifest."""

    messages: int
    content_bytes: int
    max_commit_lsn: Lsn


def version_key(relation: Relation, type_names: Mapping[Oid, str]) -> VersionKey:
    """Return the key of rows that can share a file."""
    return relation, tuple(sorted(type_names.items()))


def collect(rows: RowsInMemory, block: ChangeBlock) -> int:
    """Append a block's rows to those of its relation version; returns their bytes."""
    if not block.batch.num_rows:
        return 0
    key = version_key(block.relation, block.type_names)
    version = rows.get(key)
    if version is None:
        version = VersionRows(block.relation, dict(block.type_names))
        rows[key] = version
    version.batches.append(block.batch)
    return int(block.batch.nbytes)


def describe_rows(file: LogFile, version: VersionRows, facts: RowFacts) -> RowsFile:
    """Describe a file of these rows for the manifest."""
    return RowsFile(
        file=file,
        relation=version.relation,
        type_names=version.type_names,
        inserts=facts.inserts,
        updates=facts.updates,
        deletes=facts.deletes,
        truncates=facts.truncates,
        min_commit_lsn=facts.min_commit_lsn,
        max_commit_lsn=facts.max_commit_lsn,
        has_unchanged=facts.has_unchanged,
        has_old_rows=facts.has_old_rows,
        has_key_change=facts.has_key_change,
    )


def encode_rows(version: VersionRows) -> tuple[pa.Buffer, RowFacts]:
    """Encode a file of rows of one relation version; there is at least one row.

    Rows of a transaction that has not committed have ``xid`` in place of ``commit_lsn``, and the
    LSNs of their facts are 0.
    """
    table = _unite(version.batches)
    described = {
        "relation": encode_relation(version.relation),
        "type_names": {str(int(o)): name for o, name in version.type_names.items()},
    }
    table = table.replace_schema_metadata({"wal2lake": json.dumps(described)})
    by = "commit_lsn" if "commit_lsn" in table.schema.names else "xid"
    return _write(table, statistics=by), _facts(table)


def encode_transactions(batches: Sequence[Any]) -> pa.Buffer:
    """Encode the file of a segment's transactions."""
    return _write(pa.Table.from_batches([no_transactions(), *batches]))


def encode_messages(batches: Sequence[Any]) -> tuple[pa.Buffer, MessageFacts]:
    """Encode a file of logical messages; ``batches`` has at least one message."""
    table = pa.Table.from_batches(batches)
    highest = 0
    if "commit_lsn" in table.schema.names:
        highest = pc.max(table.column("commit_lsn")).as_py()
    facts = MessageFacts(
        messages=table.num_rows,
        content_bytes=pc.sum(pc.binary_length(table.column("content"))).as_py(),
        max_commit_lsn=Lsn(highest or 0),
    )
    return _write(table, statistics="lsn"), facts


def _write(table: Any, *, statistics: str = "commit_lsn") -> Any:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=_ROW_GROUP_ROWS,
        compression=_COMPRESSION,
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=False,
        # Statistics of values would have no use, because values are converted later.
        write_statistics=[statistics],
        write_page_checksum=True,
    )
    return sink.getvalue()


def _unite(batches: Sequence[Any]) -> Any:
    """Unite batches with different optional columns in one table, without copying."""
    first = batches[0].schema
    if all(batch.schema.equals(first) for batch in batches):
        return pa.Table.from_batches(batches)
    names = {name for batch in batches for name in batch.schema.names}
    ordered = sorted(names, key=_column_order)
    fields = [_field(name, batches) for name in ordered]
    schema = pa.schema(fields)
    return pa.Table.from_batches([_widen(batch, schema) for batch in batches], schema)


def _column_order(name: str) -> tuple[int, int]:
    if name in _FIXED:
        return 0, _FIXED.index(name)
    match = _NUMBERED.match(name)
    if match is None:
        raise InternalError(f'unknown column "{name}" in decoded changes')
    return 1 + _OF_COLUMN.index(match[1]), int(match[2])


def _field(name: str, batches: Sequence[Any]) -> Any:
    holder = next(batch for batch in batches if name in batch.schema.names)
    return pa.field(name, holder.schema.field(name).type)


def _widen(batch: Any, schema: Any) -> Any:
    present = set(batch.schema.names)
    columns = []
    for wanted in schema:
        if wanted.name in present:
            columns.append(batch.column(wanted.name))
        elif pa.types.is_binary(wanted.type):
            columns.append(pa.nulls(batch.num_rows, wanted.type))
        else:
            nothing = pa.scalar(0).cast(wanted.type)
            columns.append(pa.repeat(nothing, batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _facts(table: Any) -> RowFacts:
    lowest = highest = INVALID_LSN
    if "commit_lsn" in table.schema.names:
        commit_lsn = table.column("commit_lsn").to_numpy()
        lowest, highest = Lsn(int(commit_lsn.min())), Lsn(int(commit_lsn.max()))
    op = table.column("op").to_numpy()
    old = table.column("old").to_numpy()
    counts = np.bincount(op, minlength=256)
    names = table.schema.names
    key_change = bool(np.any((op == ord("U")) & (old != 0)))
    return RowFacts(
        inserts=int(counts[ord("I")]),
        updates=int(counts[ord("U")]),
        deletes=int(counts[ord("D")]),
        truncates=int(counts[ord("T")]),
        min_commit_lsn=lowest,
        max_commit_lsn=highest,
        has_unchanged=any(name[0] == "u" for name in names),
        has_old_rows=bool(np.any(old != 0)),
        has_key_change=key_change,
    )
