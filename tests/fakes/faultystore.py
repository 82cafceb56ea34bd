"""A store in a directory whose writing calls fail when a test says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wal2lake.errors import StorageError
from wal2lake.lake.store import LocalStore


class FaultyStore(LocalStore):
    """A store whose calls fail from a moment on, for as long as a test wants."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.left: int | None = None
        """Writing calls that succeed; None: all."""
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StorageError("the store does not answer", sqlstate="58030")

    def put(self, key: str, content: bytes, *, durable: bool = True) -> Any:
        self._call()
        return super().put(key, content, durable=durable)

    def put_if_absent(self, key: str, content: bytes, *, durable: bool = True) -> Any:
        self._call()
        return super().put_if_absent(key, content, durable=durable)

    def open_writer(self, key: str) -> Any:
        self._call()
        return super().open_writer(key)

    def delete(self, key: str) -> None:
        self._call()
        super().delete(key)
