"""The command: holds the node's files at one moment, copies them, and seals the backup.

    PATH/backup.json    sizes and checksums; written last
    PATH/node/          the catalog, settings, passfile, certificates ...
    PATH/log/           the logs of subscriptions and of the publisher
    PATH/warehouse/     the tables, each up to one version

All is 0600 and 0700. Files that a running node creates again (``run/``), its lock and its log file
are left out. A backup that fails is removed; one that is killed leaves a directory without
``backup.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

from wal2lake import __version__
from wal2lake.archive.claims import FILE as CLAIM
from wal2lake.catalog import Catalog
from wal2lake.cli.backup.copying import Copying
from wal2lake.cli.backup.links import names_below
from wal2lake.cli.backup.manifest import (
    BackupManifest,
    read_manifest,
    write_manifest,
)
from wal2lake.cli.backup.moment import (
    NODE,
    WAREHOUSE,
    HeldNode,
    held_moment,
    warehouse_path,
)
from wal2lake.cli.reload import environment_of
from wal2lake.cli.terminal.progress import byte_bar, late_spinner
from wal2lake.errors import ConfigurationError, StorageError, reason_of
from wal2lake.lake.retention import UnreadableLog, are_present
from wal2lake.lake.store import LocalStore
from wal2lake.launch import is_locked, read_lock
from wal2lake.launch.directory.lockfile import FILE_NAME as LOCK
from wal2lake.settings import FILE_NAME, Settings, load

_FILES_ELSEWHERE: Final = ("hba_file", "ssl_cert_file", "ssl_key_file", "ssl_ca_file")


def run(options: argparse.Namespace) -> int:
    """Make the backup; returns 0."""
    directory: Path = options.directory.absolute()
    target: Path = options.to.absolute()
    settings = load(directory, _environment(directory))
    _check_target(settings, target)
    catalog = Catalog(settings.catalog_file, settings.warehouse)
    try:
        with _ended_by_signals(), new_directory(target):
            manifest = _make(settings, catalog, target)
    finally:
        catalog.close()
    tables = len(manifest.versions)
    print(
        f'made a backup of "{directory}" in "{target}": {tables}'
        f" table{'' if tables == 1 else 's'}, {len(manifest.files)} files,"
        f" {manifest.size:,} bytes"
    )
    for name in _FILES_ELSEWHERE:
        path = Path(getattr(settings.node, name))
        if path.is_absolute() and not path.is_relative_to(directory):
            print(
                f'wal2lake: warning: "{path}" ({name} of [node]) is outside the node\'s'
                " directory and not in the backup",
                file=sys.stderr,
            )
    return 0


def _environment(directory: Path) -> dict[str, str]:
    """Return the environment that the running node reads its settings with, or ours."""
    facts = read_lock(directory) if is_locked(directory) else None
    return dict(os.environ if facts is None else environment_of(facts.pid))


def _check_target(settings: Settings, target: Path) -> None:
    inside = (settings.directory, settings.log_directory, warehouse_path(settings))
    for place in inside:
        if target.resolve().is_relative_to(place.resolve()):
            raise ConfigurationError(
                f'"{target}" is inside "{place}", which is to be backed up',
                hint="Choose a directory elsewhere, if possible on another disk.",
            )


def _make(settings: Settings, catalog: Catalog, target: Path) -> BackupManifest:
    taken_at = datetime.now(UTC).isoformat()
    with contextlib.ExitStack() as stack:
        with late_spinner("holding the node's files"):
            moment = stack.enter_context(held_moment(settings, catalog))
        sources = {**_node_files(settings, moment), **moment.files}
        total = sum(path.stat().st_size for path in sources.values())
        with byte_bar("copying", total) as advance:
            copying = Copying(advance)
            files = tuple(
                copying.copy(sources[name], target / name, name, 0o600)
                for name in sorted(sources)
            )
            copying.sync()
    with late_spinner("checking the tables"):
        _check_tables(target, moment)
    manifest = BackupManifest(
        taken_at, __version__, catalog.system_identifier, moment.versions, files
    )
    write_manifest(target, manifest)
    read_manifest(target)
    return manifest


def _node_files(settings: Settings, moment: HeldNode) -> dict[str, Path]:
    """Return the files of the node's directory that are neither tables nor logs nor made anew."""
    directory = settings.directory
    apart = [
        settings.run_directory,
        settings.log_directory,
        warehouse_path(settings),
        directory / LOCK,
        # A restored log is older than the store, and must not go on there.
        directory / CLAIM,
    ]
    log_file = directory / (settings.node.log_file or "wal2lake.log")
    files = {f"{NODE}/catalog.sqlite": moment.catalog}
    for entry in directory.iterdir():
        if entry in apart:
            continue
        if str(entry).startswith((str(settings.catalog_file), str(log_file))):
            continue
        below = [entry]
        if entry.is_dir():
            below = [entry / name for name in names_below(entry, symlinks=True)]
        for path in below:
            if path.is_file() and not any(path.is_relative_to(p) for p in apart):
                files[f"{NODE}/{path.relative_to(directory)}"] = path
    assert f"{NODE}/{FILE_NAME}" in files
    return files


def _check_tables(target: Path, moment: HeldNode) -> None:
    for place, version in moment.versions.items():
        try:
            whole = are_present(LocalStore(target / WAREHOUSE / place), version)
        except UnreadableLog:
            # The table has a feature of a later protocol: its log is not read here.
            continue
        if not whole:
            raise StorageError(
                f'files of version {version} of the table "{place}" are missing',
                sqlstate="58030",
                hint="Repeat the backup; if it fails again, the table has lost files: VACUUM"
                " (VERBOSE, DRY_RUN) names them.",
            )


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[None]:
    """Create a directory that only its owner reads; remove it if the block fails."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
    except FileExistsError:
        raise ConfigurationError(
            f'"{directory}" exists already',
            hint="Name a directory that does not exist, or remove this one.",
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f'could not create directory "{directory}": {reason_of(error)}'
        ) from None
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that nothing is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
