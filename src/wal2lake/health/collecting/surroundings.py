"""Facts that are not in the node's own records: processes, file systems, logs, the certificate.

In: pids, directories, a certificate's file. Out: numbers; None for what cannot be found out.
Nothing is opened for writing. Sizes of sealed files never change, so each is measured only once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from wal2lake.catalog import NOTHING_REGISTERED, RegisteredTables, read_registered
from wal2lake.health.facts import DiskFacts
from wal2lake.settings import Settings, file_url_path

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def rss_bytes(pid: int) -> int | None:
    """Return the memory that a process occupies; None without /proc, or if it has ended."""
    try:
        statm = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
        return int(statm.split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def child_named(pid: int, name: str) -> int | None:
    """Return the pid of a process's child whose program has that name."""
    for child in _children(pid):
        try:
            command = Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            continue
        if command == name:
            return child
    return None


def _children(pid: int) -> Iterator[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for thread in threads:
        try:
            children = (thread / "children").read_text(encoding="ascii")
            yield from map(int, children.split())
        except (OSError, ValueError):
            continue


def disks(settings: Settings) -> tuple[DiskFacts, ...]:
    """Return the file systems of catalog, log and warehouse. A warehouse in an object store has
    none."""
    places = [
        ("catalog", str(settings.directory)),
        ("log", str(settings.log_directory)),
    ]
    warehouse = file_url_path(settings.warehouse) or settings.warehouse
    if not urlsplit(warehouse).scheme:
        places.append(("warehouse", warehouse))
    return tuple(
        disk
        for purpose, path in places
        if (disk := _disk(purpose, Path(path))) is not None
    )


def _disk(purpose: str, path: Path) -> DiskFacts | None:
    # A log that nobody has written yet will be on the file system of its parent.
    for place in (path, *path.parents):
        try:
            status, device = os.statvfs(place), place.stat().st_dev
        except FileNotFoundError:
            continue
        except OSError:
            return None
        unit = status.f_frsize
        return DiskFacts(
            purpose, str(path), status.f_bavail * unit, status.f_blocks * unit, device
        )
    return None


class LogSizes:
    """Sizes of change logs, measured again and again. For one thread at a time."""

    def __init__(self) -> None:
        self._sealed: dict[str, dict[str, int]] = {}
        """Sizes of immutable files, by directory and name."""

    def measure(self, directory: Path) -> int:
        """Return the bytes that count against ``size_limit_bytes``: all files but spools."""
        sealed_sizes = self._sealed.get(str(directory), {})
        seen: dict[str, int] = {}
        total = 0
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    name = entry.name
                    if not name.startswith(("journal-", "seg-")):
                        continue
                    size = sealed_sizes.get(name)
                    if size is None:
                        try:
                            size = entry.stat(follow_symlinks=False).st_size
                        except OSError:
                            continue
                    total += size
                    # A segment's file gets its name by a rename when it is complete.
                    if name.startswith("seg-") and not name.endswith(".tmp"):
                        seen[name] = size
        except OSError:
            return 0
        self._sealed[str(directory)] = seen
        return total

    def keep(self, directories: Iterable[Path]) -> None:
        """Forget directories that are not among these."""
        wanted = {str(directory) for directory in directories}
        for directory in self._sealed.keys() - wanted:
            del self._sealed[directory]


class RegisteredFile:
    """Tables that are registered in a catalog of others, read again when the file changes."""

    def __init__(self) -> None:
        self._read: tuple[tuple[str, int, int], RegisteredTables] | None = None

    def read(self, path: Path) -> RegisteredTables:
        """Return the tables; a file that does not exist has none."""
        try:
            status = path.stat()
        except OSError:
            return NOTHING_REGISTERED
        identity = (str(path), status.st_ino, status.st_mtime_ns)
        if self._read is None or self._read[0] != identity:
            self._read = (identity, read_registered(path))
        return self._read[1]


class CertificateEnd:
    """End of the validity of the node's certificate, read again when the file changes."""

    def __init__(self) -> None:
        self._read: tuple[tuple[str, int, int], datetime | None] | None = None

    def read(self, settings: Settings) -> datetime | None:
        """Return the end; None without TLS, or if the file cannot be read."""
        if not settings.node.ssl:
            return None
        path = settings.directory / settings.node.ssl_cert_file
        try:
            status = path.stat()
        except OSError:
            return None
        identity = (str(path), status.st_ino, status.st_mtime_ns)
        if self._read is None or self._read[0] != identity:
            self._read = (identity, _end_of(path))
        return self._read[1]


def _end_of(path: Path) -> datetime | None:
    # Imported here, because only a node with TLS needs it, and it takes longer than all else.
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return None
    # The first certificate that ends makes the chain invalid.
    return min((certificate.not_valid_after_utc for certificate in chain), default=None)
