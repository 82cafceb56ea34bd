"""ALTER TABLE for workers that have none to make."""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.catalog import ColumnChange
from wal2lake.model import Oid


def never_alter(relid: Oid, changes: Sequence[ColumnChange], *, replaced: bool) -> None:
    """For subscriptions that do not follow their publisher's tables."""
    raise AssertionError(f"table {relid} is altered")
