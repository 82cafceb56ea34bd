"""ALTER TABLE of a lake table: its columns and their definition change at once.

    step                                          a crash behind it
    ------------------------------------------    ---------------------------------------------
    the plan (``plan_changes``)                   nothing has happened
    what Delta needs (column mapping, features)   a commit that changes nothing
    rows written anew, beside the table           removed at the next start
    their files into the table's directory; with  nothing has happened; VACUUM takes them
    constants in new columns, there at once (``lake/plain/widen``)
    the intent, in the catalog                    given up at the next start
    the table's commit, with its cursor           the next start does what is left
    definition, history and vectors; intent done  done

The definition and the published version change in one SQLite transaction, and each version's own
columns stay known (``Catalog.table_at``): whoever reads a version sees its columns with its rows,
before, between and afterwards. A copy that has not ended begins anew: what it has written has the
columns of before.

Who calls holds the locks of all subscriptions of the table, then ``TablePort.writing`` of it, and
has looked up its definition under them. Called by commands and the apply worker.

Source: ATRewriteTables() in tablecmds.c: one pass over the rows, whatever the statement says.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wal2lake.apply.local.visible import make_visible, unfinished_copies
from wal2lake.catalog import (
    Altered,
    Catalog,
    ColumnDef,
    ColumnPlan,
    LocalCommit,
    TableChange,
    TableDef,
    local_writer,
)
from wal2lake.lake import Cursor, FieldSpec, NextField, TablePort, TableState
from wal2lake.lake.branch.changes import Action
from wal2lake.lake.capture.commits import ALTERS
from wal2lake.lake.plain.widen import widened
from wal2lake.model import Generated, Oid
from wal2lake.observe import failpoint, get_logger
from wal2lake.pgtypes import mapping_for
from wal2lake.pgtypes.columnnames import check_column_names

if TYPE_CHECKING:
    from wal2lake.lake.branch.branches import Branch, Branches

_FINISH_SECONDS: Final = 30.0
"""For what may pass by itself behind the table's commit; a guess."""

_PAUSE_SECONDS: Final = 0.5
"""Between two attempts."""

_TEXT_CONSTANT: Final = re.compile(r"'((?:[^']|'')*)'")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_NUMBERS: Final = frozenset({20, 21, 23, 1700})
_TEXT: Final = 25
"""The one type that keeps a constant as it is written."""
"""OIDs of the types whose input function takes an integer's text: bigint, smallint, integer,
numeric."""

_Found = TypeVar("_Found")

Publish = Callable[[Callable[[], None]], None]
"""Runs what makes a commit visible."""

Committing = Callable[[Mapping[str, int]], AbstractContextManager[Publish]]
"""Around a commit: readers have the versions that are given until it is published."""


@contextmanager
def at_once(before: Mapping[str, int]) -> Iterator[Publish]:
    """For tables that are read at published versions only."""
    yield lambda make: make()


@dataclass(frozen=True, slots=True)
class Anew:
    """How the rows of a table are written anew, if they must be."""

    branches: Branches
    place: str
    """Where; empty, and swept at the next start."""
    fill: Callable[[Branch, TableState], None]
    """Insert all rows of that version into the branch, converted. May fail with PostgreSQL's
    error: then nothing has changed."""
    canonical: bool = False
    """Constants are written as a PostgreSQL server writes values of their types, not as a user
    may: ``'{ a , b }'``."""


def field_spec(column: ColumnDef, dimensions: int = 0) -> FieldSpec:
    """The Delta column of a column; ``dimensions``: pg_attribute.attndims, where known."""
    mapping = mapping_for(
        column.type_oid,
        column.typmod,
        type_name=column.type_name,
        attndims=dimensions,
    )
    return FieldSpec(
        column.name,
        mapping.spark_ddl,
        pg_type_oid=column.type_oid,
        pg_typmod=column.typmod,
        pg_type_name=column.type_name,
        pg_domain=column.domain,
    )


def next_fields(plan: ColumnPlan, state: TableState) -> list[NextField]:
    """The Delta columns of the plan. One whose type is stored as before keeps its files."""
    fields = {field.name: field for field in state.fields}
    found = []
    for one in plan.columns:
        before = None if one.source is None else fields[one.source]
        if before is None:
            found.append(NextField(field_spec(one.column), None))
            continue
        field = field_spec(one.column)
        if not one.retyped:
            # Whoever made it may have chosen another type than we would.
            field = FieldSpec(
                one.column.name,
                before.spark_ddl,
                before.nullable,
                field.pg_type_oid if before.pg_type_oid else before.pg_type_oid,
                field.pg_typmod,
                field.pg_type_name,
                field.pg_domain,
            )
        anew = one.retyped or one.computed is not None
        found.append(NextField(field, one.source, anew=anew))
    return found


def computed_in(plan: ColumnPlan) -> Generated:
    """The columns whose values in rows that are there are computed."""
    return tuple(
        (one.column.name, one.computed)
        for one in plan.columns
        if one.computed is not None
    )


def is_empty(tables: TablePort, state: TableState) -> bool:
    """No row is there, as its files say."""
    files = tables.files(state)
    return files is not None and all(
        file.rows is not None and file.rows == file.deleted for file in files
    )


def rewrites(plan: ColumnPlan) -> bool:
    """Rows that are there do not have the values that they are to have."""
    return any(
        one.retyped
        or one.computed is not None
        or (one.source is None and one.default is not None)
        for one in plan.columns
    )


def alter_table(
    catalog: Catalog,
    tables: TablePort,
    plan: ColumnPlan,
    anew: Anew,
    *,
    committing: Committing = at_once,
) -> None:
    """Carry a plan out, durably; on an error nothing has changed.

    Not to be repeated after a crash: the next start has finished it, or it has not happened. So
    who follows a publisher compares columns again, and finds what is left to do.
    """
    table = plan.before
    check_column_names((c.name for c in plan.after.columns), table.qualified)
    renamed = tuple(
        (one.source, one.column.name)
        for one in plan.columns
        if one.source is not None and one.source != one.column.name
    )
    altered = [
        Altered(
            relid,
            plan.after.columns,
            plan.after.key,
            _key_name(catalog, plan, relid),
            renamed,
            plan.after.key_deferral,
            plan.after.checks,
        )
        for relid in catalog.sharing(table)
    ]
    state = tables.state(table.location)
    fields = next_fields(plan, state)
    if _keeps(state, fields):
        catalog.redefine(altered)
        return
    state = tables.prepare_columns(table.location, fields)
    metadata = tables.metadata(table.location, fields)
    with _rows_anew(tables, plan, anew, state, metadata, fields) as rows:
        change = _change(catalog, table, state)
        with committing({table.location: state.version}) as publish:
            number = catalog.begin_local_commit([change], altered)
            failpoint("alter.recorded")
            try:
                version = tables.commit_metadata(
                    table.location,
                    metadata,
                    Cursor(local_writer(catalog.system_identifier), change.cursor),
                    read_version=state.version,
                    rows=rows,
                    operation=ALTERS,
                ).version
            except Exception as error:
                # Whoever goes on must know whether it is there: nobody else looks again.
                found = _insist(lambda: _made(catalog, tables, change))
                if found is None:
                    catalog.publish_local({}, number=number)
                    raise
                get_logger().warning(
                    "an ALTER TABLE has been committed, and not said so",
                    location=table.location,
                    error=error,
                )
                version = found
            failpoint("alter.committed")
            _insist(
                lambda: publish(lambda: _finish(catalog, tables, plan, number, version))
            )
            failpoint("alter.published")


def finish_after_crash(
    catalog: Catalog, tables: TablePort, commit: LocalCommit
) -> None:
    """Complete or give up an ALTER TABLE that a crash interrupted: complete it if the table has the
    new version, give it up if not."""
    (change,) = commit.tables
    tables.recover(change.location, change.read_version)
    version = _committed_at(catalog, tables, change)
    if version is None:
        catalog.publish_local({}, number=commit.number)
        return
    tables.sync(change.location, tables.state(change.location).version)
    get_logger().info("recovery of an ALTER TABLE", location=change.location)
    _publish(catalog, tables, change.relid, change.location, commit.number, version)


def _key_name(catalog: Catalog, plan: ColumnPlan, relid: Oid) -> str | None:
    if relid == plan.after.oid or not plan.after.key:
        return plan.after.key_name
    found = catalog.table_by_oid(relid)
    return None if found is None else found.key_name


def _keeps(state: TableState, fields: Sequence[NextField]) -> bool:
    """The lake's table is as it should be."""
    return [one.field for one in fields] == list(state.fields) and not any(
        one.anew or one.source != one.field.name for one in fields
    )


@contextmanager
def _rows_anew(
    tables: TablePort,
    plan: ColumnPlan,
    anew: Anew,
    state: TableState,
    metadata: Mapping[str, Any],
    fields: Sequence[NextField],
) -> Iterator[Sequence[Action] | None]:
    """The ``add`` actions of all rows, whose files are in the table's directory; None: the rows
    are good as they are."""
    if not rewrites(plan):
        yield None
        return
    if is_empty(tables, state):
        # Files that hold deleted rows only would have the old types.
        yield ()
        return
    constants = _constants(plan, canonical=anew.canonical)
    if constants is not None:
        rows = widened(tables, state, metadata, fields, constants, computed_in(plan))
        if rows is not None:
            failpoint("alter.written_anew")
            yield rows
            return
    branch = anew.branches.begin_anew(state, metadata, anew.place)
    try:
        anew.fill(branch, state)
        change = anew.branches.net_change(branch)
        anew.branches.carry_over(branch, change.files)
        failpoint("alter.written_anew")
        yield change.actions
    finally:
        anew.branches.drop(branch)


def _constants(plan: ColumnPlan, *, canonical: bool) -> dict[str, str | None] | None:
    """PostgreSQL's text of the value that rows get in each new column; None: a value is to be
    computed, or the rows are to be looked through for a new key."""
    sources = {one.column.name: one.source for one in plan.columns}
    key = {sources[name] for name in plan.after.key}
    computed = {name for name, _ in computed_in(plan)}
    if key and (key != set(plan.before.key) or computed.intersection(plan.after.key)):
        return None
    found: dict[str, str | None] = {}
    for one in plan.columns:
        if one.computed is not None:
            found[one.column.name] = None
            continue
        if one.retyped:
            return None
        if one.source is not None:
            continue
        default = one.default
        if default is None:
            if one.column.not_null or one.column.sequence is not None:
                return None
            found[one.column.name] = None
        elif (quoted := _TEXT_CONSTANT.fullmatch(default)) and (
            canonical or one.column.type_oid == _TEXT
        ):
            found[one.column.name] = quoted[1].replace("''", "'")
        elif _INTEGER.fullmatch(default) and one.column.type_oid in _NUMBERS:
            found[one.column.name] = default
        else:
            return None
    return found


def _change(catalog: Catalog, table: TableDef, state: TableState) -> TableChange:
    cursor = state.cursor(local_writer(catalog.system_identifier)) or 0
    return TableChange(
        table.storage, table.location, state.table_id, state.version, cursor + 1, ()
    )


def _committed_at(
    catalog: Catalog, tables: TablePort, change: TableChange
) -> int | None:
    """The version with which the table has changed; None: it has not."""
    writer = local_writer(catalog.system_identifier)
    state = tables.state(change.location)
    done = state.cursor(writer)
    if state.table_id != change.table_id or done is None or done < change.cursor:
        return None
    first = change.read_version + 1
    commits = tables.actions(change.location, first, state.version)
    for version, commit in enumerate(commits, first):
        if any(
            a["txn"]["appId"] == writer and a["txn"]["version"] == change.cursor
            for a in commit
            if "txn" in a
        ):
            return version
    return None


def _made(catalog: Catalog, tables: TablePort, change: TableChange) -> int | None:
    """Return the version, as ``_committed_at``; the version is durable on return."""
    version = _committed_at(catalog, tables, change)
    if version is not None:
        tables.sync(change.location, version)
    return version


def _finish(
    catalog: Catalog, tables: TablePort, plan: ColumnPlan, number: int, version: int
) -> None:
    _publish(
        catalog, tables, plan.before.storage, plan.before.location, number, version
    )


def _publish(
    catalog: Catalog,
    tables: TablePort,
    relid: Oid,
    location: str,
    number: int,
    version: int,
) -> None:
    state = tables.state(location)
    visible = make_visible(catalog, tables, {relid: location})
    catalog.publish_local(
        visible.versions,
        visible.written,
        number,
        altered_at=version,
        voided=unfinished_copies(catalog, state, relid),
    )


def _insist(step: Callable[[], _Found]) -> _Found:
    """Repeat a step that cannot be taken back. After a time limit the process ends, and the next
    one goes on with the step before it lets anybody in."""
    deadline = time.monotonic() + _FINISH_SECONDS
    while True:
        try:
            return step()
        except Exception as error:
            get_logger().error("a commit is tried again", error=error)
            if time.monotonic() > deadline:
                get_logger().critical(
                    "a commit cannot be finished: the engine ends", error=error
                )
                os._exit(1)
        time.sleep(_PAUSE_SECONDS)
