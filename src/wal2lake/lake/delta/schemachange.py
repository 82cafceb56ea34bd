"""Computes the metadata of a table whose columns change. Pure: Delta's JSON in, Delta's JSON out.

Comes in: the ``metaData`` action of a version, and the columns of the next one, each with its
previous name. Goes out: the next version's action, and before that whether the table needs column
mapping for it.

    column          in the next version
    kept            keeps its physical name and its id, also under another name
    new             gets a physical name that no file has: a fresh one under column mapping,
                    otherwise its own name, which no earlier column had
    of a new type   is treated as new, because all files are rewritten
    dropped         is missing; files still have it, and no reader reads it

Called by ``spark.delta.deltatables``. Source: Delta transaction log protocol, "Column Mapping".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.delta.fields import (
    DOMAIN,
    TYPE_NAME,
    TYPE_OID,
    TYPMOD,
    metadata_of,
)
from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.delta.protocol.features import Protocol, writer_features
from wal2lake.lake.delta.protocol.upgrade import ID, MODE, MOST_ID, PHYSICAL_NAME
from wal2lake.lake.delta.schema import json_of
from wal2lake.lake.port import NextField, TableState, can_cluster

UNSAFE_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
"""Delta refuses these characters in a column's name unless column mapping is on."""

_OURS: Final = (TYPE_OID, TYPMOD, TYPE_NAME, DOMAIN)


def needs_mapping(state: TableState, fields: Sequence[NextField]) -> bool:
    """Whether the names in files can no longer be the names of the columns."""
    if state.column_mapping:
        return False
    kept = [
        (column.source, column.field.name)
        for column in fields
        if column.source is not None
    ]
    return (
        [source for source, _ in kept] != [field.name for field in state.fields]
        or any(source != name for source, name in kept)
        or any(UNSAFE_IN_NAMES & set(column.field.name) for column in fields)
    )


_FEATURES: Final = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""The feature that a table's protocol must name for a column of the type."""


def missing_features(protocol: Protocol, fields: Sequence[NextField]) -> list[str]:
    """Return the Delta features that a table still lacks for its new columns."""
    present = writer_features(protocol)
    needed = {
        feature
        for column in fields
        if column.source is None or column.anew
        for kind, feature in _FEATURES.items()
        if kind in column.field.spark_ddl.lower()
    }
    return sorted(needed.difference(present))


def next_metadata(metadata: Object, fields: Sequence[NextField]) -> dict[str, Any]:
    """Return the ``metaData`` object of a version with these columns."""
    schema = json.loads(metadata["schemaString"])
    before = {field["name"]: field for field in schema["fields"]}
    properties = dict(metadata["configuration"])
    mapped = properties.get(MODE, "none") != "none"
    highest_id = max(
        (int(f["metadata"].get(ID, 0)) for f in before.values()),
        default=0,
    )
    highest_id = max(highest_id, int(properties.get(MOST_ID, 0)))
    columns = []
    for column in fields:
        field = before.get(column.source) if column.source is not None else None
        own = {} if field is None else dict(field["metadata"])
        for name in _OURS:
            own.pop(name, None)
        own.update(metadata_of(column.field))
        kind: Any = None if field is None else field["type"]
        if field is None or column.anew:
            kind = json_of(column.field.spark_ddl)
            if mapped:
                highest_id += 1
                own[ID] = highest_id
                own[PHYSICAL_NAME] = f"col-{uuid.uuid4()}"
        columns.append(
            {
                "name": column.field.name,
                "type": kind,
                "nullable": True if field is None else field["nullable"],
                "metadata": own,
            }
        )
    if mapped:
        properties[MOST_ID] = str(highest_id)
    return {
        **metadata,
        "schemaString": json.dumps({**schema, "fields": columns}),
        "configuration": properties,
    }


def refuse_unless_plain(state: TableState, fields: Sequence[NextField]) -> None:
    """Raise 0A000 if the columns cannot be changed.

    That is a table whose constraints or generated columns name its columns, and a change of
    columns by which it is partitioned or clustered.
    """
    if not state.is_plain or state.tracks_rows:
        raise FeatureNotSupportedError(
            f'columns of the table at "{state.location}" cannot be changed',
            detail="It has constraints, generated columns or row tracking of Delta's own.",
            hint="Create another table without them, and copy the rows.",
        )
    kept = {
        column.source
        for column in fields
        if column.source == column.field.name and not column.anew
    }
    mapped = state.column_mapping or needs_mapping(state, fields)
    # A column of a new type gets another physical name if columns are mapped; the clustering
    # would still name the old one.
    stay = {
        column.source
        for column in fields
        if not column.anew or (can_cluster(column.field.spark_ddl) and not mapped)
    }
    for name in state.clustering:
        if name not in stay:
            raise FeatureNotSupportedError(
                f'cannot drop column "{name}" or alter its type because the table is'
                " clustered by it",
                hint="Create another table WITH (cluster_by = ...), and copy the rows;"
                " or end the clustering with Spark: ALTER TABLE ... CLUSTER BY NONE.",
            )
    for name in state.partition_columns:
        if name not in kept:
            raise FeatureNotSupportedError(
                f'cannot alter column "{name}" because the table is partitioned by it',
                detail="The table's log has each data file's value under the column's name.",
                hint="Create another table WITH (partition_columns = ...), and copy the"
                " rows.",
            )
    if state.partition_columns and len(fields) == len(state.partition_columns):
        raise FeatureNotSupportedError(
            "cannot drop the last column that is not a partition column",
            hint="Create another table without partitions, and copy the rows.",
        )
