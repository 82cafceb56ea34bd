"""ALTER TABLE for the workers that follow a publisher's tables.

Comes in: changes of columns, from apply and tablesync, which know this as the port ``AlterTable``.
Goes out: the same ALTER TABLE as at the front door (``commands.tables.altertable``).
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
    """The port's ``AlterTable``. Safe for all threads."""

    node: Callable[[], EngineParts]
    """The node, which is put together after the workers that hold this object."""

    def __call__(
        self, relid: Oid, changes: Sequence[ColumnChange], *, replaced: bool
    ) -> None:
        """Alter the table; the port explains it."""
        follow(self.node(), relid, changes, replaced=replaced)

    def is_free(self, relid: Oid) -> bool:
        """Tell whether the table may be altered; the port explains it."""
        node = self.node()
        table = node.catalog.table_by_oid(relid)
        if table is None:
            return False
        names = node.catalog.sharing(table)
        subids = {rel.subid for rel in node.catalog.rels() if rel.relid in names}
        return len(subids) < 2 and node.prepared.are_free([table], None)
