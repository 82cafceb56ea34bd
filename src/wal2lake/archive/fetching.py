"""Makes the directory of a node whose machine is lost, from what its store has.

    claim        the next generation: from here on the former directory stores nothing more
    catalog      the newest image: catalog, settings, password file ...
    logs         each subscription's segments without a gap, and its file ``confirmed``
    settings     written last: a directory without them is no node

Everything is fsynced. What cannot go on is in the answer, for the caller to say: slots of the
node's own subscribers, whose log was on the lost disk. Called by ``wal2lake init --from``.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from wal2lake.archive import layout
from wal2lake.archive.catalogs import CATALOG
from wal2lake.archive.claims import ClaimFile, Claims, NodeClaim, superseded
from wal2lake.archive.opening import store_of_log
from wal2lake.archive.segments import log_in_store
from wal2lake.catalog import RevivedCatalog, RevivedSubscription, revive
from wal2lake.changelog.confirmed import ConfirmedFile
from wal2lake.changelog.files import (
    storage_error,
    sync_directory,
    sync_file,
    write_temporary,
)
from wal2lake.errors import ConfigurationError, StorageError
from wal2lake.lake.store import MissingFileError, Store
from wal2lake.model import Lsn
from wal2lake.settings import FILE_NAME, Settings

_LISTINGS: Final = 5
"""Most listings of a log, each after a segment that the one before had was gone. A node removes
segments once a minute, so two are enough but for a store that does not list what it has."""


@dataclass(frozen=True, slots=True)
class FetchedNode:
    """A node that was fetched, apart from its logs."""

    claim: NodeClaim
    former: NodeClaim
    """The claim of the directory that was the node before."""
    catalog: RevivedCatalog
    settings: str
    """Text of ``wal2lake.toml``, which is not written yet."""
    store: Store
    generations: tuple[int, ...]

    def fetch_logs(self, settings: Settings) -> int:
        """Fetch the subscriptions' logs; return the number of segments."""
        count = 0
        _make(settings.log_directory)
        made: list[Path] = []
        try:
            for subscription in self.catalog.subscriptions:
                directory = settings.log_directory / str(subscription.oid)
                _make_new(directory)
                made.append(directory)
                count += self._fetch_log(subscription, directory)
        except BaseException:
            # The command can be repeated.
            for directory in made:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        sync_directory(settings.log_directory)
        return count

    def _fetch_log(self, subscription: RevivedSubscription, directory: Path) -> int:
        log = layout.log_name(subscription.oid, subscription.log)
        segments = self._fetch_segments(log, directory)
        for generation in reversed(self.generations):
            key = f"{layout.log_folder(log, generation)}/{layout.CONFIRMED}"
            try:
                self._fetch(key, directory / layout.CONFIRMED)
            except MissingFileError:
                continue
            break
        else:
            # Without the file the slot's position would be trusted, whatever it is.
            with ConfirmedFile.open(directory) as confirmed:
                confirmed.record(subscription.slot_name, Lsn(subscription.floor))
        sync_directory(directory)
        return segments

    def _fetch_segments(self, log: str, directory: Path) -> int:
        """Fetch a log's segments, and what is prepared at their end; return the number of segments.
        The former node may be removing the oldest ones: it looks at the claims before it does, and
        a removal may last."""
        for rest in reversed(range(_LISTINGS)):
            try:
                stored = log_in_store(self.store, log, list(self.generations))
                for folder, names in stored.segments.values():
                    for name in names:
                        self._fetch(f"{folder}/{name}", directory / name)
                for key in () if stored.record is None else stored.record.keys:
                    self._fetch(key, directory / layout.transaction_file(key))
            except MissingFileError:
                if not rest:
                    raise
                for path in directory.iterdir():
                    path.unlink()
            else:
                break
        return len(stored.segments)

    def _fetch(self, key: str, path: Path) -> None:
        content = self.store.read(key)
        try:
            write_temporary(path, content).rename(path)
        except OSError as error:
            raise storage_error("write to file", path, error) from error


def fetch_node(location: str, directory: Path) -> FetchedNode:
    """Claim the node of a store for an empty directory, and fetch everything but its logs.

    Raises ConfigurationError if there is none; StorageError, Superseded."""
    store = store_of_log(location.rstrip("/"))
    claims = Claims(store)
    former = claims.newest()
    if former is None:
        raise ConfigurationError(
            f'there is no node in "{location}"',
            hint='Name the URL that "store" of [log] has, or had by default: the warehouse\'s'
            ' with "-log" at its end.',
        )
    images = [
        image
        for name in store.list_after(layout.CATALOGS)
        if (image := layout.catalog_of(name)) is not None
    ]
    if not images:
        raise ConfigurationError(
            f'the node in "{location}" has not stored its catalog yet',
            hint="Make a new node with wal2lake init, and its subscriptions again.",
        )
    # An image that cannot be read must not end the former node.
    newest = max(images)
    key = f"{layout.CATALOGS}/{layout.catalog_name(*newest)}"
    with TemporaryDirectory(prefix="wal2lake-") as trial:
        _unpack(store.read(key), Path(trial), f"{store.location}/{key}")
    claim = NodeClaim.new(former.generation + 1, former.system_identifier)
    ClaimFile(directory).write(store.location, claim)
    if not claims.put(claim):
        raise superseded(store.location)
    # Listed again: until the claim was there, the former node may have put another.
    names = map(layout.catalog_of, store.list_after(layout.CATALOGS))
    newest = max(image for image in names if image is not None)
    key = f"{layout.CATALOGS}/{layout.catalog_name(*newest)}"
    settings = _unpack(store.read(key), directory, f"{store.location}/{key}")
    catalog = revive(directory / CATALOG)
    sync_file(directory / CATALOG)
    sync_directory(directory)
    return FetchedNode(
        claim, former, catalog, settings, store, tuple(claims.generations())
    )


def _unpack(content: bytes, directory: Path, place: str) -> str:
    """Write the files of an image; return the text of the settings."""
    settings = None
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file is None or not _is_below(member.name):
                    raise tarfile.TarError(member.name)
                data = file.read()
                if member.name == FILE_NAME:
                    settings = data.decode()
                    continue
                path = directory / member.name
                _make_folders(directory, path.parent)
                write_temporary(path, data).rename(path)
                path.chmod(member.mode & 0o700)
                sync_directory(path.parent)
    except OSError as error:
        raise storage_error("write to file", directory, error) from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise _damaged(place) from error
    if settings is None or not (directory / CATALOG).exists():
        raise _damaged(place)
    return settings


def _is_below(name: str) -> bool:
    """Whether a name in an image is a relative one that leads out of no directory."""
    return not any(part.startswith(".") or not part for part in name.split("/"))


def _make_folders(directory: Path, folder: Path) -> None:
    """Make a folder of the directory, durably, which only its owner reads."""
    if folder != directory and not folder.is_dir():
        _make_folders(directory, folder.parent)
        folder.mkdir(mode=0o700)
        sync_directory(folder.parent)


def _damaged(place: str) -> StorageError:
    return StorageError(
        f'file "{place}" is damaged',
        sqlstate="XX001",
        hint="Remove it, and use the image before it: run wal2lake init --from again.",
    )


def _make_new(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        raise ConfigurationError(
            f'"{directory}" exists already',
            hint="The log's directory has the log of another node: remove that, or"
            " set WAL2LAKE_LOG_DIRECTORY to another directory.",
        ) from None
    except OSError as error:
        raise storage_error("create directory", directory, error) from error


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("create directory", directory, error) from error
