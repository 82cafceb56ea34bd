"""PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED.

    step                                             a crash behind it
    -----------------------------------------------  ------------------------------------------
    PREPARE     locks; has anybody else changed it   nothing has happened
                new files into the tables            nothing has happened; VACUUM takes them
                the intent, in the catalog           is rolled back, also in the publisher's log
                the tables are held, locks given back
                the publisher's log has it
                the catalog says so                  is prepared
    COMMIT      locks; the catalog says so           ``recovery`` does the rest
    PREPARED    one commit in each table             likewise
                visible; forgotten                   done
    ROLLBACK    the catalog says so                  is rolled back, as above
    PREPARED    the publisher's log has it; forgotten

Between PREPARE and its end nobody of this node writes the tables (``heldtables``), so it can end as
it was promised. Of a table that a subscription writes nobody could promise that: 0A000.

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
from wal2lake.lake.capture.commits import read_commit
from wal2lake.lake.capture.messages import Emitted, More, with_more
from wal2lake.lake.capture.moves import moved_from
from wal2lake.lake.delta.durability import local_path
from wal2lake.local.commits.commit import (
    WrittenTable,
    changes_of,
    finish,
    hold_tables,
    make_visible,
    on_newest,
)
from wal2lake.local.concurrency.heldtables import name_of
from wal2lake.local.node import PERMISSION_DENIED, EngineParts
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


def check_prepare(node: EngineParts, gid: str) -> None:
    """22023 for an identifier that is too long, 55000 if there can be none."""
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
    node: EngineParts,
    who: Preparing,
    xid: int,
    written: Sequence[WrittenTable],
    messages: Sequence[Emitted],
    settled: Callable[[], AbstractContextManager[None]],
) -> None:
    """Prepare what transaction ``xid`` has written; nothing has happened after an error.
    ``settled``: see ``commit_tables``."""
    check_prepare(node, who.gid)
    with node.prepared.busy(who.gid):
        one = _record(node, who, xid, written, messages, settled)
        try:
            failpoint("prepare.recorded")
            capture = _capture(node)
            if capture is not None:
                capture.prepare(_preparation(one, xid))
            failpoint("prepare.logged")
            node.catalog.move_prepared(one.number, PreparedState.PREPARED)
        except BaseException:
            _undo(node, one)
            raise


def _record(
    node: EngineParts,
    who: Preparing,
    xid: int,
    written: Sequence[WrittenTable],
    messages: Sequence[Emitted],
    settled: Callable[[], AbstractContextManager[None]],
) -> PreparedCommit:
    """The intent, with its tables held."""
    with ExitStack() as held:
        hold_tables(node, (one.table for one in written), held, who.check)
        held.enter_context(settled())
        for table in (one.table for one in written):
            names = set(node.catalog.sharing(table))
            if any(rel.relid in names for rel in node.catalog.rels()):
                raise FeatureNotSupportedError(
                    f'cannot PREPARE a transaction that has written table "{table.name}",'
                    " which belongs to a subscription"
                )
        _check_room(node)
        changes = changes_of(node, written, who.rendering, who.job_group, xid)
        one = PreparedCommit(
            0,
            who.gid,
            who.owner,
            time.time_ns() // 1000 - _EPOCH_US,
            tuple(changes),
            tuple(messages),
            xid=xid,
        )
        number = node.catalog.begin_prepare(one)
        if number is None:
            raise UsageError(
                f'transaction identifier "{who.gid}" is already in use',
                sqlstate="42710",
            )
        one = replace(one, number=number)
        node.prepared.hold(one)
        return one


def _check_room(node: EngineParts) -> None:
    most = node.settings.node.max_prepared_transactions
    if len(node.catalog.prepared_commits()) >= most:
        raise UsageError(
            "maximum number of prepared transactions reached",
            sqlstate="53200",
            hint=f'Increase "max_prepared_transactions" (currently {most}).',
        )


def _preparation(one: PreparedCommit, xid: int) -> Preparation:
    commits = []
    for change in one.tables:
        moved = moved_from(change.moved)
        said = More((), None, change.truncate_options, moved, change.updated)
        word = with_more("truncate" if change.truncates else "prepare", said)
        actions = [{"commitInfo": {"userMetadata": word}}, *change.actions]
        commits.append((change.relid, read_commit(change.read_version, actions)))
    emitted = [Emitted(*message) for message in one.messages]
    return Preparation(
        one.number, one.gid, one.prepared_at, tuple(commits), emitted, xid
    )


def _undo(node: EngineParts, one: PreparedCommit) -> None:
    """Undo a PREPARE that fails, or whose client rolls back. If the log cannot be written now, the
    next engine writes it, and must not let the transaction commit."""
    try:
        node.catalog.move_prepared(one.number, PreparedState.ROLLING_BACK)
        _roll_back(node, one)
    except (Wal2LakeError, TimeoutError) as error:
        get_logger().error(
            "a prepared transaction is not rolled back yet", exc_info=error
        )


def _roll_back(node: EngineParts, one: PreparedCommit) -> None:
    failpoint("rollback_prepared.recorded")
    capture = _capture(node)
    if capture is not None:
        capture.roll_back_prepared(one.number)
    failpoint("rollback_prepared.logged")
    _remove_files(node, one.tables)
    node.catalog.end_prepared(one.number)
    node.prepared.let_go(one.number)


def _remove_files(node: EngineParts, changes: Sequence[TableChange]) -> None:
    """Remove the new files, which no version will have."""
    for change in changes:
        root = local_path(change.location)
        for file in _new_files(change) if root is not None else ():
            assert root is not None
            (root / file).unlink(missing_ok=True)


def _new_files(change: TableChange) -> list[str]:
    before = {a["remove"]["path"] for a in change.actions if "remove" in a}
    added = [a["add"]["path"] for a in change.actions if "add" in a]
    return [unquote(path) for path in added if path not in before]


# ---- the second phase ------------------------------------------------------------------


def finish_prepared(
    node: EngineParts, gid: str, role: Role, check: Check, *, commit: bool
) -> None:
    """COMMIT PREPARED, or ROLLBACK PREPARED. 42704, 42501, 55000 as PostgreSQL."""
    with node.prepared.busy(gid):
        one = _need(node, gid, role)
        if commit:
            _commit(node, one, check)
            return
        node.catalog.move_prepared(one.number, PreparedState.ROLLING_BACK)
        _roll_back(node, one)


def _commit(node: EngineParts, one: PreparedCommit, check: Check) -> None:
    """40001 if somebody outside of the node has changed the same; it is prepared
    then as before."""
    if not one.tables:
        node.catalog.move_prepared(one.number, PreparedState.COMMITTING)
        failpoint("commit_prepared.recorded")
        _commit_messages(node, one)
        return
    with ExitStack() as held:
        tables = [_table(node, change) for change in one.tables]
        hold_tables(node, tables, held, check, one.number)
        changes = _changes(node, one, tables)
        node.catalog.move_prepared(one.number, PreparedState.COMMITTING, tables=changes)
        failpoint("commit_prepared.recorded")
        before = {change.location: change.read_version for change in changes}
        with node.snapshots.committing(before) as publish:
            finish(
                node,
                changes,
                name_of(one),
                lambda: publish(lambda: make_visible(node, changes)),
                lambda: node.catalog.move_prepared(one.number, PreparedState.PREPARED),
            )
        failpoint("commit_prepared.published")
        node.catalog.end_prepared(one.number)
        node.prepared.let_go(one.number)


def _changes(
    node: EngineParts, one: PreparedCommit, tables: Sequence[TableDef]
) -> list[TableChange]:
    """Return the changes as they are to be committed now, under the tables' locks."""
    writer = local_writer(node.catalog.system_identifier)
    found = []
    for change, table in zip(one.tables, tables, strict=True):
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
        found.append(replace(now, cursor=(state.cursor(writer) or 0) + 1))
    found[0] = replace(found[0], messages=one.messages)
    return found


def _check_files(table: TableDef, change: TableChange) -> None:
    """VACUUM knows nothing of files that no version has."""
    root = local_path(change.location)
    for file in _new_files(change) if root is not None else ():
        assert root is not None
        if not (root / file).exists():
            raise StorageError(
                f'a file of the prepared transaction is not there any more: "{root / file}"',
                sqlstate="58P01",
                detail=f'VACUUM may have removed it from table "{table.name}".',
                hint="ROLLBACK PREPARED, and run the transaction again.",
            )


def finish_interrupted(node: EngineParts) -> None:
    """At the engine's start, once the publisher's log can be written: what a crash has left."""
    for one in node.catalog.prepared_commits():
        end: Callable[[EngineParts, PreparedCommit], None] = _commit_messages
        if one.state is PreparedState.ROLLING_BACK:
            end = _roll_back
        elif one.state is not PreparedState.COMMITTING:
            continue
        try:
            end(node, one)
        except (Wal2LakeError, TimeoutError) as error:
            get_logger().error("a prepared transaction has not ended", exc_info=error)


def _commit_messages(node: EngineParts, one: PreparedCommit) -> None:
    """Commit a transaction that has written no table."""
    capture = _capture(node)
    if capture is not None:
        messages = [Emitted(*found) for found in one.messages]
        capture.commit_prepared(one.number, messages, one.xid)
    node.catalog.end_prepared(one.number)


def _need(node: EngineParts, gid: str, role: Role) -> PreparedCommit:
    for one in node.catalog.prepared_commits():
        if one.gid == gid and one.state is PreparedState.PREPARED:
            if not role.superuser and role.oid != one.owner:
                raise UsageError(
                    "permission denied to finish prepared transaction",
                    sqlstate=PERMISSION_DENIED,
                    hint="Must be superuser or the user that prepared the transaction.",
                )
            return one
    raise UndefinedObjectError(
        f'prepared transaction with identifier "{gid}" does not exist', sqlstate="42704"
    )


def _table(node: EngineParts, change: TableChange) -> TableDef:
    found = node.catalog.table_by_oid(change.relid)
    if found is None:
        raise UndefinedObjectError(
            "a table of the prepared transaction does not exist any more",
            sqlstate="42P01",
            hint="ROLLBACK PREPARED ends it.",
        )
    return found


def _capture(node: EngineParts) -> Capture | None:
    return None if node.publishing is None else node.publishing.capture
