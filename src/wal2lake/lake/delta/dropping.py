"""Removes the objects of a table, the log last.

In: the store of a table. Out: an empty prefix. Called by ``spark.delta.deltatables`` for object
stores; a directory goes with Hadoop's calls.

A drop that is killed leaves a table to the end, so that the next CREATE TABLE of its name finds
whose it was and drops it again. So the files go first, then the log from the newest version down:
what is left of the log is readable. Sidecars of checkpoints go at the very end; alone they are no
table.
"""

from __future__ import annotations

from collections.abc import Iterable

from wal2lake.errors import StorageError
from wal2lake.lake.delta.log.place import LOG
from wal2lake.lake.store import Store


def drop_objects(store: Store) -> None:
    """Remove everything below a table's location. 58000 if there is something but no table."""
    present = store.list_below("", lambda folder: True)
    if present and not any(key.startswith(f"{LOG}/") for key in present):
        raise not_a_table(store.location)
    for part in _in_order(present):
        store.delete_all(part)


def not_a_table(location: str) -> StorageError:
    """Build the error of a location with files of others."""
    return StorageError(
        f'directory "{location}" is not a Delta table',
        sqlstate="58000",
        hint="It is left as it is; remove it by hand if it is not needed.",
    )


def _in_order(present: Iterable[str]) -> list[list[str]]:
    files: list[str] = []
    log: list[str] = []
    sidecars: list[str] = []
    for key in sorted(present):
        if not key.startswith(f"{LOG}/"):
            files.append(key)
        elif key.count("/") > 1:
            sidecars.append(key)
        else:
            log.append(key)
    # A name that does not begin with a version, as _last_checkpoint, comes after those that do.
    return [files, log[::-1], sidecars]
