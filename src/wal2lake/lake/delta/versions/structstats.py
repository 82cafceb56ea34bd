"""Parses the statistics and the partition values of files, for checkpoints that have them as
structs. Pure.

In: a version's columns, an ``add`` action. Out: ``stats_parsed`` and ``partitionValues_parsed``, in
the columns' types. A value that cannot be parsed is left out: a reader without a bound reads the
file.

Called by ``actionrows``. Source: Delta transaction log protocol, "Checkpoints" ("Per-file
Statistics"), "Partition Value Serialization".
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from wal2lake.errors import UndefinedObjectError, Wal2LakeError
from wal2lake.lake.partitions import column_of
from wal2lake.lake.port import TableState
from wal2lake.pgtypes import arrow_from_ddl

_STATS: Final = "stats_parsed"
_VALUES: Final = "partitionValues_parsed"


class StructStats:
    """The structs of one version's files."""

    def __init__(self, state: TableState) -> None:
        types = {
            field.physical_name: _type_of(field.spark_ddl)
            for field in state.physical_fields
        }
        partitions = {f.physical_name for f in state.physical_fields if f.is_partition}
        self._values = {
            n: kind for n, kind in types.items() if n in partitions and kind
        }
        self._bounded = {
            name: kind
            for name, kind in types.items()
            if name not in partitions and kind is not None and _has_bounds(kind)
        }
        self._counted = [name for name in types if name not in partitions]

    @property
    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The fields of ``add``."""
        bounds = pa.struct(list(self._bounded.items()))
        counts = pa.struct([(name, pa.int64()) for name in self._counted])
        stats = [("numRecords", pa.int64()), ("tightBounds", pa.bool_())]
        if self._bounded:
            stats += [("minValues", bounds), ("maxValues", bounds)]
        if self._counted:
            stats.append(("nullCount", counts))
        fields = [(_STATS, pa.struct(stats))]
        if self._values:
            fields.append((_VALUES, pa.struct(list(self._values.items()))))
        return fields

    def of(self, add: Mapping[str, Any]) -> dict[str, Any]:
        """Return the structs of a file; ``partitionValues`` are pairs."""
        structs: dict[str, Any] = {}
        if add.get("stats"):
            stats = json.loads(add["stats"], parse_float=Decimal)
            structs[_STATS] = {
                "numRecords": stats.get("numRecords"),
                "tightBounds": stats.get("tightBounds"),
                "minValues": self._bounds(stats.get("minValues")),
                "maxValues": self._bounds(stats.get("maxValues")),
                "nullCount": {
                    name: count
                    for name, count in (stats.get("nullCount") or {}).items()
                    if isinstance(count, int)
                },
            }
        if self._values:
            values = dict(add.get("partitionValues") or ())
            structs[_VALUES] = {
                name: _value(values.get(name), kind)
                for name, kind in self._values.items()
            }
        return structs

    def _bounds(self, values: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            name: _bound(values[name], kind)
            for name, kind in self._bounded.items()
            if values is not None and name in values
        }


def _type_of(ddl: str) -> pa.DataType | None:
    """Return a column's type; None if the node does not know it."""
    try:
        return arrow_from_ddl(ddl)
    except UndefinedObjectError:
        return None


def _has_bounds(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_nested(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_boolean(kind)
    )


def _bound(value: Any, kind: pa.DataType) -> Any:
    try:
        if pa.types.is_decimal(kind):
            return pa.scalar(Decimal(value), kind).as_py()
        if pa.types.is_floating(kind):
            return float(value)
        if pa.types.is_date(kind):
            return datetime.date.fromisoformat(value)
        if pa.types.is_timestamp(kind):
            moment = datetime.datetime.fromisoformat(value)
            return moment if kind.tz else moment.replace(tzinfo=None)
        if pa.types.is_string(kind):
            return value if isinstance(value, str) else None
        return pa.scalar(value, kind).as_py()
    except (
        ValueError,
        TypeError,
        OverflowError,
        InvalidOperation,
        pa.ArrowException,
    ):
        return None


def _value(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    if pa.types.is_string(kind):
        return text or None
    try:
        return column_of(text, kind, 1)[0].as_py()
    except (ValueError, OverflowError, Wal2LakeError, pa.ArrowException):
        return None
