"""The base of each part of ``Catalog``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from wal2lake.catalog.database import Database

M = TypeVar("M", bound=Callable[..., Any])


class CatalogPart:
    """The file, and the change that it is at."""

    _database: Database

    @property
    def change_counter(self) -> int:
        """Grows with every commit; equal numbers mean nothing has changed."""
        return int(self._database.meta("counter"))

    @property
    def written(self) -> int:
        """How many transactions this thread has committed."""
        return self._database.written

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._database.path

    @property
    def warehouse(self) -> str:
        """Where tables are: a path or a URL."""
        return self._database.warehouse

    def _change(
        self, method: Callable[..., Any], arguments: tuple[Any, ...], named: Any
    ) -> Any:
        """Make a change; a transaction block also remembers it."""
        return method(self, *arguments, **named)


def change(method: M) -> M:
    """Mark a method as a change that a transaction block can make; see ``uncommitted``."""

    @wraps(method)
    def run(self: CatalogPart, *arguments: Any, **named: Any) -> Any:
        return self._change(method, arguments, named)

    return cast(M, run)
