"""By which columns a table is clustered (Delta's CLUSTER BY). Pure.

In: the ``domainMetadata`` actions in force and the ``metaData`` action of a version. Out: the
columns, by the names that readers use; the action that says so of a new table.

The domain names columns as files do, so that a column keeps its part under another name. It is
written when the table is made and by nobody's data: our commits repeat it in their checksums, and
whoever writes a checkpoint has it from there.

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
"""Feature of the protocol; Delta adds ``domainMetadata`` to it."""

_DOMAIN: Final = "delta.clustering"

_COLUMNS: Final = "clusteringColumns"

_WORD: Final = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")

_PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"


def is_only_domain(domains: object) -> bool:
    """Whether nothing but the clustering is said there: every other domain is its owner's, and
    Delta's to carry on."""
    return isinstance(domains, list) and all(
        one["domain"] == _DOMAIN and not one["removed"] for one in domains
    )


def clustering_columns(domains: Iterable[Object], metadata: Object) -> tuple[str, ...]:
    """Columns by which that version is clustered; none: it is not, or by parts of a column."""
    for one in domains:
        if one["domain"] == _DOMAIN and not one["removed"]:
            paths = json.loads(one["configuration"])[_COLUMNS]
            names = {physical: name for name, physical in _physical(metadata).items()}
            if all(len(path) == 1 and path[0] in names for path in paths):
                return tuple(names[path[0]] for path in paths)
    return ()


def clustering_domain(columns: Sequence[str], metadata: Object) -> dict[str, object]:
    """The object below ``domainMetadata`` of a new table of that metadata."""
    physical = _physical(metadata)
    configuration = {
        _COLUMNS: [[physical[name]] for name in columns],
        "domainName": _DOMAIN,
    }
    return {"domain": _DOMAIN, "configuration": dump(configuration), "removed": False}


def references(columns: Iterable[str]) -> tuple[str, ...]:
    """Columns as Delta writes them in a commit's parameters and in the tags of files: between
    backticks unless they are plain words."""
    return tuple(
        name if _WORD.fullmatch(name) else "`" + name.replace("`", "``") + "`"
        for name in columns
    )


def _physical(metadata: Object) -> dict[str, str]:
    """Return the columns' names in files."""
    fields = json.loads(metadata["schemaString"])["fields"]
    return {
        one["name"]: one["metadata"].get(_PHYSICAL_NAME, one["name"]) for one in fields
    }
