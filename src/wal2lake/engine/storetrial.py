"""Tries whether tables can be written below the URL of an object store.

    python -m wal2lake.engine.storetrial s3://bucket/lake

In: the URL, and [store]'s settings in the environment. Out: exit code 0, or 1 with an error as JSON
on standard output. A program of its own because the supervisor, which calls it before the node
listens, stays small: it imports no client of a store. Called by ``launch.directory.warehouse``.

The trial does what a table needs: a conditional write, whose first one in a process is preceded by
the proof that the store obeys the condition; a list; a read; a removal.
"""

from __future__ import annotations

import json
import signal
import sys
import uuid
from typing import Final

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.store import store_at
from wal2lake.launch.wakeup import SIGNALS

_FOLDER: Final = "_wal2lake_trial"
"""Not the name of a schema: a leading underscore of one is encoded."""

_CONTENT: Final = (
    b"A trial of a wal2lake node, which has ended before it removed this.\n"
)


def try_store(location: str) -> None:
    """Write, list, read and remove an object below a URL. Wal2LakeError says what fails."""
    store = store_at(location)
    assert store is not None
    # A folder of its own, as a list goes through everything below.
    key = f"{_FOLDER}/{uuid.uuid4().hex}"
    store.put_if_absent(key, _CONTENT)
    try:
        store.list_after(_FOLDER)
        store.read(key)
    finally:
        store.delete(key)


def main(location: str) -> int:
    """Print the error, if there is one."""
    # The node blocks signals while it starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        try_store(location)
    except Wal2LakeError as error:
        fields = ("message", "sqlstate", "detail", "hint", "original")
        print(json.dumps({name: getattr(error, name) for name in fields}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
