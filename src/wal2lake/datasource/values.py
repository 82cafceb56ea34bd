"""Values of changes as JSON, or typed.

Comes in: columns of the change log (Arrow binary, as the publisher sent them). Goes out: one JSON
object for each row, or one Arrow struct with the types that the lake gives these columns.

JSON has numbers and booleans as such, values of json and jsonb as they are, and all other values
as strings with PostgreSQL's text. NaN and infinities are strings, because JSON has no such numbers.
A value that was not sent (unchanged TOAST) has no member.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import UsageError
from wal2lake.lake import FieldSpec
from wal2lake.lake.staging import SentColumn, convert_columns
from wal2lake.model import Lsn, Relation
from wal2lake.pgtypes import RemoteTypes

_BOOL: Final = 16
_NUMBERS: Final = frozenset({20, 21, 23, 26, 700, 701, 1700})
_JSON: Final = frozenset({114, 3802})
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class RowSide:
    """The new or the old rows of a batch of the log."""

    batch: pa.RecordBatch
    relation: Relation
    types: RemoteTypes
    is_old: bool

    @property
    def present(self) -> Any:
        """Mask of the rows that have this side."""
        ops = self.batch.column("op").to_numpy()
        if self.is_old:
            return self.batch.column("old").to_numpy() != 0
        return (ops == ord("I")) | (ops == ord("U"))

    def column(self, position: int) -> SentColumn | None:
        """Return a column as it was sent; None if no row has a value of it."""
        prefix, flags = ("o", "ob") if self.is_old else ("c", "b")
        names = self.batch.schema.names
        if f"{prefix}{position}" not in names:
            return None
        binary = None
        if f"{flags}{position}" in names:
            binary = self._mask(f"{flags}{position}")
        column = self.relation.columns[position]
        return SentColumn(
            self.batch.column(f"{prefix}{position}"),
            binary,
            column.type_oid,
            column.typmod,
            self.types,
        )

    def missing(self, position: int) -> Any:
        """Mask of the rows without a value of a column: unchanged TOAST, or a column that is not in
        the old key."""
        if self.is_old:
            if self.relation.columns[position].is_key:
                return np.zeros(self.batch.num_rows, np.bool_)
            return self.batch.column("old").to_numpy() == ord("K")
        if f"u{position}" not in self.batch.schema.names:
            return np.zeros(self.batch.num_rows, np.bool_)
        return self._mask(f"u{position}")

    def _mask(self, name: str) -> Any:
        column = pc.fill_null(self.batch.column(name), False)
        return column.to_numpy(zero_copy_only=False)


def as_json(side: RowSide, wanted: Sequence[int]) -> list[str | None]:
    """Return a JSON object for each row, of the columns at these positions; None if the row does
    not have this side."""
    members: list[list[str | None]] = []
    for position in wanted:
        name = json.dumps(side.relation.columns[position].name, ensure_ascii=False)
        tokens = _tokens(side, position)
        missing = side.missing(position).tolist()
        members.append(
            [
                None if absent else f"{name}:{token}"
                for token, absent in zip(tokens, missing, strict=True)
            ]
        )
    objects: list[str | None] = []
    for row, is_present in enumerate(side.present.tolist()):
        if not is_present:
            objects.append(None)
            continue
        parts = (column[row] for column in members)
        objects.append("{" + ",".join(p for p in parts if p is not None) + "}")
    return objects


def _tokens(side: RowSide, position: int) -> list[str]:
    """Return each row's value as JSON."""
    sent = side.column(position)
    if sent is None:
        return ["null"] * side.batch.num_rows
    oid = int(side.relation.columns[position].type_oid)
    texts = sent.texts().to_pylist()
    return [
        "null" if text is None else _token(text.decode("utf-8", "replace"), oid)
        for text in texts
    ]


def _token(text: str, oid: int) -> str:
    if oid in _NUMBERS and _NUMBER.fullmatch(text):
        return text
    if oid == _BOOL:
        return "true" if text == "t" else "false"
    if oid in _JSON:
        return text
    return json.dumps(text, ensure_ascii=False)


def as_struct(
    side: RowSide, fields: Sequence[FieldSpec], *, null_if_bad: bool
) -> pa.StructArray:
    """Return a struct of these fields for each row; null if the row does not have this side.

    A value that its type cannot hold is an error (22P02 and the like), or null.
    """
    columns = {}
    for position, column in enumerate(side.relation.columns):
        sent = side.column(position)
        if sent is not None:
            columns[column.name] = sent
    rows = side.batch.num_rows
    table, bad_values, _ = convert_columns(columns, fields)
    if bad_values and not null_if_bad:
        bad = bad_values[0]
        lsn = Lsn(side.batch.column("commit_lsn")[bad.row].as_py())
        raise UsageError(
            bad.message,
            sqlstate=bad.sqlstate,
            detail=f'Column "{bad.column}" of table "{side.relation.qualified}", in the'
            f" transaction that commits at {lsn}.",
            hint='Read without the option "table" to get all values as JSON, or set the option'
            ' "badValues" to "null".',
        )
    if not columns:
        table = pa.table(
            [pa.nulls(rows, field.type) for field in table.schema], table.schema
        )
    return pa.StructArray.from_arrays(
        [column.combine_chunks() for column in table.columns],
        names=table.column_names,
        mask=pa.array(~side.present),
    )
