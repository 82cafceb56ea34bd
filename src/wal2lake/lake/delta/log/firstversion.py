"""Version 0 of a table, as Delta writes it for a table without rows.

In: the metadata and the protocol that Delta's transaction has prepared. Out: the lines of the
commit and of its checksum file, and both on disk.

Why not Delta's own commit. After it has written the two lines it reads the new table back with
two Spark jobs, to find that it is empty: that took a third of a second a table, most of what
CREATE SUBSCRIPTION took. There is nothing to conflict with either: whoever comes second finds
the file there. The checksum has everything that Delta derives the next version's from; were
anything missing, the first commit would read the table back instead.

Called by ``tables``. Sources: Delta transaction log protocol, "Commit Provenance Information"
and "Version Checksum File"; delta-spark 4.4 Checksum.scala.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wal2lake.errors import DuplicateObjectError, StorageError
from wal2lake.lake.delta.log.clustering import (
    FEATURE,
    clustering_columns,
    references,
)
from wal2lake.lake.delta.log.place import Object, dump, place

COMMIT: Final = f"{0:020}.json"
CHECKSUM: Final = f"{0:020}.crc"

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
"""Features of Delta's that need nothing more of version 0 than to be named in the protocol, and
the columns of a clustering."""


def is_plain(protocol: Object) -> bool:
    """Whether version 0 of such a table is what is written here."""
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
    made = {
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
        {"commitInfo": made},
        {"metaData": metadata},
        {"protocol": protocol},
        *({"domainMetadata": one} for one in domains),
    )
    return [dump(action) for action in actions]


def write_locally(table: Path, commit: Sequence[str], checksum: str) -> None:
    """Both files below a table's directory, which is made; not yet durable.

    The commit is whole from its first moment; without the checksum, which a crash may leave out,
    the first commit takes longer. DuplicateObjectError if there is one.
    """
    log = table / "_delta_log"
    try:
        log.mkdir(parents=True, exist_ok=True)
        place(log / COMMIT, "\n".join(commit), os.link)
        place(log / CHECKSUM, checksum, os.replace)
    except FileExistsError as error:
        raise DuplicateObjectError(
            f'there is a Delta table at "{table}" already', sqlstate="42P07"
        ) from error
    except OSError as error:
        raise StorageError(
            f'could not create Delta table at "{table}": {error.strerror}',
            sqlstate="58030",
        ) from error


@dataclass(frozen=True, slots=True)
class TableKind:
    """Kind of a new table, which Delta's decisions depend on."""

    settings: int
    """A hash of the session's."""
    types: frozenset[str]
    """Without precisions and lengths."""
    properties: frozenset[tuple[str, str]]
    """Delta's own."""


@dataclass(frozen=True, slots=True)
class Model:
    """Delta's decisions about a kind of table."""

    more: Mapping[str, str]
    """Properties that the session's settings add."""
    protocol: Object

    @classmethod
    def of(cls, asked: Object, prepared: Object, protocol: Object) -> Model | None:
        """From what Delta made of one table's metadata; None if it did more than add
        properties (a column mapping has names of its own for each table)."""
        more = dict(prepared["configuration"])
        for name in asked["configuration"]:
            more.pop(name, None)
        model = cls(more, protocol)
        same = _with_schema(model.applied_to(asked)) == _with_schema(prepared)
        return model if same else None

    def applied_to(self, asked: Object) -> dict[str, Any]:
        """The metadata of another table of the kind."""
        return {**asked, "configuration": {**asked["configuration"], **self.more}}


def _with_schema(metadata: Object) -> dict[str, Any]:
    """Delta writes the schema's text anew, with its keys in another order."""
    return {**metadata, "schemaString": json.loads(metadata["schemaString"])}
