"""Columns as the files of a table without partitions and column mapping have them."""

from __future__ import annotations

from collections.abc import Iterable

from wal2lake.lake.port import FieldSpec, PhysicalField


def in_files(fields: Iterable[FieldSpec]) -> tuple[PhysicalField, ...]:
    """Return the columns of files that have these columns of the table."""
    return tuple(PhysicalField(f.name, f.name, None, f.spark_ddl) for f in fields)
