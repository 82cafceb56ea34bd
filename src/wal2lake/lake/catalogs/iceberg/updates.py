"""Computes the changes that bring a table of a REST catalog to the metadata of its mirror. Pure.

Comes in: the table as the server has it, the mirror's metadata. Goes out: requirements and updates
of one commit, and the table as the server has it then. Called by ``rest``.

The server writes metadata of its own: it takes changes, not a file. They are computed from what the
server has, so it does not matter how many of the node's files it has missed. Snapshots, their
manifests and field ids are the mirror's; ids of schemas are the server's, which gives a new schema
the next number.

A server's table is the node's alone as long as its newest snapshot has the mirror's mark, and the
schema and the partitioning are those of this snapshot. Properties, tags and branches that others
add stay.

Source: Iceberg REST catalog specification, "CommitTableRequest"; TableMetadata.java (Builder).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from wal2lake.lake.catalogs.port import CatalogEntry

Json = Mapping[str, Any]

_MARK: Final = "wal2lake.table_id"
"""In the summary of each snapshot of a mirror."""

_KEPT_BY_SERVER: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Lets the server remove its own old metadata files, of which each commit makes one."""


@dataclass(frozen=True, slots=True)
class ServedTable:
    """A table as a server has it."""

    uuid: str
    main: int | None
    """Snapshot of the branch main."""
    schema_id: int
    schemas: Mapping[int, Any]
    """Fields of each schema, as they can be compared."""
    snapshots: frozenset[int]
    """Snapshots of the mirror."""
    properties: Mapping[str, str]
    foreign: str | None
    """Change that another program has committed."""


@dataclass(frozen=True, slots=True)
class ServedCommit:
    """One commit to a table."""

    requirements: list[Json]
    updates: list[Json]
    after: ServedTable
    """The table once the server has taken the commit."""


def served_table(metadata: Json) -> ServedTable:
    """Return what matters of a server's metadata. LookupError if it is not a table's."""
    main = metadata.get("refs", {}).get("main", {}).get("snapshot-id")
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or ()}
    ours = {i for i, s in snapshots.items() if _MARK in s.get("summary", {})}
    foreign = None
    if main not in ours:
        foreign = f"snapshot {main} is not the node's"
    elif metadata["current-schema-id"] != snapshots[main].get("schema-id"):
        foreign = "its schema is not the node's"
    elif metadata.get("default-spec-id") != 0:
        foreign = "its partitioning is not the node's"
    return ServedTable(
        metadata["table-uuid"],
        main,
        metadata["current-schema-id"],
        {s["schema-id"]: _comparable(s["fields"]) for s in metadata["schemas"]},
        frozenset(ours),
        metadata.get("properties") or {},
        foreign,
    )


def commit_to(served: ServedTable, entry: CatalogEntry) -> ServedCommit:
    """Return the commit after which the server shows the mirror; without updates if it does."""
    assert entry.metadata is not None
    wanted: Json = entry.metadata
    new = [s for s in wanted["snapshots"] if s["snapshot-id"] not in served.snapshots]
    needed = [snapshot["schema-id"] for snapshot in new]
    needed.append(wanted["current-schema-id"])
    updates, ids, schemas = _schemas(served, wanted, needed)
    current = ids[wanted["current-schema-id"]]
    if current != served.schema_id:
        updates.append({"action": "set-current-schema", "schema-id": current})
    for snapshot in new:
        translated = {**snapshot, "schema-id": ids[snapshot["schema-id"]]}
        updates.append({"action": "add-snapshot", "snapshot": translated})
    main = wanted["current-snapshot-id"]
    if main != served.main:
        updates.append(
            {
                "action": "set-snapshot-ref",
                "ref-name": "main",
                "type": "branch",
                "snapshot-id": main,
            }
        )
    kept = frozenset(snapshot["snapshot-id"] for snapshot in wanted["snapshots"])
    if served.snapshots - kept:
        updates.append(
            {
                "action": "remove-snapshots",
                "snapshot-ids": sorted(served.snapshots - kept),
            }
        )
    properties = {**wanted["properties"], **_KEPT_BY_SERVER}
    changed = dict(properties.items() - served.properties.items())
    if changed:
        updates.append({"action": "set-properties", "updates": changed})
    after = replace(
        served,
        main=main,
        schema_id=current,
        schemas=schemas,
        snapshots=kept,
        properties={**served.properties, **properties},
    )
    return ServedCommit(_requirements(served), updates, after)


def _requirements(served: ServedTable) -> list[Json]:
    """Return what must be so when the server commits: nobody has committed in between."""
    return [
        {"type": "assert-table-uuid", "uuid": served.uuid},
        {
            "type": "assert-ref-snapshot-id",
            "ref": "main",
            "snapshot-id": served.main,
        },
        {
            "type": "assert-current-schema-id",
            "current-schema-id": served.schema_id,
        },
    ]


def _schemas(
    served: ServedTable, wanted: Json, needed: list[int]
) -> tuple[list[Json], Mapping[int, int], Mapping[int, Any]]:
    """Return updates that add schemas, the server's ids by the mirror's, and all schemas then."""
    schemas = dict(served.schemas)
    ids: dict[int, int] = {}
    updates: list[Json] = []
    for schema in wanted["schemas"]:
        if schema["schema-id"] not in needed:
            continue
        fields = _comparable(schema["fields"])
        schema_id = next((i for i, f in schemas.items() if f == fields), None)
        if schema_id is None:
            schema_id = 1 + max(schemas)
            schemas[schema_id] = fields
            updates.append(
                {
                    "action": "add-schema",
                    "schema": {**schema, "schema-id": schema_id},
                    "last-column-id": wanted["last-column-id"],
                }
            )
        ids[schema["schema-id"]] = schema_id
    return updates, ids, schemas


def _comparable(kind: Any) -> Any:
    """Return fields or a type as they can be compared: servers add keys and spaces."""
    if isinstance(kind, str):
        return kind.replace(" ", "")
    if isinstance(kind, list | tuple):
        return tuple(map(_comparable, kind))
    if isinstance(kind, dict):
        return {
            name: _name_or_type(name, value)
            for name, value in kind.items()
            if name not in ("doc", "schema-id", "identifier-field-ids")
            and value is not None
        }
    return kind


def _name_or_type(key: str, value: Any) -> Any:
    return value if key == "name" else _comparable(value)
