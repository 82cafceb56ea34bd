"""A commit of a table's log, as far as it changes rows. Pure.

Comes in: the actions of one version, as JSON objects. Goes out: a ``TableCommit``: each file whose
rows are others now, as it was and as it is, and who has committed.

Delta's change data feed says the same where it is switched on; the actions say it of every
commit, by whomever. An action with ``dataChange`` false (OPTIMIZE, a compaction) moves rows and
changes none.

Source: Delta transaction log protocol, "Actions", "Deletion Vectors".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wal2lake.lake.capture.messages import More, word_and_more
from wal2lake.lake.tablefiles import DataFile

_TRUNCATES: Final = re.compile(r"truncate(?: (?:prepared )?\d+)?|TRUNCATE")
"""Names of commits that empty a table: ours, and Delta's."""

ALTERS: Final = "alter table"
"""The word of commits that write rows anew because columns have changed: PostgreSQL says nothing of
such rows, for a subscriber's table is altered by its own administrator."""


@dataclass(frozen=True, slots=True)
class Touched:
    """One file of the table. None where it is not a file of that version."""

    before: DataFile | None
    after: DataFile | None


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One version."""

    version: int
    time_ms: int
    """When, since 1970; 0: it does not say."""
    operation: str
    """Our own word for it, or Delta's."""
    cursors: Mapping[str, int]
    """Applications whose cursor it carries."""
    touched: tuple[Touched, ...]
    metadata: Mapping[str, Any] | None
    """The table's definition, if it is another one from here on."""
    more: More = field(default_factory=More)
    """The transaction's messages, the replication origin of its session, and the like."""

    updated: int = 0
    """How many rows it has updated, as it says itself: what it has taken away was updated, if it is
    so many rows."""

    @property
    def truncates(self) -> bool:
        """All rows of before are gone; what it brings came after that."""
        return _TRUNCATES.fullmatch(self.operation) is not None

    @property
    def changes_rows(self) -> bool:
        """There is something to say of it."""
        if self.operation == ALTERS and self.metadata is not None:
            return False
        return bool(self.touched) or self.truncates or self.more.sent is not None


def read_commit(version: int, actions: Sequence[Mapping[str, Any]]) -> TableCommit:
    """Read the actions of ``version``."""
    info: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] | None = None
    cursors: dict[str, int] = {}
    gone: dict[str, DataFile] = {}
    came: dict[str, DataFile] = {}
    for action in actions:
        for kind, body in action.items():
            if kind == "commitInfo":
                info = body
            elif kind == "metaData":
                metadata = body
            elif kind == "txn":
                cursors[str(body["appId"])] = int(body["version"])
            elif kind == "remove" and body.get("dataChange", True):
                file = DataFile(body)
                gone[file.key] = file
            elif kind == "add" and body.get("dataChange", True):
                file = DataFile(body)
                came[file.key] = file
    touched = [
        Touched(before, after)
        for before, after in (
            (gone.get(key), came.get(key)) for key in dict.fromkeys([*gone, *came])
        )
        if before is None or after is None or before.vector != after.vector
    ]
    operation, more = word_and_more(
        str(info.get("userMetadata") or info.get("operation") or "")
    )
    return TableCommit(
        version,
        int(info.get("timestamp") or 0),
        operation,
        cursors,
        tuple(touched),
        metadata,
        more,
        more.updated or updated_by(info),
    )


def updated_by(info: Mapping[str, Any]) -> int:
    """How many rows were updated, by Delta's account of an UPDATE, or of a MERGE that deletes
    none. 0: it does not say."""
    metrics = info.get("operationMetrics") or {}
    deleted = metrics.get("numTargetRowsDeleted") or 0
    found = metrics.get("numUpdatedRows") or metrics.get("numTargetRowsUpdated") or 0
    try:
        return 0 if int(deleted) else int(found)
    except (TypeError, ValueError):
        return 0
