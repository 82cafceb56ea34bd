"""Writes version 0 of a table, as Delta writes it for a table without rows.

In: the metadata and the protocol that Delta's transaction has prepared. Out: the lines of the
commit and of its checksum file, and both in the table's store.

Why not Delta's own commit. After writing the two lines it reads the new table back with two Spark
jobs, to find that it is empty. That took a third of a second a table, most of the time of CREATE
SUBSCRIPTION. There is nothing to conflict with either: a second writer finds that the file
exists. The checksum has everything from which Delta derives the next version's; if anything were
missing, the first commit would read the table back instead.

Called by ``spark.delta.deltatables``. Sources: Delta transaction log protocol, "Commit Provenance
Information" and "Version Checksum File"; delta-spark 4.4 Checksum.scala.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.errors import DuplicateObjectError
from wal2lake.lake.delta.log.clustering import (
    FEATURE,
    clustering_columns,
    references,
)
from wal2lake.lake.delta.log.place import (
    LOG,
    Object,
    checksum_key,
    commit_key,
    content_of,
    dump,
)
from wal2lake.lake.store import Store

FEATURES: Final = frozenset(
    {
        "appendOnly",
        FEATURE,
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "invariants",
        "timestampNtz",
        "variantType",
    }
)
"""Delta's features that version 0 only has to name in the protocol; clustering also needs its
columns."""


def is_plain(protocol: Object) -> bool:
    """Whether this module can write version 0 of a table with that protocol."""
    features = {
        *protocol.get("readerFeatures", ()),
        *protocol.get("writerFeatures", ()),
    }
    return features <= FEATURES


def commit_lines(
    metadata: Object, protocol: Object, txn_id: str, domains: Sequence[Object] = ()
) -> list[str]:
    """Return the lines that CREATE TABLE commits; ``domains``: ``domainMetadata`` actions."""
    clustering = references(clustering_columns(domains, metadata))
    info = {
        "timestamp": metadata["createdTime"],
        "operation": "CREATE TABLE",
        "operationParameters": {
            "partitionBy": json.dumps(metadata["partitionColumns"]),
            "clusterBy": dump(clustering),
            "description": None,
            "isManaged": "false",
            "properties": dump(metadata["configuration"]),
        },
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "operationMetrics": {},
        "txnId": txn_id,
    }
    actions = (
        {"commitInfo": info},
        {"metaData": metadata},
        {"protocol": protocol},
        *({"domainMetadata": domain} for domain in domains),
    )
    return [dump(action) for action in actions]


def write_first(store: Store, commit: Sequence[str], checksum: str) -> None:
    """Create the table's folder and write both files below it; on a file system they are not yet
    durable.

    The commit is complete as soon as it has its name. A crash may leave out the checksum; the
    first commit then takes longer. DuplicateObjectError if there is a table already.
    """
    store.make_folder(LOG)
    created = store.put_if_absent(commit_key(0), content_of(commit), durable=False)
    if created is None:
        raise DuplicateObjectError(
            f'there is a Delta table at "{store.location}" already', sqlstate="42P07"
        )
    store.put(checksum_key(0), content_of([checksum]), durable=False)


@dataclass(frozen=True, slots=True)
class TableKind:
    """The properties of a new table on which Delta's decisions depend."""

    settings: int
    """A hash of the session's settings."""
    types: frozenset[str]
    """The columns' types without precisions and lengths."""
    properties: frozenset[tuple[str, str]]
    """The properties that Delta defines."""


@dataclass(frozen=True, slots=True)
class Model:
    """Delta's decisions about a kind of table."""

    added: Mapping[str, str]
    """Properties that the session's settings add."""
    protocol: Object

    @classmethod
    def of(cls, requested: Object, prepared: Object, protocol: Object) -> Model | None:
        """Build a model from what Delta made of one table's metadata.

        None if Delta did more than add properties (a column mapping has names of its own for each
        table).
        """
        added = dict(prepared["configuration"])
        for name in requested["configuration"]:
            added.pop(name, None)
        model = cls(added, protocol)
        same = _with_schema(model.applied_to(requested)) == _with_schema(prepared)
        return model if same else None

    def applied_to(self, requested: Object) -> dict[str, Any]:
        """Return the metadata of another table of the kind."""
        configuration = {**requested["configuration"], **self.added}
        return {**requested, "configuration": configuration}


def _with_schema(metadata: Object) -> dict[str, Any]:
    """Parse the schema's text, which Delta rewrites with its keys in another order."""
    return {**metadata, "schemaString": json.loads(metadata["schemaString"])}
