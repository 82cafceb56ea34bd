"""Describes a commit that a caller of the port asks for, and decides whether it may be made.

Called by ``deltatables`` and ``elsewhere``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wal2lake.lake.delta.fit import check_files
from wal2lake.lake.delta.log.commit import Change, NextVersion
from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.port import Committed, Cursor, TableState, expect_version
from wal2lake.lake.tablefiles import AddedFile


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit to be made, with the arguments of ``commit_files``."""

    location: str
    root: Path | None
    """The table's directory; None if it is not on this machine."""
    adds: Sequence[AddedFile]
    changes: Sequence[Change]
    cursor: Cursor
    read_version: int | None
    replaces: bool
    rearranges: bool
    operation: str
    metadata: Object | None = None
    """Metadata of the next version; None if it does not change."""

    @property
    def reads(self) -> bool:
        """Whether the changes were made from the table's contents."""
        return self.read_version is not None or self.replaces

    @property
    def commit(self) -> NextVersion:
        """The next version, if it may be made."""
        return NextVersion(
            self.changes,
            self.cursor,
            self.operation,
            reads=self.reads,
            replaces=self.replaces,
            metadata=self.metadata,
        )

    def done_in(self, state: TableState) -> Committed | None:
        """Return the earlier commit if the table has the cursor already; None: commit on
        ``state``.

        Raises CommitConflict if the table has changed since ``read_version``, and the errors of
        ``check_files``.
        """
        committed = state.cursor(self.cursor.app_id)
        if committed is not None:
            # A rearrangement carries the table's present cursor and does not advance it.
            ahead = committed - self.cursor.version
            if ahead > 0 or (ahead == 0 and not self.rearranges):
                return Committed(state.version, already_done=True)
        if self.read_version is not None:
            expect_version(self.location, self.read_version, state.version)
        # Last: a VACUUM of another writer's may have removed files that no version names yet.
        if self.root is not None:
            check_files(state, self.adds, self.root)
        return None
