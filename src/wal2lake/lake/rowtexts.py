"""Formats rows as PostgreSQL's messages show them: ``(1, x, null)``, with long values cut.

Source: ExecBuildSlotValueDescription() in execMain.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from wal2lake.lake.port import FieldSpec
from wal2lake.pgtypes.encode.text import arrow_to_text

_SHOWN_BYTES: Final = 64
"""Most bytes of a value that are shown."""


def row_texts(fields: Sequence[FieldSpec], rows: pa.Table) -> list[str]:
    """Return ``(1, x)`` for each row; its columns are ``fields``."""
    columns = [value_texts(f, rows.column(i)) for i, f in enumerate(fields)]
    return [f"({', '.join(values)})" for values in zip(*columns, strict=True)]


def value_texts(field: FieldSpec, column: pa.ChunkedArray) -> Sequence[str]:
    """Return the texts of one column's values."""
    texts = arrow_to_text(column, int(field.pg_type_oid), field.pg_typmod)
    return [_shown(text) for text in texts]


def _shown(text: bytes | str | None) -> str:
    if text is None:
        return "null"
    raw = text if isinstance(text, bytes) else text.encode()
    if len(raw) <= _SHOWN_BYTES:
        return raw.decode()
    return raw[:_SHOWN_BYTES].decode(errors="ignore") + "..."
