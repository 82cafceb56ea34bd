"""``wal2lake init --from``: makes the directory of a node whose machine is lost.

In: the URL of the log's store, a new directory. Out: a node that goes on where the store ends, and
words about what does not go on. The options of the store's client come from the environment
(WAL2LAKE_STORE_*), since the settings are in the store. Called by ``init``.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from wal2lake.archive import FetchedNode, fetch_node
from wal2lake.changelog.files import sync_directory, write_temporary
from wal2lake.cli.restore.rewriting import with_value
from wal2lake.cli.terminal.progress import late_spinner
from wal2lake.settings import FILE_NAME, Settings, load


def fetch(location: str, directory: Path, named: Path) -> None:
    """Fetch the node into an empty directory, and print the next step. ``named`` is the directory
    as the user wrote it."""
    with late_spinner("fetching the node"):
        node = fetch_node(location, directory)
        text, settings = _settings(node, directory)
        for path in (settings.run_directory, directory / "warehouse"):
            path.mkdir(mode=0o700, exist_ok=True)
        segments = node.fetch_logs(settings)
        write_temporary(directory / FILE_NAME, text.encode()).rename(
            directory / FILE_NAME
        )
        sync_directory(directory)
        sync_directory(directory.parent)
    count = len(node.catalog.subscriptions)
    print(
        f'made "{directory}" from "{node.store.location}": {count}'
        f" subscription{'' if count == 1 else 's'}, {segments}"
        f" segment{'' if segments == 1 else 's'} of their logs"
    )
    print(
        f"the directory on {node.former.host} that was this node stores and confirms nothing"
        " more; do not start it again"
    )
    for name in node.catalog.slots:
        print(
            f'warning: replication slot "{name}" is gone, because the log that it read was on the'
            " lost disk: its subscriber must be made anew and copy its tables"
        )
    print("\nSuccess. You can now start it:\n")
    print(f"    wal2lake start -D {named}\n")


def _settings(node: FetchedNode, directory: Path) -> tuple[str, Settings]:
    """Return the settings with the store that the node was fetched from."""
    text = node.settings
    settings = _read(text, directory)
    if settings.log_store != node.store.location:
        text = with_value(text, "log", "store", node.store.location)
        settings = _read(text, directory)
    return text, settings


def _read(text: str, directory: Path) -> Settings:
    """Read a text as the settings of a directory that does not have them yet."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_text(text, encoding="utf-8")
        read = load(Path(folder), os.environ)
    # Paths are relative to the node's directory.
    return replace(read, directory=directory)
