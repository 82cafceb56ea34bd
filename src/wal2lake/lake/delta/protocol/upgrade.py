"""Computes the protocol and the metadata of a table that needs one more feature. Pure.

In: ``protocol`` and ``metaData`` of a version, features. Out: the same with the features; with
column mapping every column, nested ones too, has an id and a name in files.

A protocol names exactly what the table needs: features that an old protocol stands for are named
one by one, and the reader's version rises no further than it must.

Called by ``newtables`` and by ``spark.delta.deltatables``. Sources: Delta transaction log protocol,
"Table Features", "Column Mapping"; delta-spark 4.4 DeltaColumnMapping.scala.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wal2lake.lake.delta.protocol.features import (
    NAMING_READER,
    NAMING_WRITER,
    OF_READERS,
    Protocol,
    reader_features,
    writer_features,
)

ID: Final = "delta.columnMapping.id"
PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
MODE: Final = "delta.columnMapping.mode"
MOST_ID: Final = "delta.columnMapping.maxColumnId"

_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "clustering": ("domainMetadata",),
    "rowTracking": ("domainMetadata",),
    "variantShredding": ("variantType",),
}
"""Features without which another one is not valid."""


def with_features(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """Return the protocol with these features; itself if it has them."""
    wanted = {more for name in names for more in (name, *_NEEDS.get(name, ()))}
    writer, reader = writer_features(protocol), reader_features(protocol)
    if wanted <= writer and wanted & OF_READERS <= reader:
        return protocol
    writer, reader = writer | wanted, reader | (wanted & OF_READERS)
    result: dict[str, Any] = {
        "minReaderVersion": _reader_version(reader),
        "minWriterVersion": NAMING_WRITER,
    }
    if result["minReaderVersion"] == NAMING_READER:
        result["readerFeatures"] = sorted(reader)
    return {**result, "writerFeatures": sorted(writer)}


def _reader_version(features: frozenset[str]) -> int:
    """Return the lowest reader version for the features."""
    if features - {"columnMapping"}:
        return NAMING_READER
    return 2 if features else 1


def with_mapping(metadata: Mapping[str, Any], *, is_new: bool) -> dict[str, Any]:
    """Return the metadata with column mapping by name. The columns of a table that has files keep
    their names there; those of a new table get names of their own."""
    properties = dict(metadata["configuration"])
    if properties.get(MODE, "none") == "none":
        properties[MODE] = "name"
    highest = int(properties.get(MOST_ID, 0))

    def highest_of(field: dict[str, Any]) -> None:
        nonlocal highest
        highest = max(highest, int(field["metadata"].get(ID, 0)))

    def number(field: dict[str, Any]) -> None:
        nonlocal highest
        own = field["metadata"]
        if ID not in own:
            highest += 1
            own[ID] = highest
        if PHYSICAL_NAME not in own:
            own[PHYSICAL_NAME] = f"col-{uuid.uuid4()}" if is_new else field["name"]

    schema = json.loads(metadata["schemaString"])
    _each_field(schema, highest_of)
    _each_field(schema, number)
    properties[MOST_ID] = str(highest)
    return {
        **metadata,
        "schemaString": json.dumps(schema),
        "configuration": properties,
    }


def _each_field(kind: Any, visit: Callable[[dict[str, Any]], None]) -> None:
    """Visit the fields of a type's JSON, outer ones first."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        field["metadata"] = field.get("metadata") or {}
        visit(field)
        _each_field(field["type"], visit)
    for part in ("elementType", "keyType", "valueType"):
        _each_field(kind.get(part), visit)
