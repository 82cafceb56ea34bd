"""The files of tables that a transaction block makes or drops, until its end and after a crash.

    event                       catalog's record    files
    ------------------------    ----------------    ------------------------------------------
    a block makes a table       written before      made
    COMMIT                      removed with it     stay
    ROLLBACK, ROLLBACK TO       removed after       removed
    DROP TABLE, in its commit   written             removed afterwards; then the record goes
    start of the node           removed after       removed, unless a table has the place

No other table is made at such a place meanwhile (``unfinished``).

Called by ``commands.tables`` and ``transaction.recovery``. Source: storage.c, PendingRelDelete.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from wal2lake.catalog import TableDef
from wal2lake.errors import Wal2LakeError
from wal2lake.local.concurrency.blocks import OpenBlock
from wal2lake.local.ports import HasTables, TableDefinitions
from wal2lake.model import Oid
from wal2lake.observe import get_logger

OWNER_PROPERTY: Final = "wal2lake.table"
"""Table property: ``<node>:<table OID>`` of the catalog entry it was created for."""


def reserve(
    node: TableDefinitions, block: OpenBlock, tables: Sequence[TableDef]
) -> None:
    """Reserve the places of tables that a block is about to make. Needs the DDL lock."""
    node.catalog.expect_deletes({table.location: table.oid for table in tables})
    for table in tables:
        node.unfinished.add(table.location.lower())
        block.made.append(table.location)
        block.on_rollback(partial(remove_files, node, table.location))
        block.afterwards.append(partial(_release, location=table.location))


def remove_later(node: TableDefinitions, block: OpenBlock, table: TableDef) -> None:
    """Remove the files of a table that a block has dropped, once it has committed."""
    place = table.location.lower()
    is_reserved = place in node.unfinished
    node.unfinished.add(place)
    block.dropped.append(table.location)
    if not is_reserved:
        block.on_rollback(lambda: node.unfinished.discard(place))
    block.afterwards.append(partial(remove_files, location=table.location))


def remove_files(node: TableDefinitions, location: str) -> None:
    """Remove the files of a table that the catalog does not name any more.

    A failure is logged: the next start of the node tries again."""
    try:
        remove_now(node, location)
    except Wal2LakeError as error:
        get_logger().warning(
            "could not remove the files of a table, which is tried again at the next start",
            location=location,
            error=error,
        )


def remove_now(node: TableDefinitions, location: str) -> None:
    """Remove the files of a table that the catalog does not name any more, or raise why not."""
    try:
        # A running statement must not write into the next table of that place.
        with node.tables.writing(location):
            node.tables.drop(location)
        node.catalog.deleted(location)
    except Wal2LakeError:
        if not node.tables.exists(location):
            # Files that are no table are not removed at a start either.
            node.catalog.deleted(location)
        raise
    finally:
        _release(node, location)


def _release(node: TableDefinitions, location: str) -> None:
    node.unfinished.discard(location.lower())


def sweep(node: HasTables) -> None:
    """Remove files that a crash has left, before anybody makes tables."""
    locations = node.catalog.locations()
    for location, oid in node.catalog.pending_deletes().items():
        try:
            if location not in locations and _belongs_to(node, location, oid):
                node.tables.drop(location)
            node.catalog.deleted(location)
        except Wal2LakeError as error:
            get_logger().warning(
                "could not remove the files of a table, which is tried again at the next start",
                location=location,
                error=error,
            )


def _belongs_to(node: HasTables, location: str, oid: Oid) -> bool:
    """Whether the files at a place are those of this node's table ``oid``."""
    if not node.tables.exists(location):
        return False
    owner = f"{node.catalog.system_identifier}:{oid}"
    return node.tables.state(location).properties.get(OWNER_PROPERTY) == owner
