"""Hard links to the files of a directory, which keep their content when the files are removed.

In: a directory, a place on the same file system. Out: the links there, by name. Called by
``moment``.

Two kinds of files are copied instead. Of those that are written in place (the newest journal file,
``confirmed``) a link would show what is written later. And a link counts as a change of its file:
VACUUM removes nothing from a table's log below a checkpoint that has changed within
``lake.orphan_age_ms``, so links of a daily backup would keep it. A file that cannot be linked is
copied, too.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from wal2lake.errors import StorageError, reason_of

_JOURNAL: Final = re.compile(r"journal-\d{20}")
_CONFIRMED: Final = "confirmed"
_TEMPORARY: Final = ".tmp"
_HELD: Final = "held-"
"""Second names of files, on their way into the log's store."""

_NO_LINKS: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)
"""Errors of file systems without hard links, of files elsewhere and of other owners' files."""

DELTA_LOG: Final = "_delta_log/"
"""Beginning of the names of a table's log."""

ICEBERG: Final = "_iceberg/"
"""Beginning of the names of a table's mirror."""


def names_below(root: Path, *, symlinks: bool = False) -> dict[str, int]:
    """Return the files below a directory, each with its inode; what goes meanwhile is left out.
    ``symlinks``: those to files, too."""
    return dict(_walk(root, "", symlinks))


def _walk(folder: Path, prefix: str, symlinks: bool) -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below = f"{prefix}{entry.name}/"
                    yield from _walk(folder / entry.name, below, symlinks)
                elif entry.is_file(follow_symlinks=symlinks):
                    yield f"{prefix}{entry.name}", entry.inode()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _failed("open directory", folder, error) from error


class Links:
    """Links to files of ``root``, below ``place``."""

    def __init__(self, root: Path, place: Path) -> None:
        """Link nothing yet."""
        self.root = root
        self.place = place
        self._held: dict[str, int] = {}
        self._copied: dict[str, tuple[int, int, int]] = {}

    def hold_table(self, wanted: Callable[[str], bool]) -> set[str]:
        """Hold the wanted files of a table that are there now and are not held yet; returns all
        their names."""
        held = set()
        for name, inode in names_below(self.root).items():
            if not wanted(name):
                continue
            in_log = name.startswith(DELTA_LOG)
            if self._copy_once(name) if in_log else self._link(name, inode):
                held.add(name)
        return held

    def hold_log(self) -> set[str] | None:
        """Hold the directory of a log as it is at one moment; None if it has changed meanwhile.

        ``confirmed`` comes first and the newest journal file last: the log's end is then at or
        above each position that was confirmed, and above each segment."""
        before = self._log_names()
        journals = sorted(name for name in before if _JOURNAL.fullmatch(name))
        held = set()
        if _CONFIRMED in before and self._copy(_CONFIRMED):
            held.add(_CONFIRMED)
        for name in before.keys() - {_CONFIRMED, *journals[-1:]}:
            if self._link(name, before[name]):
                held.add(name)
        for name in journals[-1:]:
            if self._copy(name):
                held.add(name)
        same = before == self._log_names() and held == before.keys()
        return held if same else None

    def _log_names(self) -> dict[str, int]:
        names = names_below(self.root)
        return {
            name: inode
            for name, inode in names.items()
            if not name.endswith(_TEMPORARY) and not name.startswith(_HELD)
        }

    def _link(self, name: str, inode: int) -> bool:
        """Link one file; False if it has gone."""
        # An inode is not used again while a link keeps it.
        if self._held.get(name) == inode:
            return True
        if name in self._copied:
            return self._copy_once(name)
        target = self.place / name
        try:
            target.unlink(missing_ok=True)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.link(self.root / name, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                return self._copy_once(name)
            raise _failed("link file", self.root / name, error) from error
        self._held[name] = inode
        return True

    def _copy_once(self, name: str) -> bool:
        """Copy one file unless it has been copied as it is now; False if it has gone."""
        try:
            status = (self.root / name).lstat()
        except FileNotFoundError:
            return False
        seen = status.st_ino, status.st_mtime_ns, status.st_size
        if self._copied.get(name) != seen and not self._copy(name):
            return False
        self._copied[name] = seen
        return True

    def _copy(self, name: str) -> bool:
        target = self.place / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            with (self.root / name).open("rb") as source, target.open("xb") as copy:
                # Only appended to: the bytes up to here are final.
                left = os.fstat(source.fileno()).st_size
                while left and (chunk := source.read(min(left, 1 << 20))):
                    copy.write(chunk)
                    left -= len(chunk)
            shutil.copystat(self.root / name, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed("copy file", self.root / name, error) from error
        return True


def _failed(action: str, path: Path, error: OSError) -> StorageError:
    return StorageError(
        f'could not {action} "{path}": {reason_of(error)}', sqlstate="58030"
    )
