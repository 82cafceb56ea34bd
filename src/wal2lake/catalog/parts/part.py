"""The base of each part of ``Catalog``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from wal2lake.catalog.database import Database

M = TypeVar("M", bound=Callable[..., Any])


class CatalogPart:
    """The catalog file with its change counter."""

    _database: Database

    secured: Callable[[], None] | None = None
    """Called after a record was made that cannot be found again from tables and log, before what it
    is about is done. The engine sets it if the catalog must outlive its disk."""

    @property
    def change_counter(self) -> int:
        """Counter that grows with every commit. Equal numbers mean that nothing has changed."""
        return int(self._database.meta("counter"))

    @property
    def written(self) -> int:
        """Number of transactions that this thread has committed."""
        return self._database.written

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._database.path

    @property
    def warehouse(self) -> str:
        """Path or URL of the warehouse, which has the tables."""
        return self._database.warehouse

    def _secure(self) -> None:
        if self.secured is not None:
            self.secured()

    def _change(
        self, method: Callable[..., Any], arguments: tuple[Any, ...], named: Any
    ) -> Any:
        """Make a change. A transaction block also records the call."""
        return method(self, *arguments, **named)


def change(method: M) -> M:
    """Mark a method as a change that a transaction block can make (``uncommitted``)."""

    @wraps(method)
    def run(self: CatalogPart, *arguments: Any, **named: Any) -> Any:
        return self._change(method, arguments, named)

    return cast(M, run)
