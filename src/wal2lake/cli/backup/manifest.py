"""``backup.json``: what a backup has. It is written last, so a directory without it is none.

JSON, one line for each file: name, size, SHA-256, mode, modification time (ns; Delta takes the
times of commits from it). The last member is the SHA-256 of everything before it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wal2lake.changelog.files import sync_directory
from wal2lake.errors import ConfigurationError, StorageError, reason_of

FILE_NAME: Final = "backup.json"

FORMAT_VERSION: Final = 1

_SEAL: Final = ',\n"sha256": "'

INCOMPLETE_HINT: Final = (
    "A backup that was interrupted has no such file, and a damaged one cannot be used: take"
    " another."
)


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One file of a backup."""

    name: str
    """Below the backup's directory."""
    size: int
    sha256: str
    mode: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """A complete backup."""

    taken_at: str
    """When it was begun, ISO 8601."""
    wal2lake: str
    """The program's version."""
    system_identifier: int
    versions: dict[str, int]
    """The version of each table, by its place below the warehouse."""
    files: tuple[BackupFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def encode(manifest: BackupManifest) -> bytes:
    """Return the text of the file."""
    head = {
        "format_version": FORMAT_VERSION,
        "taken_at": manifest.taken_at,
        "wal2lake": manifest.wal2lake,
        "system_identifier": manifest.system_identifier,
        "versions": manifest.versions,
    }
    lines = (
        json.dumps([f.name, f.size, f.sha256, f.mode, f.modified_ns])
        for f in manifest.files
    )
    body = json.dumps(head)[:-1] + ',\n"files": [\n' + ",\n".join(lines) + "\n]"
    seal = hashlib.sha256(body.encode()).hexdigest()
    return f'{body}{_SEAL}{seal}"}}\n'.encode()


def decode(content: bytes, path: Path) -> BackupManifest:
    """Read the text. ConfigurationError if it is damaged, or of a later version."""
    body, _, seal = content.decode("ascii", "replace").rpartition(_SEAL)
    if seal != f'{hashlib.sha256(body.encode()).hexdigest()}"}}\n':
        raise ConfigurationError(
            f'file "{path}" is damaged', sqlstate="XX001", hint=INCOMPLETE_HINT
        )
    members: dict[str, Any] = json.loads(content)
    if members["format_version"] > FORMAT_VERSION:
        raise ConfigurationError(
            f'backup "{path.parent}" has format version {members["format_version"]},'
            f" this wal2lake reads up to {FORMAT_VERSION}",
            hint="Install the wal2lake version that wrote it, or a later one.",
        )
    return BackupManifest(
        members["taken_at"],
        members["wal2lake"],
        members["system_identifier"],
        members["versions"],
        tuple(BackupFile(*file) for file in members["files"]),
    )


def write_manifest(directory: Path, manifest: BackupManifest) -> None:
    """Write the file durably; the backup is complete then."""
    temporary = directory / f"{FILE_NAME}.tmp"
    try:
        with temporary.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(encode(manifest))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(directory / FILE_NAME)
        sync_directory(directory)
    except OSError as error:
        raise StorageError(
            f'could not write file "{directory / FILE_NAME}": {reason_of(error)}',
            sqlstate="58030",
        ) from error


def read_manifest(directory: Path) -> BackupManifest:
    """Read the file; ConfigurationError if the directory has no complete backup."""
    path = directory / FILE_NAME
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f'"{directory}" has no complete backup: could not open file "{path}":'
            f" {reason_of(error)}",
            hint=INCOMPLETE_HINT,
        ) from None
    return decode(content, path)
