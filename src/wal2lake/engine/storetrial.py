"""Tries whether a store can be used for tables, and takes its lease; or for the log.

    python -m wal2lake.engine.storetrial s3://bucket/lake
    python -m wal2lake.engine.storetrial s3://bucket/lake-log --log DIRECTORY

In: the URL, or for the log a path, too, and the node's directory; [store]'s settings and the node's
start (``HOLDER``) in the environment. Out: lines of JSON on standard output, ``{"waits": ...}``
while the same node may run elsewhere, and an error; exit code 0, or 1 after an error. A program of
its own because the supervisor, which calls it before the node listens, stays small: it imports no
client of a store. Called by ``launch.directory.storetrial``.

The trial does what a table needs: a conditional write, whose first one in a process is preceded by
the proof that the store obeys the condition; a list; a read; a removal, also of what killed trials
have left. Then it takes the lease, with which the engine goes on.

A store of the log that has the claim of the node's directory has worked before. It is not tried, as
a node may start while the store does not answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from wal2lake.archive import ClaimFile, store_of_log
from wal2lake.errors import StorageError, Wal2LakeError
from wal2lake.lake.store import (
    LEASE_PROOF,
    Entry,
    LocalStore,
    Store,
    lease_of,
    store_at,
)
from wal2lake.launch.wakeup import SIGNALS
from wal2lake.model import HOLDER, WarehouseHolder

_FOLDER: Final = "_wal2lake_trial"
"""Not the name of a schema: a leading underscore of one is encoded."""

_LEFT_SECONDS: Final = 86_400.0
"""Age from which an object was left by a trial that was killed. Most trials take a second."""

_CONTENT: Final = (
    b"A trial of a wal2lake node, which has ended before it removed this.\n"
)


def try_store(location: str) -> None:
    """Write, list, read and remove an object below a URL. Wal2LakeError says what fails."""
    store = store_at(location)
    assert store is not None
    _try(store)


def try_log(location: str, directory: Path) -> None:
    """Do the same in the store of the log of the node in ``directory``, if it has no claim
    there."""
    store = store_of_log(location)
    if ClaimFile(directory).read(store.location) is not None:
        return
    store.make_folder(_FOLDER)
    try:
        _try(store)
    finally:
        if isinstance(store, LocalStore):
            with suppress(OSError):
                (store.root / _FOLDER).rmdir()


def _try(store: Store) -> None:
    # A folder of its own, as a list goes through everything below.
    key = f"{_FOLDER}/{uuid.uuid4().hex}"
    store.put_if_absent(key, _CONTENT)
    try:
        objects = store.list_below(_FOLDER, lambda _: True)
        store.read(key)
        if key in objects:
            _sweep(store, objects, objects[key].written - _LEFT_SECONDS)
    finally:
        store.delete(key)


def _sweep(store: Store, trials: Mapping[str, Entry], until: float) -> None:
    """Remove objects of trials and of proofs of the lease that are not younger than ``until``."""
    folder, _, _ = LEASE_PROOF.rpartition("/")
    proofs = store.list_below(folder, lambda _: True)
    left = [key for key, entry in trials.items() if entry.written <= until]
    left += [
        key
        for key, entry in proofs.items()
        if key.startswith(LEASE_PROOF) and entry.written <= until
    ]
    with suppress(StorageError):
        store.delete_all(left)


def take_lease(location: str, start: WarehouseHolder) -> None:
    """Take the warehouse for a start of a node. Wal2LakeError says who has it."""
    lease = lease_of(location, start)
    lease.prove()
    lease.take(lambda holder: print(json.dumps({"waits": holder}), flush=True))


def main(location: str, directory: str | None) -> int:
    """Print the error, if there is one. ``directory``: of the node whose log's store this is."""
    # The node blocks signals while it starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        if directory is not None:
            try_log(location, Path(directory))
            return 0
        try_store(location)
        if HOLDER in os.environ:
            take_lease(location, WarehouseHolder.parse(os.environ[HOLDER]))
    except Wal2LakeError as error:
        fields = ("message", "sqlstate", "detail", "hint", "original")
        print(json.dumps({name: getattr(error, name) for name in fields}))
        return 1
    return 0


if __name__ == "__main__":
    place, *log = sys.argv[1:]
    sys.exit(main(place, log[1] if log else None))
