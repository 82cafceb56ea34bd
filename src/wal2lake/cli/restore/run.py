"""The command: checks and copies each file of a backup, then writes the settings.

The settings come last: a directory without them is no node, so an interrupted restore leaves
nothing that could be started. The command decides where the warehouse and the log of the restored
node are, whatever the settings of the original were: two nodes must never write the tables of one
warehouse.
A restore that fails removes what it has made.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wal2lake.changelog.files import sync_directory
from wal2lake.cli.backup.copying import Copying
from wal2lake.cli.backup.manifest import (
    INCOMPLETE_HINT,
    BackupFile,
    BackupManifest,
    read_manifest,
)
from wal2lake.cli.backup.moment import LOG, NODE, WAREHOUSE
from wal2lake.cli.backup.run import new_directory
from wal2lake.cli.restore.rewriting import with_value
from wal2lake.cli.terminal.progress import byte_bar
from wal2lake.errors import ConfigurationError, reason_of
from wal2lake.settings import FILE_NAME, load

_DIFFERS: Final = "its checksum differs"


def run(options: argparse.Namespace) -> int:
    """Restore the backup, and print the next step; returns 0."""
    backup: Path = options.backup.absolute()
    directory: Path = options.directory.absolute()
    roots = {
        NODE: directory,
        LOG: (options.log or directory / "log").absolute(),
        WAREHOUSE: (options.warehouse or directory / "warehouse").absolute(),
    }
    manifest = read_manifest(backup)
    settings = _settings(
        backup,
        manifest,
        warehouse=str(roots[WAREHOUSE]) if options.warehouse else None,
        log=str(roots[LOG]) if options.log else None,
    )
    with contextlib.ExitStack() as made:
        made.enter_context(new_directory(directory))
        for place in (roots[LOG], roots[WAREHOUSE], directory / "run"):
            made.enter_context(new_directory(place))
        _copy(backup, manifest, roots)
        _write(directory / FILE_NAME, settings)
    print(f'restored the backup of {manifest.taken_at} to "{directory}"')
    print("\nSuccess. Stop the original if it runs; then start the node:\n")
    print(f"    wal2lake start -D {options.directory}\n")
    return 0


def _settings(
    backup: Path, manifest: BackupManifest, *, warehouse: str | None, log: str | None
) -> str:
    """Return the settings with the new places, after a check that they count."""
    name = f"{NODE}/{FILE_NAME}"
    try:
        content = (backup / name).read_bytes()
    except OSError as error:
        raise _unusable(backup, name, reason_of(error)) from None
    wanted = {file.name: file.sha256 for file in manifest.files}.get(name)
    if hashlib.sha256(content).hexdigest() != wanted:
        raise _unusable(backup, name, _DIFFERS)
    text = content.decode()
    text = with_value(text, "spark", "warehouse", warehouse)
    text = with_value(text, "log", "directory", log)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_text(text, encoding="utf-8")
        read = load(Path(folder), os.environ)
    # An environment variable may win over the file.
    if (read.spark.warehouse, read.log.directory) != (warehouse or "", log or ""):
        raise ConfigurationError(
            "the settings would still name the places of the original",
            hint="Unset WAL2LAKE_SPARK_WAREHOUSE and WAL2LAKE_LOG_DIRECTORY.",
        )
    return text


def _copy(backup: Path, manifest: BackupManifest, roots: Mapping[str, Path]) -> None:
    with byte_bar("restoring", manifest.size) as advance:
        copying = Copying(advance)
        for file in manifest.files:
            part, _, below = file.name.partition("/")
            if part not in roots or ".." in below.split("/"):
                raise _unusable(backup, file.name, "its name is invalid")
            if file.name != f"{NODE}/{FILE_NAME}":
                _copy_file(copying, backup, file, roots[part] / below)
        copying.sync()


def _copy_file(copying: Copying, backup: Path, file: BackupFile, target: Path) -> None:
    source = backup / file.name
    if not source.is_file():
        raise _unusable(backup, file.name, "it is missing")
    # Programs of other users may read the tables, if they could before and the warehouse's own
    # directory lets them.
    mask = 0o777 if file.name.startswith(f"{WAREHOUSE}/") else 0o700
    copied = copying.copy(source, target, file.name, file.mode & mask, mask)
    if (copied.size, copied.sha256) != (file.size, file.sha256):
        raise _unusable(backup, file.name, _DIFFERS)
    # Delta takes the times of commits from their files.
    os.utime(target, ns=(file.modified_ns, file.modified_ns))


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
    sync_directory(path.parent.parent)


def _unusable(backup: Path, name: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f'file "{name}" of the backup "{backup}" cannot be used: {reason}',
        sqlstate="XX001",
        hint=INCOMPLETE_HINT,
    )
