"""A table of ``delta_log`` whose files are in an object store, too.

The test makes and ages files in a directory; ``push`` brings the store to the directory's state,
``pull`` the directory to the store's. Nobody can set an object's time, so ``AgedStore`` tells the
directory's modification times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wal2lake.lake.store import Entry, Store
from wal2lake.local.retention import TablePlace


class AgedStore:
    """A store whose lists have the modification times of a directory's files."""

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        self._root = root
        self.ahead: float | None = None

    def seconds_ahead(self) -> float:
        """As in ``Store``, unless the test has another number."""
        found: float = self._store.seconds_ahead()
        return found if self.ahead is None else self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list_below(
        self,
        folder: str,
        enters: Callable[[str], bool],
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Entry]:
        """As in ``Store``."""
        listed = self._store.list_below(folder, enters, check)
        return {key: self._aged(key, entry) for key, entry in listed.items()}

    def entries(self, keys: Collection[str]) -> dict[str, Entry]:
        """As in ``Store``."""
        found = self._store.entries(keys)
        return {key: self._aged(key, entry) for key, entry in found.items()}

    def _aged(self, key: str, entry: Entry) -> Entry:
        path = self._root / key
        written = path.stat().st_mtime if path.exists() else entry.written
        return replace(entry, written=min(written, entry.written))


@dataclass
class PushedFiles:
    """The files of a directory in a store."""

    store: Store
    root: Path
    pushed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Modification time and inode of each file when it was sent."""

    def push(self) -> None:
        """Send what is new or changed; remove what is gone."""
        present: dict[str, tuple[int, int]] = {}
        for path in self.root.rglob("*"):
            if path.is_file():
                status = path.stat()
                key = path.relative_to(self.root).as_posix()
                present[key] = status.st_size, status.st_ino
                if self.pushed.get(key) != present[key]:
                    self.store.put(key, path.read_bytes())
        self.store.delete_all([key for key in self.pushed if key not in present])
        self.pushed = present

    def pull(self) -> None:
        """Remove what the store does not have any more."""
        listed = self.store.list_below("", lambda folder: True)
        for key in set(self.pushed) - set(listed):
            (self.root / key).unlink(missing_ok=True)
            del self.pushed[key]


@dataclass(frozen=True)
class AgedPlace(TablePlace):
    """The place of such a table."""

    aged: Any = None

    @property
    def store(self) -> Any:
        """The store with the directory's times."""
        return self.aged
