"""ALTER TABLE: PostgreSQL's checks in PostgreSQL's order, then ``apply.local.altering``.

The actions of a statement are sorted into PostgreSQL's passes (drops, types, new columns,
attributes) and take effect together. Rows that must be rewritten are translated as INSERT ...
SELECT is, so each value is converted, or refused, as PostgreSQL would. A stable default is
evaluated once for all rows, because the rewrite is one statement; a volatile default is evaluated
for each row.

A table that is renamed or moved to another schema keeps its location in the warehouse and its
membership in subscriptions.

Source: tablecmds.c (ATPrepCmd, AlterTablePass, ATRewriteTables), renameatt, RenameRelation,
AlterTableNamespace.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from wal2lake.apply.local.altering import (
    Anew,
    alter_table,
)
from wal2lake.catalog import (
    AddCheck,
    AddColumn,
    ChangeType,
    ColumnChange,
    ColumnDef,
    ColumnPlan,
    DropColumn,
    RenameColumn,
    SetDefault,
    SetKey,
    SetNotNull,
    TableDef,
    plan_changes,
)
from wal2lake.commands.constraints.checkconstraints import added_checks, check_rows
from wal2lake.commands.constraints.defaulttexts import with_shown_default
from wal2lake.commands.constraints.generatedcolumns import (
    added_generated,
    check_retyped,
    dropped_columns,
    set_expression,
)
from wal2lake.commands.constraints.keyconstraints import (
    added_key,
    dropped_constraint,
    refuse_taken,
)
from wal2lake.commands.publication.dependents import (
    check_dropped_columns,
    check_retyped_columns,
    replica_identity,
)
from wal2lake.commands.tables.deletemarks import refuse_unmarked
from wal2lake.commands.tables.followed import nullable, without_foreign_defaults
from wal2lake.commands.tables.partitions import check_partitions, has_partition
from wal2lake.commands.tables.rewriting import Rewriting
from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.local.access import check_owner, check_schema, refuse_fed
from wal2lake.local.commits.commit import hold_tables
from wal2lake.local.node import (
    Caller,
    EngineParts,
    find_table,
    need_schema,
    need_table,
)
from wal2lake.local.ports import HasCatalog, TableDefinitions
from wal2lake.local.transaction.local import scratch
from wal2lake.model import Oid
from wal2lake.observe import get_logger
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.altering.alterstatements import (
    AddCheckClause,
    AddColumnClause,
    AddKeyClause,
    AlterAction,
    AlterTable,
    DefaultClause,
    DropColumnClause,
    DropConstraintClause,
    ExpressionClause,
    NotNullClause,
    ParametersClause,
    RenameTable,
    RenameTableColumn,
    ReplicaIdentityClause,
    SetTableSchema,
    TypeClause,
)
from wal2lake.sql.grammar.statements import QualifiedName
from wal2lake.sql.query.writes import check_default

_TAG: Final = "ALTER TABLE"

_INVALID_DEFINITION: Final = "42P16"

_NOT_NULL_VIOLATION: Final = "23502"

_NO_KEY: Final = ("23502", "23505")
"""NULLs or duplicates in the rows prevent a key."""


def alter_columns(node: TableDefinitions, caller: Caller, statement: AlterTable) -> str:
    """ALTER TABLE with actions."""
    with _altering(
        node, caller, statement.table, if_exists=statement.if_exists
    ) as table:
        if table is None:
            return _TAG
        check_partitions(node, table, statement.actions, only=statement.only)
        changes, using = _changes(node, caller, table, statement.actions)
        cascade = [
            action.name
            for action in statement.actions
            if isinstance(action, DropColumnClause) and action.cascade
        ]
        after = plan_changes(table, changes).after
        refuse_unmarked(node.catalog, table, after)
        identities = [
            replica_identity(node, caller, after, action)
            for action in statement.actions
            if isinstance(action, ReplicaIdentityClause)
        ]
        _carry_out(node, caller, table, changes, using, cascade=cascade)
        if identities:
            node.catalog.set_replica_identity([table.oid], identities[-1])
        altered = [
            parameter
            for action in statement.actions
            if isinstance(action, ParametersClause)
            for parameter in action.parameters
        ]
        if altered:
            node.catalog.set_parameters(table.storage, dict(altered))
    return _TAG


def follow(
    node: TableDefinitions,
    relid: Oid,
    changes: Sequence[ColumnChange],
    *,
    replaced: bool,
) -> None:
    """Carry out a publisher's changes of its table.

    ``replaced``: a copy will replace all rows. The rows then need not satisfy the columns'
    constraints, and a value that cannot be converted is null until the copy."""
    table = node.catalog.table_by_oid(relid)
    owner = None if table is None else node.catalog.role_by_oid(table.owner)
    if table is None or owner is None:
        raise UndefinedObjectError(
            f"relation with OID {relid} does not exist", sqlstate="42P01"
        )
    caller = Caller(owner, lambda notice: None)
    carry_out = partial(_carry_out, canonical=True)
    # The DDL lock is not taken: its holder may be waiting for the worker that calls.
    with ExitStack() as held:
        hold_tables(node, [table], held, caller.check)
        node.capture_before(caller.check)
        table = node.catalog.table_by_oid(relid) or table
        names = node.catalog.sharing(table)
        subids = {rel.subid for rel in node.catalog.rels() if rel.relid in names}
        # A copy does not replace the rows of a table that another subscription also fills.
        replaced = replaced and len(subids) < 2
        possible = without_foreign_defaults(table, changes)
        try:
            try:
                carry_out(node, caller, table, possible, {}, replaced=replaced)
            except UsageError as error:
                unkeyed: list[ColumnChange] = [
                    change for change in possible if not isinstance(change, SetKey)
                ]
                if len(unkeyed) == len(possible) or error.sqlstate not in _NO_KEY:
                    raise
                get_logger().warning(
                    "a key is not taken over from the publisher", reason=str(error)
                )
                possible = unkeyed
                carry_out(node, caller, table, possible, {}, replaced=replaced)
        except UsageError as error:
            if error.sqlstate == _NOT_NULL_VIOLATION:
                # Rows have been filled at the publisher since. Changes yet to come fill ours.
                get_logger().warning(
                    "NOT NULL is not taken over from the publisher", reason=str(error)
                )
                possible = nullable(possible)
                carry_out(node, caller, table, possible, {}, replaced=replaced)
                return
            if not replaced:
                raise
            nulls = {
                change.name: "NULL"
                for change in changes
                if isinstance(change, ChangeType)
            }
            carry_out(node, caller, table, possible, nulls, replaced=True)


def _refuse_identity(table: TableDef, name: str) -> None:
    column = table.column(name)
    if column is not None and column.identity:
        raise UsageError(
            f'column "{name}" of relation "{table.name}" is an identity column',
            sqlstate="42601",
        )


def rename_column(
    node: TableDefinitions, caller: Caller, statement: RenameTableColumn
) -> str:
    """ALTER TABLE ... RENAME COLUMN."""
    with _altering(
        node, caller, statement.table, if_exists=statement.if_exists
    ) as table:
        if table is None:
            return _TAG
        change = RenameColumn(statement.name, statement.new_name)
        there = table.column(statement.name) is not None
        if there and table.partition_of is not None:
            raise UsageError(
                f'cannot rename inherited column "{statement.name}"',
                sqlstate=_INVALID_DEFINITION,
            )
        if there and statement.only and has_partition(node, table):
            raise UsageError(
                f'inherited column "{statement.name}" must be renamed in child tables'
                " too",
                sqlstate=_INVALID_DEFINITION,
            )
        after = plan_changes(table, [change]).after
        refuse_unmarked(node.catalog, table, after)
        _carry_out(node, caller, table, [change], {})
    return _TAG


def rename_table(node: TableDefinitions, caller: Caller, statement: RenameTable) -> str:
    """ALTER TABLE ... RENAME TO."""
    with _altering(
        node, caller, statement.table, if_exists=statement.if_exists
    ) as table:
        if table is not None:
            check_schema(node, caller, table.namespace, "C")
            refuse_taken(node.catalog, table.namespace, statement.new_name)
            node.catalog.rename_table(table, table.namespace, statement.new_name)
    return _TAG


def set_schema(
    node: TableDefinitions, caller: Caller, statement: SetTableSchema
) -> str:
    """ALTER TABLE ... SET SCHEMA."""
    with _altering(
        node, caller, statement.table, if_exists=statement.if_exists
    ) as table:
        if table is None:
            return _TAG
        need_schema(node.catalog, statement.schema)
        check_schema(node, caller, statement.schema, "C")
        if statement.schema == table.namespace:
            return _TAG
        if node.catalog.table(statement.schema, table.name) is not None:
            raise DuplicateObjectError(
                f'relation "{table.name}" already exists in schema'
                f' "{statement.schema}"',
                sqlstate="42P07",
            )
        node.catalog.rename_table(table, statement.schema, table.name)
    return _TAG


@contextmanager
def _altering(
    node: TableDefinitions, caller: Caller, name: QualifiedName, *, if_exists: bool
) -> Iterator[TableDef | None]:
    """Yield the table, locked against writers and other ALTERs; None if IF EXISTS allows it."""
    with node.ddl_lock, ExitStack() as held:
        if (
            if_exists
            and find_table(node.catalog, caller, name.schema, name.name) is None
        ):
            caller.notice(Notice(f'relation "{name.name}" does not exist, skipping'))
            yield None
            return
        table = need_table(node.catalog, caller, name.schema, name.name)
        check_owner(node, caller, "table", table.name, table.owner)
        # A prepared transaction may stay open for days. Waiting for it would block all DDL.
        node.prepared.refuse_held(table, f'alter table "{table.name}"')
        refuse_fed(node.catalog, table, f'alter table "{table.name}"')
        hold_tables(node, [table], held, caller.check)
        node.capture_before(caller.check)
        # An apply worker may have altered the table before the locks were held.
        yield node.catalog.table_by_oid(table.oid) or table


# ---- from actions to changes ------------------------------------------------------------


def _changes(
    node: HasCatalog, caller: Caller, table: TableDef, actions: Sequence[AlterAction]
) -> tuple[list[ColumnChange], dict[str, str]]:
    """Return the changes in PostgreSQL's order, and the USING expression by column name."""
    changes: list[ColumnChange] = []
    using: dict[str, str] = {}
    retyped: dict[str, bool] = {}
    for action in sorted(actions, key=_pass):
        now = plan_changes(table, changes).after if changes else table
        match action:
            case AddColumnClause():
                changes += _added_column(node, caller, table, changes, action)
            case AddCheckClause():
                added = added_checks(node.catalog, now, [action.check], caller.zone)
                changes += map(AddCheck, added)
            case DropColumnClause():
                changes += _dropped_column(node, caller, now, action)
            case NotNullClause():
                if not action.not_null:
                    _refuse_identity(table, action.name)
                changes.append(SetNotNull(action.name, action.not_null))
            case DefaultClause():
                _refuse_identity(table, action.name)
                altered = now.column(action.name)
                default = action.default
                if altered is not None:
                    altered = replace(altered, default=default)
                    default = with_shown_default(altered, caller.zone).default
                changes.append(SetDefault(action.name, default))
            case TypeClause():
                if retyped.get(action.name, False):
                    raise FeatureNotSupportedError(
                        f'cannot alter type of column "{action.name}" twice'
                    )
                before = now.column(action.name)
                change = _retyped_column(before, action)
                kind = change.column
                retyped[action.name] = before is not None and (
                    (before.type_oid, before.typmod) != (kind.type_oid, kind.typmod)
                )
                if action.using is not None:
                    using[action.name] = action.using
                changes.append(change)
            case AddKeyClause():
                changes.append(added_key(node, now, action))
            case DropConstraintClause():
                changes += dropped_constraint(caller, now, action)
            case ExpressionClause():
                changes += set_expression(caller, now, action)
            case ReplicaIdentityClause() | ParametersClause():
                continue
        plan_changes(table, changes)
    return changes, using


def _added_column(
    node: HasCatalog,
    caller: Caller,
    table: TableDef,
    changes: Sequence[ColumnChange],
    action: AddColumnClause,
) -> list[ColumnChange]:
    """Return the column and its CHECKs; nothing if IF NOT EXISTS finds the column."""
    clause = action.column
    now = plan_changes(table, changes).after if changes else table
    if action.if_not_exists and now.column(clause.name) is not None:
        caller.notice(
            Notice(
                f'column "{clause.name}" of relation'
                f' "{table.name}" already exists, skipping',
                sqlstate="42701",
            )
        )
        return []
    column = ColumnDef(
        clause.name,
        clause.type_oid,
        clause.typmod,
        not_null=clause.not_null,
        default=clause.default,
    )
    column = with_shown_default(column, caller.zone)
    if clause.generated is not None:
        column = added_generated(table, changes, column, clause.generated, caller.zone)
    change = AddColumn(column)
    now = plan_changes(table, [*changes, change]).after
    checks = added_checks(node.catalog, now, action.checks, caller.zone)
    return [change, *map(AddCheck, checks)]


def _dropped_column(
    node: HasCatalog, caller: Caller, table: TableDef, action: DropColumnClause
) -> list[ColumnChange]:
    """Return the DROP; nothing if IF EXISTS finds no column."""
    if action.if_exists and table.column(action.name) is None:
        caller.notice(
            Notice(
                f'column "{action.name}" of relation "{table.name}" does'
                " not exist, skipping"
            )
        )
        return []
    change = DropColumn(action.name)
    if not action.cascade:
        dropped = dropped_columns(table, [change])
        check_dropped_columns(node, caller, table, dropped, cascade=())
    return [change]


def _retyped_column(before: ColumnDef | None, action: TypeClause) -> ChangeType:
    kind = ColumnDef(action.name, action.type_oid, action.typmod)
    with_using = action.using is not None
    check_retyped(before, kind, using=with_using)
    return ChangeType(action.name, kind, with_using)


def _pass(action: AlterAction) -> int:
    """Return the action's AlterTablePass."""
    match action:
        case DropColumnClause() | DropConstraintClause():
            return 0
        case ExpressionClause():
            return 0 if action.generated is None else 3
        case NotNullClause():
            return 4 if action.not_null else 0
        case DefaultClause():
            return 0 if action.default is None else 5
        case TypeClause():
            return 1
        case AddColumnClause():
            return 2
        case AddKeyClause() | AddCheckClause():
            return 6
        case ReplicaIdentityClause() | ParametersClause():
            return 7


# ---- carrying out changes ---------------------------------------------------------------


def _carry_out(
    node: TableDefinitions,
    caller: Caller,
    table: TableDef,
    changes: Sequence[ColumnChange],
    using: Mapping[str, str],
    *,
    replaced: bool = False,
    cascade: Collection[str] = (),
    canonical: bool = False,
) -> None:
    plan = plan_changes(table, changes)
    if plan.after == table and not changes:
        return
    dropped = dropped_columns(table, changes)
    retyped = [change.name for change in changes if isinstance(change, ChangeType)]
    check_dropped_columns(node, caller, table, dropped, cascade=cascade)
    check_retyped_columns(node, caller, table, retyped)
    place = f"{scratch(node)}/{uuid.uuid4().hex}"
    rewriting = Rewriting(node, caller, plan, using, place, replaced=replaced)
    state = node.tables.state(table.location)
    rewriting.check_types(state)
    _check_defaults(plan, caller.zone)
    rewriting.check_nulls(state)
    rewriting.check_key(state)
    check_rows(node, plan, state)
    alter_table(
        node.catalog,
        node.tables,
        plan,
        Anew(node.branches, place, rewriting.fill, canonical),
        committing=node.snapshots.committing,
    )
    # Stop a copy that began before the change; what it has copied is discarded.
    node.sync.halt(relids=node.catalog.sharing(table), timeout_seconds=0.0)


def _check_defaults(plan: ColumnPlan, zone: str) -> None:
    before = {column.name: column for column in plan.before.columns}
    for planned in plan.columns:
        column = planned.column
        old_column = before.get(planned.source) if planned.source is not None else None
        if column.default is None or column.sequence is not None:
            continue
        if old_column is not None and old_column.default == column.default:
            # An unchanged default of a new type is converted as the rows' values are.
            continue
        try:
            check_default(column, zone)
        except UsageError as error:
            if error.sqlstate != "42804":
                raise
            raise UsageError(
                error.message.replace("but expression", "but default expression"),
                sqlstate="42804",
                hint=error.hint,
            ) from None


COMMANDS: Final[Mapping[type, Callable[[EngineParts, Caller, Any], str]]] = {
    AlterTable: alter_columns,
    RenameTableColumn: rename_column,
    RenameTable: rename_table,
    SetTableSchema: set_schema,
}
