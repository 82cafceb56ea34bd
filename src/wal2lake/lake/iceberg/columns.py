"""Describes a Delta table's columns as an Iceberg schema. Pure.

Comes in: the columns of a version, the schema that the mirror has had so far. Goes out: the next
schema, the partition spec, the names by which readers find columns in files without field ids.
Called by ``mirror`` and ``metadata``.

Field ids. A column keeps its id as long as the table has it, because a reader finds a column in a
file by id alone. With column mapping the files have ids, which are Delta's, and Iceberg's must be
the same. Without it the files have none: the ids are given here, by place, and readers find the
columns by the names in ``schema.name-mapping.default``. If a table becomes mapped, its older files
still have no ids; so the name mapping has the physical names of all columns.

    column of the table          Delta's id, or 1, 2, ... by place, kept by name
    element, key or value in it  from 2^24 on, by the column and the path in it

Ids of elements never meet those of columns, and need no memory. An id that a column had stays that
column's when it has gone; the name mapping has it still.

    Delta                        Iceberg
    boolean, int, bigint         boolean, int, long
    tinyint, smallint            int
    float, double                float, double
    decimal(p,s)                 decimal(p,s)
    date                         date
    timestamp, timestamp_ntz     timestamptz, timestamp
    string, char, varchar        string
    binary                       binary
    array, map, struct           list, map, struct

VARIANT, intervals and times of Spark's have no form that every reader knows: the table is refused.
So is a mapped table with arrays, maps or structs: its files have ids for columns but not for the
elements in them, and a reader that finds one id in a file takes a column without one for missing.

Sources: Iceberg table specification, "Schemas and Data Types", "Schema Evolution", "Column
Projection", "Appendix C: JSON serialization"; Parquet "Field IDs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import pyarrow as pa

from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError
from wal2lake.lake.origins import COLUMNS
from wal2lake.lake.port import PhysicalField, TableState
from wal2lake.pgtypes import arrow_from_ddl

Json = dict[str, Any]
"""A JSON object of Iceberg's metadata."""

_NESTED_IDS: Final = 1 << 24
"""First id of an element, a key or a value."""

_NESTED_PLACES: Final = 64
"""Ids that one column has for what it holds: 2^24 + 64 * column + place."""

_ORIGIN_IDS: Final = 2_147_483_000
"""First id of the columns of rows' writers (``origins``), which belong to no schema."""

PARTITION_IDS: Final = 1000
"""Id of the first partition field, as in Iceberg's own writers."""

_PRIMITIVE: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.timestamp("us"): "timestamp",
    pa.string(): "string",
    pa.binary(): "binary",
}


@dataclass(frozen=True, slots=True)
class MirroredColumn:
    """A column of the table, with its place in Iceberg's schema."""

    field_id: int
    name: str
    physical_name: str
    arrow: pa.DataType
    kind: str | Json
    """The type as Iceberg's JSON has it."""
    is_partition: bool

    @property
    def field(self) -> Json:
        """The column as a field of Iceberg's schema.

        Never required: NOT NULL belongs to the node's catalog, and Delta may drop it at any time.
        """
        return {
            "id": self.field_id,
            "name": self.name,
            "required": False,
            "type": self.kind,
        }


@dataclass(frozen=True, slots=True)
class MirroredColumns:
    """All columns of one version."""

    columns: tuple[MirroredColumn, ...]

    @property
    def partition(self) -> tuple[MirroredColumn, ...]:
        """The columns by whose values files are divided."""
        return tuple(column for column in self.columns if column.is_partition)

    @property
    def last_id(self) -> int:
        """The highest id in use."""
        own = [column.field_id for column in self.columns]
        nested = [i for column in self.columns for i in _ids(column.kind)]
        return max([*own, *nested], default=0)

    def schema(self, schema_id: int) -> Json:
        """Return the schema as Iceberg's JSON."""
        return {
            "type": "struct",
            "schema-id": schema_id,
            "fields": [column.field for column in self.columns],
        }

    def spec(self) -> Json:
        """Return the partition spec: each partition column by its own values."""
        return {
            "spec-id": 0,
            "fields": [
                {
                    "name": column.name,
                    "transform": "identity",
                    "source-id": column.field_id,
                    "field-id": PARTITION_IDS + place,
                }
                for place, column in enumerate(self.partition)
            ],
        }

    def name_mapping(self, before: Sequence[Json] = ()) -> list[Json]:
        """Return the names under which columns are in files without field ids.

        Also the names in ``before``, the earlier mapping: older files have columns that have been
        dropped, and the columns of rows' writers are in files of all ages. Some readers refuse a
        file with a column that the mapping does not name.
        """
        mapping = [
            _named(column.field_id, column.physical_name, column.kind)
            for column in self.columns
            if not column.is_partition
        ]
        mapping += [
            {"field-id": _ORIGIN_IDS + place, "names": [name]}
            for place, name in enumerate(sorted(COLUMNS))
        ]
        ids = {named["field-id"] for named in mapping}
        names = {name for named in mapping for name in named["names"]}
        return mapping + [
            named
            for named in before
            if named["field-id"] not in ids and not names.intersection(named["names"])
        ]


def _named(field_id: int, name: str, kind: str | Json) -> Json:
    named: Json = {"field-id": field_id, "names": [name]}
    if isinstance(kind, str):
        return named
    match kind["type"]:
        case "list":
            parts = [_named(kind["element-id"], "element", kind["element"])]
        case "map":
            parts = [
                _named(kind["key-id"], "key", kind["key"]),
                _named(kind["value-id"], "value", kind["value"]),
            ]
        case _:
            parts = [_named(f["id"], f["name"], f["type"]) for f in kind["fields"]]
    return {**named, "fields": parts}


def columns_of(
    state: TableState,
    before: Json | None,
    named: Sequence[Json] = (),
    *,
    was_mapped: bool,
) -> MirroredColumns | None:
    """Return the columns of a version. ``before`` is the mirror's current schema, ``named`` its
    name mapping, and ``was_mapped`` tells whether the table had column mapping then.

    None: the ids or types that the mirror has do not fit this version, so it must begin anew.
    FeatureNotSupportedError (0A000) if a column has no form in Iceberg.
    """
    mirror_fields = (
        {field["name"]: field for field in before["fields"]} if before else {}
    )
    columns = []
    had_names = {
        mapping["field-id"]: mapping["names"]
        for mapping in named
        if mapping["field-id"] < _NESTED_IDS
    }
    taken = had_names.keys() | {field["id"] for field in mirror_fields.values()}
    # An id of a column that is gone stays that column's: older snapshots still have it.
    unused = count(1 + max(taken, default=0))
    for physical in state.physical_fields:
        field_id = physical.field_id
        if field_id is None:
            had = mirror_fields.get(physical.name)
            field_id = had["id"] if had is not None else next(unused)
        columns.append(_column(state, physical, field_id))
    mirrored = MirroredColumns(tuple(columns))
    always_mapped = was_mapped and state.column_mapping
    if before is None or _continues(before, mirrored, had_names, by_id=always_mapped):
        return mirrored
    return None


def _column(
    state: TableState, physical: PhysicalField, field_id: int
) -> MirroredColumn:
    try:
        arrow = arrow_from_ddl(physical.spark_ddl)
        nested = iter(range(_NESTED_PLACES))
        first = _NESTED_IDS + _NESTED_PLACES * field_id
        kind = _kind(arrow, (first + place for place in nested))
    except (UndefinedObjectError, KeyError, StopIteration, RuntimeError) as error:
        raise FeatureNotSupportedError(
            f'column "{physical.name}" of type {physical.spark_ddl} has no form in Iceberg',
            detail=f'The table is at "{state.location}".',
            hint="Map the column to another type, or set iceberg = false for the table.",
        ) from error
    if state.column_mapping and not isinstance(kind, str):
        raise FeatureNotSupportedError(
            f'column "{physical.name}" of type {physical.spark_ddl} cannot be mirrored to'
            " Iceberg, because the table has column mapping",
            detail=f'The files of the table at "{state.location}" identify columns by'
            " number, but not what is in a column. Tables have column mapping once a column was"
            " renamed or dropped, or has a space or one of ,;{}()= in its name.",
            hint="Create the table anew, without such names, or set iceberg = false for the table.",
        )
    return MirroredColumn(
        field_id,
        physical.name,
        physical.physical_name,
        arrow,
        kind,
        physical.is_partition,
    )


def _kind(arrow: pa.DataType, ids: Iterator[int]) -> str | Json:
    """Return the Iceberg type; KeyError if there is none, StopIteration if ``ids`` end."""
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision}, {arrow.scale})"
    if pa.types.is_map(arrow):
        key, value = next(ids), next(ids)
        return {
            "type": "map",
            "key-id": key,
            "key": _kind(arrow.key_type, ids),
            "value-id": value,
            "value": _kind(arrow.item_type, ids),
            "value-required": False,
        }
    if pa.types.is_list(arrow):
        return {
            "type": "list",
            "element-id": next(ids),
            "element": _kind(arrow.value_type, ids),
            "element-required": False,
        }
    if pa.types.is_struct(arrow):
        return {
            "type": "struct",
            "fields": [
                {
                    "id": next(ids),
                    "name": field.name,
                    "required": False,
                    "type": _kind(field.type, ids),
                }
                for field in arrow
            ],
        }
    return _PRIMITIVE[arrow]


def _ids(kind: str | Json) -> Iterator[int]:
    """Yield the ids inside a type."""
    if isinstance(kind, str):
        return
    for part in ("element", "key", "value"):
        if part in kind:
            yield kind[f"{part}-id"]
            yield from _ids(kind[part])
    for field in kind.get("fields", ()):
        yield field["id"]
        yield from _ids(field["type"])


def _continues(
    before: Json,
    after: MirroredColumns,
    had_names: Mapping[int, Sequence[str]],
    *,
    by_id: bool,
) -> bool:
    """Whether files and snapshots of the earlier schema are read rightly beside the later one.

    ``had_names``: the names in files that ids have had, those of columns that are gone included.
    ``by_id``: the files of both have ids, so names do not matter. Otherwise some files have names
    only, and a column must have had its id under the name that it has in files.
    """
    old = {field["id"]: field for field in before["fields"]}
    ids = {field["name"]: field["id"] for field in before["fields"]}
    for column in after.columns:
        had = old.get(column.field_id)
        if had is not None and not _promotes(had["type"], column.kind):
            return False
        if by_id:
            continue
        if ids.get(column.physical_name, column.field_id) != column.field_id:
            return False
        if had is not None and had["name"] != column.physical_name:
            return False
        names = had_names.get(column.field_id)
        if names is not None and column.physical_name not in names:
            return False
    return True


def _promotes(old: str | Json, new: str | Json) -> bool:
    """Whether values of the old type are read as the new type."""
    if old == new:
        return True
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    if (old, new) in {("int", "long"), ("float", "double")}:
        return True
    if old.startswith("decimal(") and new.startswith("decimal("):
        (p, s), (q, t) = _digits(old), _digits(new)
        return p <= q and s == t
    return False


def _digits(kind: str) -> tuple[int, int]:
    precision, scale = kind[len("decimal(") : -1].split(",")
    return int(precision), int(scale)
