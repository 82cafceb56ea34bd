"""Reads the changes of rows from a commit of a table's log. Pure.

Comes in: the actions of one version, as JSON objects. Goes out: a ``TableCommit``: each file whose
rows have changed, before and after, and the commit's writer.

Delta's change data feed has the same information where it is switched on; the actions have it for
every commit, of any writer. An action with ``dataChange`` false (OPTIMIZE, a compaction) moves
rows and changes none.

Source: Delta transaction log protocol, "Actions", "Deletion Vectors".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wal2lake.lake.capture.commitfacts import CommitRemarks, operation_and_remarks
from wal2lake.lake.tablefiles import DataFile

_TRUNCATES: Final = re.compile(r"truncate(?: (?:prepared )?\d+)?|TRUNCATE")
"""Names of commits that empty a table: ours, and Delta's."""

ALTERS: Final = "alter table"
"""Operation of commits that rewrite rows because columns have changed. PostgreSQL publishes
nothing for such rows, because a subscriber's table is altered by its own administrator."""


@dataclass(frozen=True, slots=True)
class TouchedFile:
    """One file of the table; None on a side where that version does not have the file."""

    before: DataFile | None
    after: DataFile | None


@dataclass(frozen=True, slots=True)
class TableCommit:
    """The row changes of one version."""

    version: int
    time_ms: int
    """Milliseconds since 1970; 0 if unknown."""
    operation: str
    """Our own name for it, or Delta's."""
    cursors: Mapping[str, int]
    """Cursors that it carries, by application."""
    touched: tuple[TouchedFile, ...]
    metadata: Mapping[str, Any] | None
    """The table's definition, if it changes here."""
    remarks: CommitRemarks = field(default_factory=CommitRemarks)
    """The transaction's messages, the replication origin of its session, and similar facts."""

    updated: int = 0
    """Number of rows that it has updated, by its own record. If it has removed as many rows, then
    all of them were updated."""

    @property
    def truncates(self) -> bool:
        """True if all earlier rows are removed; rows that it adds were written after that."""
        return _TRUNCATES.fullmatch(self.operation) is not None

    @property
    def changes_rows(self) -> bool:
        """True if there is something to publish."""
        if self.operation == ALTERS and self.metadata is not None:
            return False
        return bool(self.touched) or self.truncates or self.remarks.sent is not None


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
        TouchedFile(before, after)
        for before, after in (
            (gone.get(key), came.get(key)) for key in dict.fromkeys([*gone, *came])
        )
        if before is None or after is None or before.vector != after.vector
    ]
    operation, remarks = operation_and_remarks(
        str(info.get("userMetadata") or info.get("operation") or "")
    )
    return TableCommit(
        version,
        int(info.get("timestamp") or 0),
        operation,
        cursors,
        tuple(touched),
        metadata,
        remarks,
        remarks.updated or updated_by(info),
    )


def updated_by(info: Mapping[str, Any]) -> int:
    """Return the number of updated rows, by Delta's metrics of an UPDATE, or of a MERGE that
    deletes none; 0 if unknown."""
    metrics = info.get("operationMetrics") or {}
    deleted = metrics.get("numTargetRowsDeleted") or 0
    updated = metrics.get("numUpdatedRows") or metrics.get("numTargetRowsUpdated") or 0
    try:
        return 0 if int(deleted) else int(updated)
    except (TypeError, ValueError):
        return 0
