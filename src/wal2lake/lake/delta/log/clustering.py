"""Finds the columns by which a table is clustered (Delta's CLUSTER BY). Pure.

In: the ``domainMetadata`` actions in force and the ``metaData`` action of a version. Out: the
columns, by the names that readers use; for a new table, the action that declares them.

The domain names columns by their physical names, so a renamed column stays part of the
clustering. The domain is written when the table is created and not by commits of data: our
commits repeat it in their checksums, from which the writer of a checkpoint takes it.

Called by ``version``, ``creation`` and ``branches``. Sources: Delta transaction log protocol,
"Domain Metadata", "Clustered Table"; delta-spark 4.4 ClusteringMetadataDomain.scala.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from wal2lake.lake.delta.log.place import Object, dump

FEATURE: Final = "clustering"
"""The protocol's feature; Delta adds ``domainMetadata`` to it."""

_DOMAIN: Final = "delta.clustering"

_COLUMNS: Final = "clusteringColumns"

_WORD: Final = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")

_PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"


def clustering_columns(domains: Iterable[Object], metadata: Object) -> tuple[str, ...]:
    """Return the columns by which the version is clustered; none if it is not, or by parts of a
    column."""
    for domain in domains:
        if domain["domain"] == _DOMAIN and not domain["removed"]:
            paths = json.loads(domain["configuration"])[_COLUMNS]
            names = {physical: name for name, physical in _physical(metadata).items()}
            if all(len(path) == 1 and path[0] in names for path in paths):
                return tuple(names[path[0]] for path in paths)
    return ()


def clustering_domain(columns: Sequence[str], metadata: Object) -> dict[str, object]:
    """Return the ``domainMetadata`` object of a new table with that metadata."""
    physical = _physical(metadata)
    configuration = {
        _COLUMNS: [[physical[name]] for name in columns],
        "domainName": _DOMAIN,
    }
    return {"domain": _DOMAIN, "configuration": dump(configuration), "removed": False}


def references(columns: Iterable[str]) -> tuple[str, ...]:
    """Quote columns as Delta does in a commit's parameters and in the tags of files: in backticks
    unless they are plain words."""
    return tuple(
        name if _WORD.fullmatch(name) else "`" + name.replace("`", "``") + "`"
        for name in columns
    )


def _physical(metadata: Object) -> dict[str, str]:
    """Return the columns' physical names."""
    fields = json.loads(metadata["schemaString"])["fields"]
    return {
        field["name"]: field["metadata"].get(_PHYSICAL_NAME, field["name"])
        for field in fields
    }
