"""ALTER TABLE for the workers that follow a publisher's tables.

Takes column changes from apply and tablesync, which use it as the port ``AlterTable``. Carries out
the same ALTER TABLE as the front door (``commands.tables.altertable``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wal2lake.catalog import ColumnChange
from wal2lake.commands.tables.altertable import follow
from wal2lake.local.node import EngineParts
from wal2lake.model import Oid


@dataclass(frozen=True, slots=True)
class FollowedTables:
    """Implements the port ``AlterTable``. Thread-safe."""

    node: Callable[[], EngineParts]
    """Returns the node, which is created after the workers that hold this object."""

    def __call__(
        self, relid: Oid, changes: Sequence[ColumnChange], *, replaced: bool
    ) -> None:
        """Alter the table, as the port specifies."""
        follow(self.node(), relid, changes, replaced=replaced)

    def is_free(self, relid: Oid) -> bool:
        """Return whether the table may be altered, as the port specifies."""
        node = self.node()
        table = node.catalog.table_by_oid(relid)
        if table is None:
            return False
        names = node.catalog.sharing(table)
        subids = {rel.subid for rel in node.catalog.rels() if rel.relid in names}
        return len(subids) < 2 and node.prepared.are_free([table], None)
