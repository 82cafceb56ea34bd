"""Numbers the rows of new files in a table that tracks its rows. Pure.

In: the actions of a commit, the number that the table has given last. Out: the actions with a
``baseRowId`` and a ``defaultRowCommitVersion`` on each new file, and the ``domainMetadata`` action
with the number given last. A file that stays with another deletion vector keeps its numbers.

A table that supports row tracking demands that of each writer, whether or not it is enabled.

Called by ``log.commit``. Sources: Delta transaction log protocol, "Writer Requirements for Row
Tracking"; delta-spark 4.4 RowId.scala, DefaultRowCommitVersion.scala.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wal2lake.errors import StorageError

FEATURE: Final = "rowTracking"
DOMAIN: Final = "delta.rowTracking"

OF_FILES: Final = ("baseRowId", "defaultRowCommitVersion")
"""Names of a file's numbers."""

_SUSPENDED: Final = "delta.rowTrackingSuspended"
_MARK: Final = "rowIdHighWaterMark"

Action = Mapping[str, Mapping[str, Any]]


def numbers_rows(features: frozenset[str], properties: Mapping[str, str]) -> bool:
    """Whether a commit has to number the rows of its files."""
    return FEATURE in features and not _is_suspended(properties)


def drops_numbers(features: frozenset[str], properties: Mapping[str, str]) -> bool:
    """Whether the files of a commit must not have numbers: the feature is being removed."""
    return FEATURE in features and _is_suspended(properties)


def _is_suspended(properties: Mapping[str, str]) -> bool:
    return properties.get(_SUSPENDED, "").lower() == "true"


def without_numbers(changes: Sequence[Action]) -> list[Action]:
    """Return the actions of a commit whose files have no numbers."""
    return [
        {"add": {k: v for k, v in change["add"].items() if k not in OF_FILES}}
        if "add" in change
        else change
        for change in changes
    ]


def numbered(
    changes: Sequence[Action], domains: Iterable[Mapping[str, Any]], version: int
) -> tuple[list[Action], Mapping[str, Any] | None]:
    """Number the files of the commit ``version``. Return its actions, and the domain if numbers
    have been given."""
    mark = first = _last_given(domains)
    result: list[Action] = []
    for change in changes:
        add = change.get("add")
        if add is None:
            result.append(change)
            continue
        add = dict(add)
        if add.get("baseRowId") is None:
            add["baseRowId"] = mark + 1
            mark += _rows(add)
        if add.get("defaultRowCommitVersion") is None:
            add["defaultRowCommitVersion"] = version
        result.append({"add": add})
    if mark == first:
        return result, None
    configuration = json.dumps({_MARK: mark}, separators=(",", ":"))
    return result, {
        "domain": DOMAIN,
        "configuration": configuration,
        "removed": False,
    }


def _last_given(domains: Iterable[Mapping[str, Any]]) -> int:
    for domain in domains:
        if domain["domain"] == DOMAIN:
            return int(json.loads(domain["configuration"])[_MARK])
    return -1


def _rows(add: Mapping[str, Any]) -> int:
    count = json.loads(add.get("stats") or "{}").get("numRecords")
    if count is None:
        raise StorageError(
            f'the rows of file "{add["path"]}" cannot be numbered',
            sqlstate="58000",
            detail="The table tracks its rows, and the file has no statistics.",
            hint="Write the file again with statistics: set"
            " spark.databricks.delta.stats.collect to true.",
        )
    return int(count)
