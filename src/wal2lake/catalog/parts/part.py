"""What each part of ``Catalog`` has."""

from __future__ import annotations

from wal2lake.catalog.database import Database


class Part:
    """The file, and the change that it is at."""

    _database: Database

    @property
    def change_counter(self) -> int:
        """Grows with every commit; equal numbers mean nothing has changed."""
        return int(self._database.meta("counter"))
