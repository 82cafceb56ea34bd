"""ALTER TABLE of a lake table: its columns and their definition change at once.

    step                                          after a crash behind the step
    ------------------------------------------    ---------------------------------------------
    the plan (``plan_changes``)                   nothing has happened
    what Delta needs (column mapping, features)   a commit that changes nothing
    rows rewritten, in a place beside the table   removed at the next start
    their files moved into the table's directory  nothing has happened; VACUUM removes them
    (written there at once if new columns have constants, ``lake/plain/widen``)
    the intent, in the catalog                    given up at the next start
    the table's commit, with its cursor           the next start does the rest
    definition, history and vectors; intent done  done

The definition and the published version change in one SQLite transaction, and the catalog keeps
each version's columns (``Catalog.table_at``), so a reader of any version sees the columns of its
rows. A running copy begins anew, because the rows that it has written have the old columns.

The caller holds the locks of all subscriptions of the table, then ``TablePort.writing`` of the
table, and has read the table's definition under them. Called by commands and the apply worker.

Source: ATRewriteTables() in tablecmds.c: one pass over the rows, however many actions the statement
has.
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
from wal2lake.errors import InternalError
from wal2lake.lake import Cursor, FieldSpec, NextField, TablePort, TableState
from wal2lake.lake.branch import Action
from wal2lake.lake.capture import ALTERS
from wal2lake.lake.plain import widened
from wal2lake.model import Generated, Oid
from wal2lake.observe import failpoint, get_logger
from wal2lake.pgtypes import mapping_for
from wal2lake.pgtypes.columnnames import check_column_names

if TYPE_CHECKING:
    from wal2lake.lake.spark import Branch, Branches

_FINISH_SECONDS: Final = 30.0
"""Time for a temporary error after the table's commit to pass. Chosen arbitrarily."""

_PAUSE_SECONDS: Final = 0.5
"""Pause between two attempts."""

_TEXT_CONSTANT: Final = re.compile(r"'((?:[^']|'')*)'")
_INTEGER: Final = re.compile(
    r"(?P<bare>-?[0-9]+)|'(?P<cast>-?[0-9]+)'::(?:smallint|integer|bigint|numeric)"
)
"""A whole number as users write it, or as pg_get_expr() shows it."""

_TEXT_CAST: Final = "::text"
"""Behind a constant that pg_get_expr() shows."""
_NUMBERS: Final = frozenset({20, 21, 23, 1700})
"""OIDs of the types whose input function takes an integer's text: bigint, smallint, integer,
numeric."""
_TEXT: Final = 25
"""OID of text, the only type that keeps a constant as it is written."""

_Result = TypeVar("_Result")

Publish = Callable[[Callable[[], None]], None]
"""Runs the function that makes a commit visible."""

Committing = Callable[[Mapping[str, int]], AbstractContextManager[Publish]]
"""Context of a commit. Until the commit is published, readers see the given versions, by
location."""


@contextmanager
def at_once(before: Mapping[str, int]) -> Iterator[Publish]:
    """Publish at once: for tables that are read at published versions only."""
    yield lambda make: make()


@dataclass(frozen=True, slots=True)
class Anew:
    """Means to rewrite the rows of a table, if that is necessary."""

    branches: Branches
    place: str
    """Directory for the rewritten rows. It is empty, and is swept at the next start."""
    fill: Callable[[Branch, TableState], None]
    """Inserts all rows of a version into the branch, converted. If it raises PostgreSQL's error for
    a value, nothing has changed."""
    canonical: bool = False
    """Whether constants have the form that a PostgreSQL server gives to values. A user may write
    another form, for instance ``'{ a , b }'``."""


def field_spec(column: ColumnDef, dimensions: int = 0) -> FieldSpec:
    """Build the Delta column of a column. ``dimensions``: pg_attribute.attndims, if known."""
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
    """Build the Delta columns of the plan. A column whose stored type does not change keeps its
    files."""
    fields = {field.name: field for field in state.fields}
    next_columns = []
    for planned in plan.columns:
        before = None if planned.source is None else fields[planned.source]
        if before is None:
            next_columns.append(NextField(field_spec(planned.column), None))
            continue
        field = field_spec(planned.column)
        if not planned.retyped:
            # The column's creator may have chosen another Delta type than this node would.
            field = FieldSpec(
                planned.column.name,
                before.spark_ddl,
                before.nullable,
                field.pg_type_oid if before.pg_type_oid else before.pg_type_oid,
                field.pg_typmod,
                field.pg_type_name,
                field.pg_domain,
            )
        anew = planned.retyped or planned.computed is not None
        next_columns.append(NextField(field, planned.source, anew=anew))
    return next_columns


def computed_in(plan: ColumnPlan) -> Generated:
    """Return the columns that must be computed for existing rows."""
    return tuple(
        (planned.column.name, planned.computed)
        for planned in plan.columns
        if planned.computed is not None
    )


def is_empty(tables: TablePort, state: TableState) -> bool:
    """Whether the table's files show that it has no rows."""
    files = tables.files(state)
    return files is not None and all(
        file.rows is not None and file.rows == file.deleted for file in files
    )


def rewrites(plan: ColumnPlan) -> bool:
    """Whether the plan changes values of existing rows."""
    return any(
        planned.retyped
        or planned.computed is not None
        or (planned.source is None and planned.default is not None)
        for planned in plan.columns
    )


def alter_table(
    catalog: Catalog,
    tables: TablePort,
    plan: ColumnPlan,
    anew: Anew | None = None,
    *,
    committing: Committing = at_once,
) -> None:
    """Carry out a plan, durably. On an error nothing has changed.

    Must not be repeated after a crash: the next start finishes the change, or it has not happened.
    A caller that follows a publisher compares the columns again, and finds the remaining steps.
    ``anew``: None if the plan rewrites no rows.
    """
    table = plan.before
    check_column_names((c.name for c in plan.after.columns), table.qualified)
    altered = _altered(catalog, plan)
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
                version = _commit(catalog, tables, change, metadata, rows)
            except Exception:
                catalog.publish_local({}, number=number)
                raise
            failpoint("alter.committed")
            _insist(
                lambda: publish(lambda: _finish(catalog, tables, plan, number, version))
            )
            failpoint("alter.published")


def _altered(catalog: Catalog, plan: ColumnPlan) -> list[Altered]:
    """Return the new definition under each name of the table."""
    renamed = tuple(
        (planned.source, planned.column.name)
        for planned in plan.columns
        if planned.source is not None and planned.source != planned.column.name
    )
    return [
        Altered(
            relid,
            plan.after.columns,
            plan.after.key,
            _key_name(catalog, plan, relid),
            renamed,
            plan.after.key_deferral,
            plan.after.checks,
        )
        for relid in catalog.sharing(plan.before)
    ]


def _commit(
    catalog: Catalog,
    tables: TablePort,
    change: TableChange,
    metadata: Mapping[str, Any],
    rows: Sequence[Action] | None,
) -> int:
    """Commit the new columns and rows. Return the version; on an error there is none."""
    writer = local_writer(catalog.system_identifier)
    try:
        return tables.commit_metadata(
            change.location,
            metadata,
            Cursor(writer, change.cursor),
            read_version=change.read_version,
            rows=rows,
            operation=ALTERS,
        ).version
    except Exception as error:
        # The caller must know whether the commit exists: nothing checks that later.
        version = _insist(lambda: _made(catalog, tables, change))
        if version is None:
            raise
        get_logger().warning(
            "an ALTER TABLE was committed although its commit reported an error",
            location=change.location,
            error=error,
        )
        return version


def finish_after_crash(
    catalog: Catalog, tables: TablePort, commit: LocalCommit
) -> None:
    """Finish an ALTER TABLE that a crash interrupted: complete it if the table has the new version,
    otherwise give it up."""
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
    sharing_table = catalog.table_by_oid(relid)
    return None if sharing_table is None else sharing_table.key_name


def _keeps(state: TableState, fields: Sequence[NextField]) -> bool:
    """Whether the Delta table already has the planned columns."""
    return [next_field.field for next_field in fields] == list(
        state.fields
    ) and not any(
        next_field.anew or next_field.source != next_field.field.name
        for next_field in fields
    )


@contextmanager
def _rows_anew(
    tables: TablePort,
    plan: ColumnPlan,
    anew: Anew | None,
    state: TableState,
    metadata: Mapping[str, Any],
    fields: Sequence[NextField],
) -> Iterator[Sequence[Action] | None]:
    """Yield the ``add`` actions of all rewritten rows, whose files are in the table's directory.
    Yield None if the rows need not be rewritten."""
    if not rewrites(plan):
        yield None
        return
    if anew is None:
        raise InternalError("rows would have to be rewritten")
    if is_empty(tables, state):
        # Removed, because files with only deleted rows would keep the old types.
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
    """Return PostgreSQL's text of the constant for existing rows in each new column; None for null
    or a computed value. Returns None if the rows must be read: for other values, or to check a new
    key."""
    sources = {planned.column.name: planned.source for planned in plan.columns}
    key = {sources[name] for name in plan.after.key}
    computed = {name for name, _ in computed_in(plan)}
    if key and (key != set(plan.before.key) or computed.intersection(plan.after.key)):
        return None
    constants: dict[str, str | None] = {}
    for planned in plan.columns:
        if planned.computed is not None:
            constants[planned.column.name] = None
            continue
        if planned.retyped:
            return None
        if planned.source is not None:
            continue
        default = planned.default
        if default is None:
            if planned.column.not_null or planned.column.sequence is not None:
                return None
            constants[planned.column.name] = None
        elif (
            planned.column.type_oid == _TEXT
            and (quoted := _TEXT_CONSTANT.fullmatch(default.removesuffix(_TEXT_CAST)))
        ) or (canonical and (quoted := _TEXT_CONSTANT.fullmatch(default))):
            constants[planned.column.name] = quoted[1].replace("''", "'")
        elif planned.column.type_oid in _NUMBERS and (
            number := _INTEGER.fullmatch(default)
        ):
            constants[planned.column.name] = number["bare"] or number["cast"]
        else:
            return None
    return constants


def _change(catalog: Catalog, table: TableDef, state: TableState) -> TableChange:
    cursor = state.cursor(local_writer(catalog.system_identifier)) or 0
    return TableChange(
        table.storage, table.location, state.table_id, state.version, cursor + 1, ()
    )


def _committed_at(
    catalog: Catalog, tables: TablePort, change: TableChange
) -> int | None:
    """Return the version that has the change; None if the table has not changed."""
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
    """Return the version that has the change, as ``_committed_at`` does, and make it durable."""
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


def _insist(step: Callable[[], _Result]) -> _Result:
    """Repeat a step that cannot be undone until it succeeds. After a time limit the process ends.
    The next start finishes the step before it accepts sessions."""
    deadline = time.monotonic() + _FINISH_SECONDS
    while True:
        try:
            return step()
        except Exception as error:
            get_logger().error("a commit is retried", error=error)
            if time.monotonic() > deadline:
                get_logger().critical(
                    "could not finish a commit: the engine ends", error=error
                )
                os._exit(1)
        time.sleep(_PAUSE_SECONDS)
