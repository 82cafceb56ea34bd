"""The commit of a local transaction: from branches into the tables, all or none.

    step                                        a crash behind it
    ------------------------------------------  ---------------------------------------------
    locks: subscriptions, then tables
    rebase onto what others have committed      nothing has happened
     since; the same rows: 40001; keys: 23505
    new files into the tables' directories      nothing has happened; VACUUM takes them
    several tables: the intent, in the catalog  ``recovery`` does the rest
    one commit in each table                    one table: done; apply publishes it
    vectors, and the intent is done             done

Between the first commit and the last step readers have the versions before (``snapshots``).

A table of a subscription is written under that subscription's lock, and its new version is
published under it, so a SELECT never sees a torn vector. One that holds what readers must not
see yet (the half of a batch, a copy that has not joined) is published by the apply worker, with
the others; a transaction of several tables is refused then (40001). From now on the table's
inserts are checked against its rows (``trusted`` is off): somebody else writes it.

A commit that has begun must end: what fails behind its first table is tried again, then the
process ends.

Called by ``local`` and ``recovery``. Source: CommitTransaction() in xact.c.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from wal2lake.apply.local import visible
from wal2lake.catalog import TableChange, TableDef
from wal2lake.catalog import local_writer as writer_of
from wal2lake.lake import CommitConflict, Cursor, TableState
from wal2lake.lake.branch.branches import Branch
from wal2lake.lake.branch.changes import Action, BranchChange, others_rows
from wal2lake.lake.branch.rebase import Overtaken, rebase
from wal2lake.lake.capture.messages import Emitted, More, OriginMark, with_more
from wal2lake.lake.capture.moves import MovedKey, moved_from
from wal2lake.lake.origins import LOCAL, tagged
from wal2lake.lake.plain.change import FoundRows, PlainChange
from wal2lake.local.commits.uniqueness import key_of, refuse_repeated
from wal2lake.local.commits.upkeep import tend
from wal2lake.local.node import EngineParts
from wal2lake.model import Modified, Oid
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import Check
from wal2lake.sql.backend import Notice
from wal2lake.sql.query.results import Rendering

_OPERATION: Final = "local transaction"
"""Commits of several tables have the transaction's number, too: capture finds them by it."""

_TRUNCATE: Final = "truncate"
"""The same, if all rows of before are gone."""

_ATTEMPTS: Final = 5
"""At a TRUNCATE that others' commits overtake."""

_NOTHING: Final = More()

_FINISH_SECONDS: Final = 30.0
"""For what may pass by itself behind the intent; a guess."""

_PAUSE_SECONDS: Final = 0.5
"""Between two attempts."""

_LOOK_SECONDS: Final = 0.05
"""How soon a wait is ended; a guess at what a person does not notice."""


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A transaction's changes of one table."""

    table: TableDef
    branch: Branch
    change: BranchChange
    truncated: int | None = None
    """All rows of before are gone, by TRUNCATE with these options."""
    moved: tuple[MovedKey, ...] = ()
    """Rows whose key it has changed."""
    updated: int = 0
    """How many rows it has updated, if that is all that it has done to any."""
    unjudged: bool = False
    """True if its key is deferred, and may be there twice."""


def hold_tables(
    node: EngineParts,
    tables: Iterable[TableDef],
    held: ExitStack,
    check: Check,
    number: int | None = None,
) -> None:
    """Take the locks of tables, in the order that everybody does. Others may have them for as
    long as a statement or a batch takes, or until a prepared transaction ends (``number``: whose
    tables these are): ``check``, called meanwhile, ends the wait."""
    tables = list(tables)
    names = {name for table in tables for name in node.catalog.sharing(table)}
    while True:
        subids = _subscribers(node, names)
        with ExitStack() as taken:
            for subid in subids:
                _take(node.locks.of(subid), taken, check)
            for location in sorted({table.location for table in tables}):
                _take(node.tables.writing(location), taken, check)
            # A subscription that has taken a table meanwhile has to hear of the write.
            free = node.prepared.are_free(tables, number)
            if free and _subscribers(node, names) == subids:
                held.enter_context(taken.pop_all())
                return
        if not free:
            check()
            time.sleep(_LOOK_SECONDS)


def _take(lock: threading.RLock, taken: ExitStack, check: Check) -> None:
    while not lock.acquire(timeout=_LOOK_SECONDS):
        check()
    taken.callback(lock.release)


def _subscribers(node: EngineParts, names: Collection[Oid]) -> list[Oid]:
    return sorted({rel.subid for rel in node.catalog.rels() if rel.relid in names})


def commit_tables(
    node: EngineParts,
    written: Sequence[WrittenTable],
    rendering: Rendering,
    job_group: str,
    check: Check = lambda: None,
    said: More = _NOTHING,
    settled: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Commit them all, durably. 40001 or 23505 if others were faster: nothing happened then, nor
    if ``check`` has ended the wait for the tables. The first one's commit carries the messages of
    ``said``, its statements, and its origin, which is as far as the transaction was once it is
    published. ``settled`` is entered when the tables are held, and left when the commit is
    done."""
    if not written:
        return
    with ExitStack() as held:
        hold_tables(node, (one.table for one in written), held, check)
        held.enter_context(settled())
        changes = changes_of(node, written, rendering, job_group, said.xid)
        changes[0] = replace(
            changes[0],
            messages=said.messages,
            origin=said.origin,
            statements=said.statements,
        )
        _commit(node, changes)
        for one in written:
            tend(node, one.table, own=1)


def _commit(node: EngineParts, changes: Sequence[TableChange]) -> None:
    before = {change.location: change.read_version for change in changes}
    with node.snapshots.committing(before) as publish:
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


def changes_of(
    node: EngineParts,
    written: Sequence[WrittenTable],
    rendering: Rendering,
    job_group: str,
    xid: int,
) -> list[TableChange]:
    """Return the changes that the tables' commits will make, under their locks; the files are there
    on return. 40001 or 23505 if others were faster. ``xid``: the transaction's number."""
    changes = []
    rebased = []
    for one in written:
        if one.unjudged and one.change.added:
            found = node.keys.repeated(
                one.branch, one.change.added, key_of(one.table), job_group
            )
            refuse_repeated(one.table, found, rendering)
        now, state = _on_newest(node, one, rendering, job_group)
        if len(written) > 1:
            _check_publishable(node, one.table, state)
        changes.append(_table_change(node, now, state, xid))
        rebased.append(now)
    for one in rebased:
        node.branches.carry_over(one.branch, one.change.files)
    failpoint("local.files_carried")
    return changes


@contextmanager
def committed_by_spark(node: EngineParts, table: TableDef) -> Iterator[int]:
    """Around one statement of Spark's on the table itself, under its locks: what it commits is
    made durable, then visible. Gives the version before."""
    before = node.tables.state(table.location).version
    with node.snapshots.committing({table.location: before}) as publish:
        yield before
        state = node.tables.state(table.location)
        if state.version != before:
            node.tables.sync(table.location, state.version)
            publish(lambda: _show(node, {table.oid: table.location}))


def truncate_table(node: EngineParts, table: TableDef, options: int) -> None:
    """A TRUNCATE that is a transaction by itself, under the table's locks."""
    for attempt in range(_ATTEMPTS):
        try:
            return _truncate_table(node, table, options)
        except CommitConflict:
            # A writer outside of the node, who knows no locks.
            if attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError


def _truncate_table(node: EngineParts, table: TableDef, options: int) -> None:
    state = node.tables.state(table.location)
    writer = writer_of(node.catalog.system_identifier)
    with node.snapshots.committing({table.location: state.version}) as publish:
        node.tables.commit_files(
            table.location,
            (),
            Cursor(writer, (state.cursor(writer) or 0) + 1),
            read_version=state.version,
            replace=True,
            operation=with_more(_TRUNCATE, More(truncate_options=options)),
        )
        failpoint("local.table_committed")
        publish(lambda: _show(node, {table.oid: table.location}))


def commit_plainly(
    node: EngineParts,
    table: TableDef,
    change: PlainChange,
    found: FoundRows,
    new: pa.Table | None,
) -> None:
    """One statement's change of rows, ``new`` in the place of those that were ``found``, under the
    table's locks. CommitConflict if a writer outside of the node was faster."""
    with node.snapshots.committing({table.location: change.state.version}) as publish:
        write_plainly(node, change, found, new)
        failpoint("local.table_committed")
        publish(lambda: _show(node, {table.oid: table.location}))


def write_plainly(
    node: EngineParts, change: PlainChange, found: FoundRows, new: pa.Table | None
) -> None:
    """The same, as one commit: of a table, or of a branch, which nobody sees."""
    writer = writer_of(node.catalog.system_identifier)
    cursor = Cursor(writer, (change.state.cursor(writer) or 0) + 1)
    said = More(updated=0 if new is None else len(found))
    change.commit(node.tables, found, new, cursor, with_more(_OPERATION, said))


def _on_newest(
    node: EngineParts, one: WrittenTable, rendering: Rendering, job_group: str
) -> tuple[WrittenTable, TableState]:
    """The change for the table's newest version."""
    state = node.tables.state(one.table.location)
    if state.table_id != one.branch.table_id:
        raise _conflict(one.table, "It has been made anew.")
    # Constraints change without a version of the table.
    now = node.catalog.table_by_oid(one.table.oid)
    if now is not None and _constraints(now) != _constraints(one.table):
        raise _conflict(one.table, "Others have altered it.")
    if state.version == one.branch.base:
        return one, state
    commits = node.tables.actions(
        one.table.location, one.branch.base + 1, state.version
    )
    others = others_rows(commits)
    if others is None:
        raise _conflict(one.table, "Others have altered it.")
    try:
        change = rebase(one.branch, one.change, commits)
    except Overtaken as why:
        raise _conflict(one.table, str(why)) from None
    if others and one.truncated is not None:
        # They would stay here, and go where the TRUNCATE is replicated to.
        raise _conflict(one.table, "Others have added rows.")
    if one.table.key and others and change.added:
        found = node.keys.taken(
            one.branch, change.added, state, others, key_of(one.table), job_group
        )
        refuse_repeated(one.table, found, rendering)
    return replace(one, change=change), state


def _constraints(table: TableDef) -> tuple[object, ...]:
    """Return the constraints that the transaction's rows were checked by."""
    required = frozenset(c.name for c in table.columns if c.not_null)
    return table.key, table.key_deferral, required, table.checks, table.generated


def _conflict(table: TableDef, detail: str) -> CommitConflict:
    return CommitConflict(
        "could not serialize access due to concurrent update",
        detail=f'Table "{table.name}" has changed since the transaction wrote it first.'
        f" {detail}",
        hint="The transaction might succeed if retried.",
    )


def _check_publishable(node: EngineParts, table: TableDef, state: TableState) -> None:
    """Readers must see all tables of a transaction at once; 40001 if this one must wait."""
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
    node: EngineParts, one: WrittenTable, state: TableState, xid: int
) -> TableChange:
    cursor = state.cursor(writer_of(node.catalog.system_identifier)) or 0
    return TableChange(
        one.table.oid,
        one.table.location,
        state.table_id,
        state.version,
        cursor + 1,
        _with_origin(node, one.change, state, xid),
        one.truncated is not None,
        truncate_options=one.truncated or 0,
        moved=one.moved,
        updated=one.updated,
        xid=xid,
    )


def _with_origin(
    node: EngineParts, change: BranchChange, state: TableState, xid: int
) -> tuple[Action, ...]:
    """The actions, new files with who wrote them if that is kept. Without deletion vectors they
    have rows of others, too."""
    if not (state.has_vectors and node.settings.apply.track_commit_timestamp):
        return change.actions
    who = Modified(LOCAL, xid, time.time_ns() // 1000)
    touched = change.touched
    return tuple(
        {"add": tagged(action["add"], who)}
        if "add" in action and action["add"]["path"] not in touched
        else action
        for action in change.actions
    )


def wait_for_standbys(
    node: EngineParts, level: str, notice: Callable[[Notice], None], check: Check
) -> None:
    """Behind a commit, without a lock: it is durable and visible already. ``level``: of
    synchronous_commit."""
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


# ---- what cannot be taken back ---------------------------------------------------------


def commit_one(node: EngineParts, change: TableChange, name: str | None = None) -> None:
    """One table, if it does not have the change yet; durable. ``name``: of the transaction, if
    it has others, or was prepared. CommitConflict if the table is at another version than the
    change was made for."""
    operation = _TRUNCATE if change.truncates else _OPERATION
    origin = None if change.origin is None else OriginMark(*change.origin)
    said = More(
        tuple(Emitted(*one) for one in change.messages),
        origin,
        change.truncate_options if change.truncates else 0,
        moved_from(change.moved),
        change.updated,
        change.statements,
        xid=change.xid,
    )
    if is_done(node, change):
        # Who made it may have died, or failed, before it was synced.
        node.tables.sync(change.location, node.tables.state(change.location).version)
    else:
        node.tables.commit_changes(
            change.location,
            change.actions,
            Cursor(writer_of(node.catalog.system_identifier), change.cursor),
            read_version=change.read_version,
            operation=with_more(
                operation if name is None else f"{operation} {name}", said
            ),
        )
    failpoint("local.table_committed")


def on_newest(node: EngineParts, change: TableChange) -> TableChange:
    """The change for the version that is there now; as it is, if others have changed the same."""
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
    # Rows of others stay, so it is not a TRUNCATE any more.
    truncates = change.truncates and not others
    return replace(change, read_version=state.version, truncates=truncates)


def is_done(node: EngineParts, change: TableChange) -> bool:
    """Whether the table has the change."""
    state = node.tables.state(change.location)
    done = state.cursor(writer_of(node.catalog.system_identifier))
    return done is not None and done >= change.cursor


def finish(
    node: EngineParts,
    changes: Sequence[TableChange],
    name: str,
    publish: Callable[[], None],
    take_back: Callable[[], None],
) -> None:
    """Commit and publish what is recorded; the first error if nothing has happened.
    ``take_back`` removes the record."""
    deadline = time.monotonic() + _FINISH_SECONDS
    while True:
        try:
            for change in changes:
                commit_one(node, change, name)
            failpoint("local.tables_committed")
            publish()
            return
        except Exception as error:
            if not _begun(node, changes) and _is_taken_back(take_back):
                raise
            get_logger().error("a commit is tried again", error=error)
            if time.monotonic() > deadline:
                # The next engine goes on with it before it lets anybody in.
                get_logger().critical(
                    "a commit cannot be finished: the engine ends", error=error
                )
                os._exit(1)
        time.sleep(_PAUSE_SECONDS)


def _is_taken_back(take_back: Callable[[], None]) -> bool:
    """Whether the intent is removed. One that stays would be carried out by the next engine,
    over what has been committed since: then the commit has to go on."""
    try:
        take_back()
    except Exception as error:
        get_logger().error("a commit could not be taken back", error=error)
        return False
    return True


def _begun(node: EngineParts, changes: Sequence[TableChange]) -> bool:
    """Whether one of the tables has the change; so it must be said if nobody knows."""
    try:
        return any(is_done(node, change) for change in changes)
    except Exception:
        return True


def make_visible(
    node: EngineParts, changes: Sequence[TableChange], number: int | None = None
) -> None:
    """Let readers see the newest versions of the tables, unless the apply worker must."""
    _show(node, {change.relid: change.location for change in changes}, number)


def _show(
    node: EngineParts, tables: Mapping[Oid, str], number: int | None = None
) -> None:
    found = visible.make_visible(node.catalog, node.tables, tables)
    if found.written or number is not None:
        node.catalog.publish_local(found.versions, found.written, number)
    node.committed()
