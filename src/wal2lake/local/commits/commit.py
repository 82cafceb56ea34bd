"""The commit of a local transaction: from branches into the tables, all or none.

    step                                        after a crash following it
    ------------------------------------------  ---------------------------------------------
    locks: subscriptions, then tables
    rebase onto what others have committed      nothing has happened
     since; the same rows: 40001; keys: 23505
    new files into the tables' directories      nothing has happened; VACUUM removes them
    several tables: the intent, in the catalog  ``recovery`` does the rest
    one commit in each table                    one table: done; apply publishes it
    vectors; the intent is removed              done

Between the first commit and the last step, readers see the earlier versions (``snapshots``).

If the transaction has made or dropped tables, the intent and its definitions are one transaction of
the catalog, and the tables that it has made get their commits before: nobody else knows them yet.

A table of a subscription is written and its new version is published under the subscription's lock,
so a SELECT never sees a torn vector. A table may hold something that readers must not see yet (half
of a batch, a copy that has not joined). The apply worker publishes it then, with the other tables,
and a transaction of several tables is refused (40001). After a local write, the inserts that the
subscription applies are checked against the table's rows (``trusted`` is off).

A commit that has begun must end. If a step fails after the first table's commit, it is retried, and
finally the process ends.

Called by ``local`` and ``recovery``. Source: CommitTransaction() in xact.c.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa

from wal2lake.apply.local import visible
from wal2lake.catalog import TableChange, TableDef
from wal2lake.catalog import local_writer as writer_of
from wal2lake.errors import StorageError
from wal2lake.lake import LOCAL, CommitConflict, Cursor, TableState, tagged
from wal2lake.lake.branch import Action, BranchChange, others_rows
from wal2lake.lake.capture import (
    CommitRemarks,
    Emitted,
    MovedKey,
    OriginMark,
    moved_from,
    with_remarks,
)
from wal2lake.lake.plain import FoundRows, PlainChange
from wal2lake.lake.spark import Branch, Overtaken, rebase
from wal2lake.lake.store import UnknownOutcome
from wal2lake.local.commits.uniqueness import key_of, refuse_repeated
from wal2lake.local.commits.upkeep import compact_if_due
from wal2lake.local.concurrency.snapshots import Publish
from wal2lake.local.ports import (
    HasCatalog,
    HasPublishing,
    HasSettings,
    HasTables,
    LocalCommits,
    TableLocks,
)
from wal2lake.model import Modified, Oid
from wal2lake.observe import OrderedLock, failpoint, get_logger
from wal2lake.pg import Check
from wal2lake.sql.backend import Notice
from wal2lake.sql.query.results import Rendering

_OPERATION: Final = "local transaction"
"""Operation of a commit. Commits of several tables add the number by which capture finds them."""

_TRUNCATE: Final = "truncate"
"""Operation of a commit that removes all earlier rows."""

_ATTEMPTS: Final = 5
"""Attempts of a TRUNCATE that others' commits overtake."""

_NOTHING: Final = CommitRemarks()

_FINISH_SECONDS: Final = 30.0
"""Limit of retries after the intent, for errors that may pass. Chosen arbitrarily."""

_PAUSE_SECONDS: Final = 0.5
"""Pause between two attempts."""

_LOOK_SECONDS: Final = 0.05
"""How soon a wait notices its end. Chosen arbitrarily, too short for a user to notice."""


class CommittedDefinitions(Protocol):
    """The definitions of a transaction that writes tables, too."""

    def makes(self, location: str) -> bool:
        """Whether the transaction has made the table of a location."""
        ...

    def drops(self, location: str) -> bool:
        """Whether the transaction has dropped the table of a location."""
        ...

    def commit(self, number: int | None, tables: Sequence[TableChange]) -> None:
        """Commit the definitions, and with them the intent ``number`` for the tables."""
        ...

    @property
    def committed(self) -> bool:
        """Whether the commit is made."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A transaction's changes of one table."""

    table: TableDef
    branch: Branch
    change: BranchChange
    truncated: int | None = None
    """Options of a TRUNCATE that has removed all earlier rows; else None."""
    moved: tuple[MovedKey, ...] = ()
    """Rows whose keys the transaction has changed."""
    updated: int = 0
    """Number of updated rows, if the transaction has done nothing else."""
    unjudged: bool = False
    """True if the key is deferred, so that duplicates are possible."""


def hold_tables(
    node: TableLocks,
    tables: Iterable[TableDef],
    held: ExitStack,
    check: Check,
    number: int | None = None,
) -> None:
    """Take the locks of tables, in the global order.

    Others may hold them as long as a statement or a batch takes, or until a prepared transaction
    ends (``number``: the prepared transaction that may have the tables). ``check`` is called
    during the wait, and ends it by raising."""
    tables = list(tables)
    names = {name for table in tables for name in node.catalog.sharing(table)}
    while True:
        subids = _subscribers(node, names)
        with ExitStack() as taken:
            for subid in subids:
                _take(node.locks.of(subid), taken, check)
            for location in sorted({table.location for table in tables}):
                _take(node.tables.writing(location), taken, check)
            # A subscription that has just taken a table must see the write.
            free = node.prepared.are_free(tables, number)
            if free and _subscribers(node, names) == subids:
                held.enter_context(taken.pop_all())
                return
        if not free:
            check()
            time.sleep(_LOOK_SECONDS)


def _take(lock: OrderedLock, taken: ExitStack, check: Check) -> None:
    while not lock.acquire(timeout=_LOOK_SECONDS):
        check()
    taken.callback(lock.release)


def _subscribers(node: HasCatalog, names: Collection[Oid]) -> list[Oid]:
    return sorted({rel.subid for rel in node.catalog.rels() if rel.relid in names})


def commit_tables(
    node: LocalCommits,
    written: Sequence[WrittenTable],
    rendering: Rendering,
    job_group: str,
    check: Check = lambda: None,
    metadata: CommitRemarks = _NOTHING,
    settled: Callable[[], AbstractContextManager[None]] = nullcontext,
    definitions: CommittedDefinitions | None = None,
) -> None:
    """Commit the changes of all tables, durably, and with them the ``definitions``.

    40001 or 23505 if other transactions were faster. After these errors, or if ``check`` has ended
    the wait for the tables, nothing has happened. The first table's commit carries the messages,
    statements and the origin of ``metadata``; the origin's position advances when it is published.
    ``settled`` is entered once the tables are held, and left when the commit is done."""
    if not written:
        return
    with ExitStack() as held:
        hold_tables(node, (table.table for table in written), held, check)
        held.enter_context(settled())
        changes = changes_of(node, written, rendering, job_group, metadata.xid)
        changes[0] = replace(
            changes[0],
            messages=metadata.messages,
            origin=metadata.origin,
            statements=metadata.statements,
        )
        _commit(node, changes, definitions)
        for table in written:
            compact_if_due(node, table.table, own=1)


def _commit(
    node: LocalCommits,
    changes: Sequence[TableChange],
    definitions: CommittedDefinitions | None,
) -> None:
    before = {change.location: change.read_version for change in changes}
    with node.snapshots.committing(before) as publish:
        if definitions is not None:
            _commit_defined(node, changes, definitions, publish)
            return
        if len(changes) == 1 and changes[0].origin is None:
            commit_one(node, changes[0])
            publish(lambda: make_visible(node, changes))
            return
        number = node.catalog.begin_local_commit(changes)
        failpoint("local.recorded")
        finish(
            node,
            changes,
            str(number),
            lambda: publish(lambda: make_visible(node, changes, number)),
            lambda: node.catalog.publish_local({}, number=number, taken_back=True),
        )
        failpoint("local.published")


def _commit_defined(
    node: LocalCommits,
    changes: Sequence[TableChange],
    definitions: CommittedDefinitions,
    publish: Publish,
) -> None:
    """Commit the changes and the definitions of one transaction.

    The intent has a number, by which capture finds the commits of several tables, before the first
    of them, and changes only once the definitions are committed. No statement begins in between,
    which would see a new table without its rows."""
    made = [change for change in changes if definitions.makes(change.location)]
    number = None
    if len(changes) > 1 or len(made) < len(changes) or changes[0].origin is not None:
        number = node.catalog.begin_local_commit(())
    name = None if number is None else str(number)

    def decide() -> None:
        definitions.commit(number, changes)
        failpoint("local.defined")
        if name is None:
            make_visible(node, changes)
            return
        finish(node, changes, name, lambda: make_visible(node, changes, number), None)
        failpoint("local.published")

    try:
        for change in made:
            commit_one(node, change, name)
        failpoint("local.made_tables_written")
        publish(decide)
    except BaseException:
        if number is not None and not definitions.committed:
            node.catalog.publish_local({}, number=number, taken_back=True)
        raise


def changes_of(
    node: LocalCommits,
    written: Sequence[WrittenTable],
    rendering: Rendering,
    job_group: str,
    xid: int,
) -> list[TableChange]:
    """Return the changes that the tables' commits will make, and carry their files over.

    Needs the tables' locks. 40001 or 23505 if other transactions were faster. ``xid``: the
    transaction's number."""
    changes = []
    rebased = []
    for table in written:
        if table.unjudged and table.change.added:
            repeated = node.keys.repeated(
                table.branch, table.change.added, key_of(table.table), job_group
            )
            refuse_repeated(table.table, repeated, rendering)
        table_now, state = _on_newest(node, table, rendering, job_group)
        if len(written) > 1:
            _check_publishable(node, table.table, state)
        changes.append(_table_change(node, table_now, state, xid))
        rebased.append(table_now)
    for table in rebased:
        node.branches.carry_over(table.branch, table.change.files)
    failpoint("local.files_carried")
    return changes


@contextmanager
def committed_by_spark(node: LocalCommits, table: TableDef) -> Iterator[int]:
    """Make a Spark statement's commit to the table durable, then visible.

    The statement runs inside, under the table's locks. Yields the version before."""
    before = node.tables.state(table.location).version
    with node.snapshots.committing({table.location: before}) as publish:
        yield before
        state = node.tables.state(table.location)
        if state.version != before:
            node.tables.sync(table.location, state.version)
            publish(lambda: _show(node, {table.oid: table.location}))


def truncate_table(node: LocalCommits, table: TableDef, options: int) -> None:
    """Execute a TRUNCATE that is a transaction of its own, under the table's locks."""
    for attempt in range(_ATTEMPTS):
        try:
            return _truncate_table(node, table, options)
        except CommitConflict:
            # A writer outside of the node, which does not use the locks.
            if attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError


def _truncate_table(node: LocalCommits, table: TableDef, options: int) -> None:
    state = node.tables.state(table.location)
    writer = writer_of(node.catalog.system_identifier)
    with node.snapshots.committing({table.location: state.version}) as publish:
        node.tables.commit_files(
            table.location,
            (),
            Cursor(writer, (state.cursor(writer) or 0) + 1),
            read_version=state.version,
            replace=True,
            operation=with_remarks(_TRUNCATE, CommitRemarks(truncate_options=options)),
        )
        failpoint("local.table_committed")
        publish(lambda: _show(node, {table.oid: table.location}))


def commit_plainly(
    node: LocalCommits,
    table: TableDef,
    change: PlainChange,
    old_rows: FoundRows,
    new_rows: pa.Table | None,
) -> None:
    """Commit one statement's change: ``new_rows`` replace ``old_rows``. Needs the table's locks.

    CommitConflict if a writer outside of the node was faster."""
    with node.snapshots.committing({table.location: change.state.version}) as publish:
        write_plainly(node, change, old_rows, new_rows)
        failpoint("local.table_committed")
        publish(lambda: _show(node, {table.oid: table.location}))


def write_plainly(
    node: HasTables,
    change: PlainChange,
    old_rows: FoundRows,
    new_rows: pa.Table | None,
) -> None:
    """Write one statement's change as one commit of a table, or of a branch, which is private."""
    writer = writer_of(node.catalog.system_identifier)
    cursor = Cursor(writer, (change.state.cursor(writer) or 0) + 1)
    metadata = CommitRemarks(updated=0 if new_rows is None else len(old_rows))
    change.commit(
        node.tables, old_rows, new_rows, cursor, with_remarks(_OPERATION, metadata)
    )


def _on_newest(
    node: LocalCommits, written: WrittenTable, rendering: Rendering, job_group: str
) -> tuple[WrittenTable, TableState]:
    """Rebase the change onto the table's newest version."""
    state = node.tables.state(written.table.location)
    if state.table_id != written.branch.table_id:
        raise _conflict(written.table, "It has been recreated.")
    # Constraints change without a new version of the table.
    now = node.catalog.table_by_oid(written.table.oid)
    if now is not None and _constraints(now) != _constraints(written.table):
        raise _conflict(written.table, "Others have altered it.")
    if state.version == written.branch.base:
        return written, state
    commits = node.tables.actions(
        written.table.location, written.branch.base + 1, state.version
    )
    others = others_rows(commits)
    if others is None:
        raise _conflict(written.table, "Others have altered it.")
    try:
        change = rebase(written.branch, written.change, commits)
    except Overtaken as why:
        raise _conflict(written.table, str(why)) from None
    if others and written.truncated is not None:
        # The rows would stay here, but disappear where the TRUNCATE is replicated.
        raise _conflict(written.table, "Others have added rows.")
    if written.table.key and others and change.added:
        repeated = node.keys.taken(
            written.branch,
            change.added,
            state,
            others,
            key_of(written.table),
            job_group,
        )
        refuse_repeated(written.table, repeated, rendering)
    return replace(written, change=change), state


def _constraints(table: TableDef) -> tuple[object, ...]:
    """Return the constraints that the transaction's rows have been checked against."""
    required = frozenset(c.name for c in table.columns if c.not_null)
    return table.key, table.key_deferral, required, table.checks, table.generated


def _conflict(table: TableDef, detail: str) -> CommitConflict:
    return CommitConflict(
        "could not serialize access due to concurrent update",
        detail=f'Table "{table.name}" has changed since the transaction wrote it first.'
        f" {detail}",
        hint="The transaction might succeed if retried.",
    )


def _check_publishable(node: HasCatalog, table: TableDef, state: TableState) -> None:
    """Raise 40001 if the table cannot be published together with the transaction's others."""
    catalog = node.catalog
    for rel in visible.rels_of(catalog, table.oid):
        newest = catalog.newest_vector(rel.subid)
        if not visible.may_publish(catalog, rel, state, newest):
            raise CommitConflict(
                f'could not write table "{table.name}" together with others',
                detail="It is being synchronized.",
                hint="The transaction might succeed if retried.",
            )


def _table_change(
    node: HasSettings, written: WrittenTable, state: TableState, xid: int
) -> TableChange:
    cursor = state.cursor(writer_of(node.catalog.system_identifier)) or 0
    return TableChange(
        written.table.oid,
        written.table.location,
        state.table_id,
        state.version,
        cursor + 1,
        _with_origin(node, written.change, state, xid),
        written.truncated is not None,
        truncate_options=written.truncated or 0,
        moved=written.moved,
        updated=written.updated,
        xid=xid,
    )


def _with_origin(
    node: HasSettings, change: BranchChange, state: TableState, xid: int
) -> tuple[Action, ...]:
    """Return the actions, with the writer recorded in new files if writers are tracked.

    Without deletion vectors new files also have rows of others, so nothing is recorded."""
    if not (state.has_vectors and node.settings.apply.track_commit_timestamp):
        return change.actions
    modified = Modified(LOCAL, xid, time.time_ns() // 1000)
    touched = change.touched
    return tuple(
        {"add": tagged(action["add"], modified)}
        if "add" in action and action["add"]["path"] not in touched
        else action
        for action in change.actions
    )


def wait_for_standbys(
    node: HasPublishing, level: str, notice: Callable[[Notice], None], check: Check
) -> None:
    """Wait for synchronous standbys after a commit, without a lock.

    The commit is already durable and visible. ``level``: synchronous_commit."""
    if node.publishing is None or node.publishing.commits.wait(level, check):
        return
    notice(
        Notice(
            "canceling wait for synchronous replication due to user request",
            severity="WARNING",
            detail="The transaction has already committed locally, but might not have been"
            " replicated to the standby.",
        )
    )


# ---- steps that cannot be undone -------------------------------------------------------


def commit_one(node: HasTables, change: TableChange, name: str | None = None) -> None:
    """Commit the change of one table, unless the table has it already; durable on return.

    ``name``: the transaction's, if it has several tables or was prepared. CommitConflict if the
    table is not at the version that the change was made for."""
    operation = _TRUNCATE if change.truncates else _OPERATION
    origin = None if change.origin is None else OriginMark(*change.origin)
    metadata = CommitRemarks(
        tuple(Emitted(*message) for message in change.messages),
        origin,
        change.truncate_options if change.truncates else 0,
        moved_from(change.moved),
        change.updated,
        change.statements,
        xid=change.xid,
    )
    if is_done(node, change):
        # The committing process may have died or failed before the sync.
        node.tables.sync(change.location, node.tables.state(change.location).version)
    else:
        try:
            node.tables.commit_changes(
                change.location,
                change.actions,
                Cursor(writer_of(node.catalog.system_identifier), change.cursor),
                read_version=change.read_version,
                operation=with_remarks(
                    operation if name is None else f"{operation} {name}", metadata
                ),
            )
        except UnknownOutcome:
            if not _is_there(node, change):
                raise
    failpoint("local.table_committed")


def _is_there(node: HasTables, change: TableChange) -> bool:
    """Whether a commit whose answer was lost has been made. If not, it never will be, or the store
    does not tell."""
    try:
        return is_done(node, change)
    except StorageError:
        return False


def on_newest(node: HasTables, change: TableChange) -> TableChange:
    """Return the change for the table's present version; unchanged if others changed the same."""
    state = node.tables.state(change.location)
    if state.version == change.read_version or is_done(node, change):
        return change
    touched = frozenset(a["remove"]["path"] for a in change.actions if "remove" in a)
    commits = node.tables.actions(
        change.location, change.read_version + 1, state.version
    )
    others = others_rows(commits, touched)
    if state.table_id != change.table_id or others is None:
        return change
    # Rows of others stay, so the commit is no TRUNCATE any more.
    truncates = change.truncates and not others
    return replace(change, read_version=state.version, truncates=truncates)


def is_done(node: HasTables, change: TableChange) -> bool:
    """True if the table has the change."""
    state = node.tables.state(change.location)
    done = state.cursor(writer_of(node.catalog.system_identifier))
    return done is not None and done >= change.cursor


def finish(
    node: HasTables,
    changes: Sequence[TableChange],
    name: str,
    publish: Callable[[], None],
    take_back: Callable[[], None] | None,
) -> None:
    """Commit and publish recorded changes; raises the first error if nothing has happened.

    ``take_back`` removes the record; None if the transaction is committed already."""
    deadline = time.monotonic() + _FINISH_SECONDS
    repeats = False
    while True:
        try:
            for change in changes:
                # An empty commit may have taken the name of one in doubt.
                now = on_newest(node, change) if repeats else change
                commit_one(node, now, name)
            failpoint("local.tables_committed")
            publish()
            return
        except Exception as error:
            if (
                take_back is not None
                and not _begun(node, changes)
                and _is_taken_back(take_back)
            ):
                raise
            get_logger().error("retrying a commit", error=error)
            if time.monotonic() > deadline:
                # The next engine finishes the commit before it accepts connections.
                get_logger().critical(
                    "could not finish a commit, ending the engine", error=error
                )
                os._exit(1)
        repeats = True
        time.sleep(_PAUSE_SECONDS)


def _is_taken_back(take_back: Callable[[], None]) -> bool:
    """Remove the intent; True on success.

    The next engine would execute a remaining intent over later commits, so the commit must go on
    if the removal fails."""
    try:
        take_back()
    except Exception as error:
        get_logger().error(
            "could not remove the record of a failed commit", error=error
        )
        return False
    return True


def _begun(node: HasTables, changes: Sequence[TableChange]) -> bool:
    """True if one of the tables has the change, or might have it."""
    try:
        return any(is_done(node, change) for change in changes)
    except Exception:
        return True


def make_visible(
    node: LocalCommits, changes: Sequence[TableChange], number: int | None = None
) -> None:
    """Show readers the newest versions of the tables, except those left to the apply worker."""
    _show(node, {change.relid: change.location for change in changes}, number)


def _show(
    node: LocalCommits, tables: Mapping[Oid, str], number: int | None = None
) -> None:
    shown = visible.make_visible(node.catalog, node.tables, tables)
    if shown.written or number is not None:
        node.catalog.publish_local(shown.versions, shown.written, number)
    node.committed()
