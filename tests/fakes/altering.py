"""ALTER TABLE for workers that have none to make."""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.catalog import ColumnChange
from wal2lake.model import Oid


class _NeverAlter:
    """For subscriptions that do not follow their publisher's tables."""

    def __call__(
        self, relid: Oid, changes: Sequence[ColumnChange], *, replaced: bool
    ) -> None:
        raise AssertionError(f"table {relid} is altered")

    def is_free(self, relid: Oid) -> bool:
        return True


never_alter = _NeverAlter()
