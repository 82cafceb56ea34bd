"""PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED.

    step                                             after a crash following it
    -----------------------------------------------  ------------------------------------------
    PREPARE     locks; conflicts are refused         nothing has happened
                new files into the tables            nothing has happened; VACUUM removes them
                the intent, in the catalog           rolled back, also in the publisher's log
                tables are held, locks released
                the publisher's log gets it
                the catalog marks it as prepared     prepared
    COMMIT      locks; mark in the catalog           ``recovery`` does the rest
    PREPARED    one commit in each table             likewise
                visible; the record is removed       done
    ROLLBACK    mark in the catalog                  rolled back, as above
    PREPARED    the publisher's log gets it; the
                record is removed

Between PREPARE and the end of the transaction, nobody of this node writes the tables
(``heldtables``), so COMMIT PREPARED cannot meet a conflict. For a table that a subscription writes,
that cannot be guaranteed: 0A000.

Called by the backend of a session, from its thread. Source: PostgreSQL manual, PREPARE TRANSACTION;
src/backend/access/transam/twophase.c.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

from wal2lake.catalog import (
    PreparedCommit,
    PreparedState,
    Role,
    TableChange,
    TableDef,
    local_writer,
)
from wal2lake.errors import (
    FeatureNotSupportedError,
    StorageError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.lake import CommitConflict
from wal2lake.lake.capture import (
    CommitRemarks,
    Emitted,
    moved_from,
    read_commit,
    with_remarks,
)
from wal2lake.lake.store import store_at
from wal2lake.local.commits.commit import (
    WrittenTable,
    changes_of,
    finish,
    hold_tables,
    make_visible,
    on_newest,
)
from wal2lake.local.concurrency.heldtables import name_of
from wal2lake.local.node import PERMISSION_DENIED
from wal2lake.local.ports import (
    HasCatalog,
    HasPublishing,
    HasSettings,
    HasTables,
    LocalCommits,
)
from wal2lake.model import Oid
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import Check
from wal2lake.publish.capture.requests import Preparation
from wal2lake.publish.capture.worker import Capture
from wal2lake.sql.query.results import Rendering

_GID_BYTES: Final = 200

_EPOCH_US: Final = 946_684_800_000_000


@dataclass(frozen=True, slots=True)
class Preparing:
    """Identity and owner of a prepared transaction, and its session's means."""

    gid: str
    owner: Oid
    rendering: Rendering
    job_group: str
    check: Check


def check_prepare(node: HasSettings, gid: str) -> None:
    """Raise 22023 for an identifier that is too long, 55000 if prepared transactions are off."""
    if len(gid.encode()) >= _GID_BYTES:
        raise UsageError(
            f'transaction identifier "{gid}" is too long', sqlstate="22023"
        )
    if node.settings.node.max_prepared_transactions == 0:
        raise UsageError(
            "prepared transactions are disabled",
            sqlstate="55000",
            hint='Set "max_prepared_transactions" to a nonzero value.',
        )


def prepare(
    node: LocalCommits,
    preparing: Preparing,
    xid: int,
    written: Sequence[WrittenTable],
    messages: Sequence[Emitted],
    settled: Callable[[], AbstractContextManager[None]],
) -> None:
    """Prepare the writes of transaction ``xid``; after an error nothing has happened.

    ``settled``: as for ``commit_tables``."""
    check_prepare(node, preparing.gid)
    with node.prepared.busy(preparing.gid):
        transaction = _record(node, preparing, xid, written, messages, settled)
        try:
            failpoint("prepare.recorded")
            capture = _capture(node)
            if capture is not None:
                capture.prepare(_preparation(transaction, xid))
            failpoint("prepare.logged")
            node.catalog.move_prepared(transaction.number, PreparedState.PREPARED)
        except BaseException:
            _undo(node, transaction)
            raise


def _record(
    node: LocalCommits,
    preparing: Preparing,
    xid: int,
    written: Sequence[WrittenTable],
    messages: Sequence[Emitted],
    settled: Callable[[], AbstractContextManager[None]],
) -> PreparedCommit:
    """Record the intent and hold its tables."""
    with ExitStack() as held:
        hold_tables(node, (table.table for table in written), held, preparing.check)
        held.enter_context(settled())
        for table in (table.table for table in written):
            names = set(node.catalog.sharing(table))
            if any(rel.relid in names for rel in node.catalog.rels()):
                raise FeatureNotSupportedError(
                    f'cannot PREPARE a transaction that has written table "{table.name}",'
                    " which belongs to a subscription"
                )
        _check_room(node)
        changes = changes_of(
            node, written, preparing.rendering, preparing.job_group, xid
        )
        transaction = PreparedCommit(
            0,
            preparing.gid,
            preparing.owner,
            time.time_ns() // 1000 - _EPOCH_US,
            tuple(changes),
            tuple(messages),
            xid=xid,
        )
        number = node.catalog.begin_prepare(transaction)
        if number is None:
            raise UsageError(
                f'transaction identifier "{preparing.gid}" is already in use',
                sqlstate="42710",
            )
        transaction = replace(transaction, number=number)
        node.prepared.hold(transaction)
        return transaction


def _check_room(node: HasSettings) -> None:
    most = node.settings.node.max_prepared_transactions
    if len(node.catalog.prepared_commits()) >= most:
        raise UsageError(
            "maximum number of prepared transactions reached",
            sqlstate="53200",
            hint=f'Increase "max_prepared_transactions" (currently {most}).',
        )


def _preparation(transaction: PreparedCommit, xid: int) -> Preparation:
    commits = []
    for change in transaction.tables:
        moved = moved_from(change.moved)
        metadata = CommitRemarks(
            (), None, change.truncate_options, moved, change.updated
        )
        word = with_remarks("truncate" if change.truncates else "prepare", metadata)
        actions = [{"commitInfo": {"userMetadata": word}}, *change.actions]
        commits.append((change.relid, read_commit(change.read_version, actions)))
    emitted = [Emitted(*message) for message in transaction.messages]
    return Preparation(
        transaction.number,
        transaction.gid,
        transaction.prepared_at,
        tuple(commits),
        emitted,
        xid,
    )


def _undo(node: LocalCommits, transaction: PreparedCommit) -> None:
    """Undo a PREPARE that failed, or that its client rolls back.

    If the log cannot be written now, the next engine writes it. The mark keeps the transaction
    from being committed."""
    try:
        node.catalog.move_prepared(transaction.number, PreparedState.ROLLING_BACK)
        _roll_back(node, transaction)
    except (Wal2LakeError, TimeoutError) as error:
        get_logger().error(
            "could not roll back a prepared transaction yet", exc_info=error
        )


def _roll_back(node: LocalCommits, transaction: PreparedCommit) -> None:
    failpoint("rollback_prepared.recorded")
    capture = _capture(node)
    if capture is not None:
        capture.roll_back_prepared(transaction.number)
    failpoint("rollback_prepared.logged")
    _remove_files(node, transaction.tables)
    node.catalog.end_prepared(transaction.number)
    node.prepared.release(transaction.number)


def _remove_files(node: HasCatalog, changes: Sequence[TableChange]) -> None:
    """Remove the new files, which will not be in any version."""
    for change in changes:
        store = store_at(change.location)
        if store is not None:
            store.delete_all(_new_files(change))


def _new_files(change: TableChange) -> list[str]:
    before = {a["remove"]["path"] for a in change.actions if "remove" in a}
    added = [a["add"]["path"] for a in change.actions if "add" in a]
    return [unquote(path) for path in added if path not in before]


# ---- the second phase ------------------------------------------------------------------


def finish_prepared(
    node: LocalCommits, gid: str, role: Role, check: Check, *, commit: bool
) -> None:
    """COMMIT PREPARED or ROLLBACK PREPARED; 42704, 42501, 55000 as PostgreSQL."""
    with node.prepared.busy(gid):
        transaction = _need(node, gid, role)
        if commit:
            _commit(node, transaction, check)
            return
        node.catalog.move_prepared(transaction.number, PreparedState.ROLLING_BACK)
        _roll_back(node, transaction)


def _commit(node: LocalCommits, transaction: PreparedCommit, check: Check) -> None:
    """Commit a prepared transaction.

    40001 if a writer outside of the node has changed the same; the transaction stays prepared."""
    if not transaction.tables:
        node.catalog.move_prepared(transaction.number, PreparedState.COMMITTING)
        failpoint("commit_prepared.recorded")
        _commit_messages(node, transaction)
        return
    with ExitStack() as held:
        tables = [_table(node, change) for change in transaction.tables]
        hold_tables(node, tables, held, check, transaction.number)
        changes = _changes(node, transaction, tables)
        node.catalog.move_prepared(
            transaction.number, PreparedState.COMMITTING, tables=changes
        )
        failpoint("commit_prepared.recorded")
        before = {change.location: change.read_version for change in changes}
        with node.snapshots.committing(before) as publish:
            finish(
                node,
                changes,
                name_of(transaction),
                lambda: publish(lambda: make_visible(node, changes)),
                lambda: node.catalog.move_prepared(
                    transaction.number, PreparedState.PREPARED
                ),
            )
        failpoint("commit_prepared.published")
        node.catalog.end_prepared(transaction.number)
        node.prepared.release(transaction.number)


def _changes(
    node: HasTables, transaction: PreparedCommit, tables: Sequence[TableDef]
) -> list[TableChange]:
    """Return the changes for the tables' present versions. Needs the tables' locks."""
    writer = local_writer(node.catalog.system_identifier)
    changes = []
    for change, table in zip(transaction.tables, tables, strict=True):
        now = on_newest(node, change)
        state = node.tables.state(change.location)
        if now.read_version != state.version or state.table_id != change.table_id:
            raise CommitConflict(
                "could not serialize access due to concurrent update",
                detail=f'Table "{table.name}" has been changed by a writer outside of the'
                " node since the transaction was prepared.",
                hint="ROLLBACK PREPARED, and run the transaction again.",
            )
        _check_files(table, change)
        changes.append(replace(now, cursor=(state.cursor(writer) or 0) + 1))
    changes[0] = replace(changes[0], messages=transaction.messages)
    return changes


def _check_files(table: TableDef, change: TableChange) -> None:
    """Check that the files still exist: VACUUM does not know files without a version."""
    store = store_at(change.location)
    if store is None:
        return
    files = _new_files(change)
    present = store.entries(files)
    for file in files:
        if file not in present:
            place = f"{store.location}/{file}"
            raise StorageError(
                f'a file of the prepared transaction is not there any more: "{place}"',
                sqlstate="58P01",
                detail=f'VACUUM may have removed it from table "{table.name}".',
                hint="ROLLBACK PREPARED, and run the transaction again.",
            )


def finish_interrupted(node: LocalCommits) -> None:
    """Complete interrupted ends at the engine's start, once the publisher's log is writable."""
    for transaction in node.catalog.prepared_commits():
        end: Callable[[LocalCommits, PreparedCommit], None] = _commit_messages
        if transaction.state is PreparedState.ROLLING_BACK:
            end = _roll_back
        elif transaction.state is not PreparedState.COMMITTING:
            continue
        try:
            end(node, transaction)
        except (Wal2LakeError, TimeoutError) as error:
            get_logger().error("could not end a prepared transaction", exc_info=error)


def _commit_messages(node: HasPublishing, transaction: PreparedCommit) -> None:
    """Commit a transaction that has not written any table."""
    capture = _capture(node)
    if capture is not None:
        messages = [Emitted(*message) for message in transaction.messages]
        capture.commit_prepared(transaction.number, messages, transaction.xid)
    node.catalog.end_prepared(transaction.number)


def _need(node: HasCatalog, gid: str, role: Role) -> PreparedCommit:
    for transaction in node.catalog.prepared_commits():
        if transaction.gid == gid and transaction.state is PreparedState.PREPARED:
            if not role.superuser and role.oid != transaction.owner:
                raise UsageError(
                    "permission denied to finish prepared transaction",
                    sqlstate=PERMISSION_DENIED,
                    hint="Must be superuser or the user that prepared the transaction.",
                )
            return transaction
    raise UndefinedObjectError(
        f'prepared transaction with identifier "{gid}" does not exist', sqlstate="42704"
    )


def _table(node: HasCatalog, change: TableChange) -> TableDef:
    table = node.catalog.table_by_oid(change.relid)
    if table is None:
        raise UndefinedObjectError(
            "a table of the prepared transaction does not exist any more",
            sqlstate="42P01",
            hint="ROLLBACK PREPARED ends it.",
        )
    return table


def _capture(node: HasPublishing) -> Capture | None:
    return None if node.publishing is None else node.publishing.capture
