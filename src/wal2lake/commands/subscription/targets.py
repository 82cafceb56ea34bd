"""The local table of each published table: found or created, checked, and subscribed.

Takes a publisher's definitions; returns ``TargetTable`` values, relation states, and the versions
that readers see until the copy. Called by CREATE and by REFRESH PUBLICATION, in three steps:

    ask_wanted      what is published?                           asks the publisher, no lock
    check_targets   are the tables suitable?                     before a slot is created
    made_targets    tables are checked again and created, and    under the DDL lock, without
                    the command takes effect in its block        the publisher

Source: subscriptioncmds.c; logicalrep_rel_open() in relation.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from wal2lake.apply.schema.columns import column_like, source_column
from wal2lake.apply.schema.marks import MARK_COLUMN, check_sent
from wal2lake.catalog import SubscriptionRel, TableDef
from wal2lake.commands.tables.deletemarks import check_markable
from wal2lake.commands.tables.histories import (
    check_histories,
    make_histories,
    new_history,
)
from wal2lake.commands.tables.table import NewTable, make_tables
from wal2lake.errors import (
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.lake import CommitConflict
from wal2lake.local.access import check_database_create, check_schema, refuse_fed
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasCatalog, HasTables, TableDefinitions, TableLocks
from wal2lake.model import Deferral, Lsn, Oid, RemoteSchema, ReplicaIdentity, SyncState
from wal2lake.pg import Publisher, RemoteTable
from wal2lake.pgtypes import (
    TYPE_MAPPINGS,
    VALUE_POLICIES,
    SourceColumn,
    TypeMappings,
    ValuePolicies,
    ValuePolicy,
)
from wal2lake.pgtypes.choices.entries import Match
from wal2lake.pgtypes.choices.types import WIDENING, shown_type, unmatched
from wal2lake.pgtypes.columnnames import check_column_names
from wal2lake.pgtypes.registry.pg_type import format_type
from wal2lake.sql.backend import Notice

_PREREQUISITE: Final = "55000"

_PARTITIONED: Final = "p"

NOT_SEEN: Final[Mapping[tuple[str, str], str]] = MappingProxyType({})
"""For tables that no look of ``auto_refresh`` has found."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A published table and its local table."""

    namespace: str
    name: str
    table: TableDef
    whole: bool
    """True if every change of its rows at the publisher is sent; see ``_is_whole``."""
    schema: RemoteSchema
    """The publisher's schema of the table."""
    history: TableDef | None = None
    """The table that records its changes."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The subscription's options about types and values."""

    mappings: TypeMappings
    policies: ValuePolicies
    subscribed: Set[Oid]
    """Tables that are already in the subscription: their columns stay as they are."""

    @classmethod
    def of(
        cls, mappings: str, policies: str, subscribed: Set[Oid] = frozenset()
    ) -> Choices:
        """Parse the options' texts."""
        return cls(
            TypeMappings.parse(mappings), ValuePolicies.parse(policies), subscribed
        )

    def stored_type(self, column: SourceColumn) -> tuple[int, int] | None:
        """Return the type to store, as ``TypeMappings.stored_type``."""
        return self.mappings.stored_type(column, self.policies)


@dataclass(frozen=True, slots=True)
class WantedTables:
    """The published tables, and the command's options for them."""

    tables: Mapping[tuple[str, str], RemoteTable]
    all_sent: bool
    """True if every change of their rows is sent."""
    create_tables: bool
    choices: Choices
    subid: Oid | None = None
    """The subscription's OID, if it exists already."""
    follows: bool = False
    """True if the subscription changes its tables' columns as the publisher does."""
    history: str = ""
    """Schema of history tables; empty for none."""
    keeps_deleted: bool = False
    """True if deleted rows are marked, not removed."""


def ask_wanted(
    publisher: Publisher,
    publications: Sequence[str],
    *,
    create_tables: bool,
    choices: Choices,
    origin: str,
    subid: Oid | None = None,
    follows: bool = False,
    only: Collection[tuple[str, str]] | None = None,
    history: str = "",
    keeps_deleted: bool = False,
) -> WantedTables:
    """Ask the publisher for all published tables and their definitions, or for ``only`` these."""
    names = tuple(publications)
    # With origin = none, changes from other origins are not sent.
    all_sent = origin == "any" and publisher.publish_everything(names)
    chosen = publisher.published_tables(names) if only is None else list(only)
    tables = publisher.tables(chosen, names)
    return WantedTables(
        tables,
        all_sent,
        create_tables,
        choices,
        subid,
        follows,
        history,
        keeps_deleted,
    )


def check_targets(
    node: HasCatalog,
    caller: Caller,
    wanted: WantedTables,
    *,
    maker: Caller | None = None,
) -> None:
    """Report every fault of the tables before any effect.

    ``maker``: owner of the new tables, by default the caller. A fault that only stops the workers
    until the table is altered is a WARNING."""
    planned = _plan(node, caller, maker or caller, wanted)
    _warn_of_missing_columns(caller, planned, wanted)
    for remote, table in zip(wanted.tables.values(), planned, strict=True):
        if isinstance(table, NewTable):
            _notify_widened(caller, remote, wanted.choices)
    columns = [c for remote in wanted.tables.values() for c in _source_columns(remote)]
    _warn_of_unmatched(caller, wanted.choices, columns)


@contextmanager
def made_targets(
    node: TableDefinitions,
    caller: Caller,
    wanted: WantedTables,
    *,
    maker: Caller | None = None,
) -> Iterator[list[TargetTable]]:
    """Yield the local table of each published table; create the missing ones.

    Created tables are dropped if the block fails. The caller holds the DDL lock. Everything is
    checked again, as others may have changed what ``check_targets`` saw."""
    planned = _plan(node, caller, maker or caller, wanted)
    missing = [table for table in planned if isinstance(table, NewTable)]
    made = _make_tables(node, maker or caller, missing)
    new = {(table.namespace, table.name): table for table in made}
    tables = [
        table if isinstance(table, TableDef) else new[table.namespace, table.name]
        for table in planned
    ]
    try:
        histories: Sequence[TableDef | None] = [None] * len(tables)
        if wanted.history:
            histories, recording = make_histories(
                node, maker or caller, wanted.history, wanted.subid, tables
            )
            made = [*made, *recording]
        yield [
            TargetTable(
                namespace,
                name,
                table,
                wanted.all_sent and _is_whole(remote),
                remote.schema,
                history,
            )
            for ((namespace, name), remote), table, history in zip(
                wanted.tables.items(), tables, histories, strict=True
            )
        ]
    except BaseException:
        if caller.block is None:
            _drop_created(node, made)
        raise


def _plan(
    node: HasCatalog, caller: Caller, maker: Caller, wanted: WantedTables
) -> list[TableDef | NewTable]:
    """Return the local table of each published table, or the table to create."""
    choices = wanted.choices
    _check_usage(node, caller, {namespace for namespace, _ in wanted.tables})
    planned: list[TableDef | NewTable] = []
    for (namespace, name), remote in wanted.tables.items():
        if wanted.keeps_deleted:
            check_sent(f"{namespace}.{name}", (c.name for c in remote.columns))
        table: TableDef | NewTable | None = node.catalog.table(namespace, name)
        if table is None:
            if not wanted.create_tables:
                raise UndefinedObjectError(
                    f'relation "{namespace}.{name}" does not exist',
                    sqlstate="42P01",
                    hint="Create the table, or use create_tables = true.",
                )
            table = _table_like(remote, choices)
            if wanted.keeps_deleted:
                table = _with_marks(table)
        elif isinstance(table, TableDef) and table.oid not in choices.subscribed:
            _check_stored(table, remote, choices)
            refuse_fed(node.catalog, table, f'replicate into table "{table.name}"')
            check_markable(
                node.catalog, table, wanted.subid, keeps_deleted=wanted.keeps_deleted
            )
        _check_policies(table, remote, choices.policies)
        planned.append(table)
    there = [table for table in planned if isinstance(table, TableDef)]
    _check_partitions(node, there, wanted.subid)
    missing = [table for table in planned if isinstance(table, NewTable)]
    if wanted.history:
        existing = check_histories(node.catalog, wanted.history, wanted.subid, planned)
        missing += [
            new_history(wanted.history, table)
            for table, history in zip(planned, existing, strict=True)
            if history is None
        ]
    check_may_make(node, maker, missing)
    return planned


def _check_usage(node: HasCatalog, caller: Caller, schemas: Set[str]) -> None:
    """Check USAGE on schemas, as for any statement that names a table.

    Source: LookupExplicitNamespace()."""
    namespaces = {n.name for n in node.catalog.namespaces()}
    for name in sorted(schemas & namespaces):
        check_schema(node, caller, name, "U")


def _is_whole(remote: RemoteTable) -> bool:
    """Return whether every row that leaves the published table is sent as a change.

    A row that an UPDATE moves out of a row filter is sent as its DELETE. A changed filter sends
    nothing. Neither does a truncated or detached partition whose root is published as one table.
    """
    return not remote.row_filters and remote.kind != _PARTITIONED


def _source_columns(remote: RemoteTable) -> list[SourceColumn]:
    return [
        source_column(remote.namespace, remote.name, attribute)
        for attribute in remote.schema.attributes
    ]


def _check_stored(table: TableDef, remote: RemoteTable, choices: Choices) -> None:
    """Check that an existing table has the types that the options name for it."""
    for source in _source_columns(remote):
        policy, level = choices.policies.entry_for(source)
        whole = policy in WIDENING and level > Match.ALL
        if not whole and not choices.mappings.names(source):
            continue
        wanted = choices.stored_type(source)
        column = table.column(source.name)
        if column is None:
            # The workers refuse the table until ALTER TABLE adds the column.
            continue
        have = (int(column.type_oid), column.typmod)
        if wanted is not None and have != wanted:
            raise UsageError(
                f'column "{column.name}" of table "{table.qualified}" is of type'
                f" {shown_type(*have)}, not {shown_type(*wanted)} as"
                f" {VALUE_POLICIES if whole else TYPE_MAPPINGS} say",
                sqlstate=_PREREQUISITE,
                hint="Drop the table and let the subscription create it, or leave the"
                " column out of the option.",
            )


def _check_policies(
    table: TableDef | NewTable, remote: RemoteTable, policies: ValuePolicies
) -> None:
    """Check that a policy that names a column is possible for the column."""
    for source in _source_columns(remote):
        policy = policies.naming(source)
        column = next((c for c in table.columns if c.name == source.name), None)
        if column is None or policy not in (ValuePolicy.NULL, ValuePolicy.CLAMP):
            continue
        shown = f'value policy "{policy.value}" is not possible for column'
        if column.name in table.key:
            raise UsageError(
                f'{shown} "{source.qualified}"',
                detail="It is part of the primary key: another value would be another"
                " row.",
                hint="Available policies: error, lossless, text, widen.",
            )
        if policy is ValuePolicy.NULL and column.not_null:
            raise UsageError(
                f'{shown} "{source.qualified}"',
                detail="It is declared NOT NULL.",
                hint="Available policies: error, clamp, lossless, text, widen.",
            )


def _notify_widened(caller: Caller, remote: RemoteTable, choices: Choices) -> None:
    """Send a notice of the columns of a new table that a policy changes to text."""
    widened = [
        f'"{source.name}" ({format_type(source.type_oid, source.typmod)})'
        for source in _source_columns(remote)
        if choices.policies.of(source) in WIDENING
        and not choices.mappings.names(source)
        and choices.stored_type(source) is not None
    ]
    if widened:
        caller.notice(
            Notice(
                f'table "{remote.namespace}.{remote.name}" is created with text columns,'
                f" as {VALUE_POLICIES} say: {', '.join(widened)}"
            )
        )


def _warn_of_unmatched(
    caller: Caller, choices: Choices, columns: Sequence[SourceColumn]
) -> None:
    unknown = {
        TYPE_MAPPINGS: unmatched(choices.mappings.entries, columns),
        VALUE_POLICIES: unmatched(choices.policies.entries, columns),
    }
    for option, targets in unknown.items():
        for text in targets:
            caller.notice(
                Notice(
                    f'no published column is concerned by "{text}" in {option}',
                    severity="WARNING",
                    sqlstate="01000",
                )
            )


def _warn_of_missing_columns(
    caller: Caller, planned: Sequence[TableDef | NewTable], wanted: WantedTables
) -> None:
    """Warn of missing columns, which the workers report only at the table's first row.

    PostgreSQL creates the subscription without any check."""
    for table, remote in zip(planned, wanted.tables.values(), strict=True):
        if isinstance(table, NewTable):
            continue
        if wanted.follows and table.oid in wanted.choices.subscribed:
            continue
        names = {c.name for c in table.columns}
        missing = [c.name for c in remote.columns if c.name not in names]
        if missing:
            plural = "columns" if len(missing) > 1 else "column"
            shown = ", ".join(f'"{n}"' for n in missing)
            caller.notice(
                Notice(
                    f'logical replication target relation "{table.qualified}" is'
                    f" missing replicated {plural}: {shown}",
                    severity="WARNING",
                    sqlstate=_PREREQUISITE,
                    hint="ALTER TABLE ... ADD COLUMN adds what is missing. Until then"
                    " the subscription cannot fill the table.",
                )
            )


def _check_partitions(
    node: HasCatalog, tables: Sequence[TableDef], subid: Oid | None
) -> None:
    """Check that no two relations fill one location: a partitioned table and its partition."""
    taken = {table.oid for table in tables}
    taken |= {rel.relid for rel in node.catalog.rels() if rel.subid != subid}
    for table in tables:
        names = node.catalog.sharing(table)
        if table.partition_key is not None and len(names) == 1:
            raise UsageError(
                f'partitioned table "{table.qualified}" has no partition',
                sqlstate=_PREREQUISITE,
                hint="Create it first: CREATE TABLE ... PARTITION OF ... DEFAULT.",
            )
        if len(taken.intersection(names)) > 1:
            raise FeatureNotSupportedError(
                f'"{table.qualified}" cannot be subscribed to both as a partitioned'
                " table and as its partition",
                hint="Publish one of them: see publish_via_partition_root.",
            )


def check_may_make(
    node: HasCatalog, caller: Caller, tables: Sequence[NewTable]
) -> None:
    """Check that the subscription's owner may create the new tables."""
    namespaces = {n.name for n in node.catalog.namespaces()}
    for name in sorted({table.namespace for table in tables}):
        if name in namespaces:
            check_schema(node, caller, name, "C")
        else:
            check_database_create(node, caller)


def _make_tables(
    node: TableDefinitions, caller: Caller, tables: Sequence[NewTable]
) -> list[TableDef]:
    """Create all tables with their schemas, or no table."""
    namespaces = {n.name for n in node.catalog.namespaces()}
    for name in sorted({table.namespace for table in tables} - namespaces):
        node.catalog.create_namespace(name, caller.role.oid)
    return make_tables(node, caller, tables)


def _table_like(remote: RemoteTable, choices: Choices) -> NewTable:
    """Return a table from the publisher's definition and the user's choices, or raise."""
    likes = [
        column_like(source, attribute, choices.mappings, choices.policies)
        for source, attribute in zip(
            _source_columns(remote), remote.schema.attributes, strict=True
        )
    ]
    columns = [like.column for like in likes]
    present = {c.name for c in columns}
    key, deferral = remote.key, remote.key_deferral
    if remote.identity is ReplicaIdentity.INDEX and remote.identity_key:
        # UPDATE and DELETE identify the row by this index, so its columns are the key here.
        key, deferral = remote.identity_key, Deferral.NO
    key = key if set(key) <= present else ()
    # Without a key, FULL is needed to publish the rows' changes in turn.
    whole = remote.identity is ReplicaIdentity.FULL
    whole = whole and (not key or deferral.deferrable)
    new = NewTable(
        remote.namespace,
        remote.name,
        tuple(columns),
        key,
        dimensions=tuple(like.dimensions for like in likes),
        replica_identity=(ReplicaIdentity.FULL if whole else ReplicaIdentity.DEFAULT),
        key_deferral=deferral if key else Deferral.NO,
    )
    check_column_names((c.name for c in new.columns), new.qualified)
    return new


def _with_marks(table: NewTable) -> NewTable:
    """Return the table with the column that marks deleted rows."""
    if table.key_deferral.deferrable:
        raise FeatureNotSupportedError(
            "delete_mode = soft is not supported for a table with a deferrable primary"
            f' key, as "{table.qualified}" has',
            hint="Publish the table to another subscription.",
        )
    return replace(
        table,
        columns=(*table.columns, MARK_COLUMN),
        dimensions=(*table.dimensions, 0),
    )


def _drop_created(node: HasTables, made: Sequence[TableDef]) -> None:
    """Drop the tables of a failed command."""
    for table in made:
        node.catalog.drop_table(table.oid)
        node.tables.drop(table.location)
        node.catalog.deleted(table.location)


@contextmanager
def writes_blocked(node: TableLocks, targets: Sequence[TargetTable]) -> Iterator[None]:
    """Keep writers away from the check for emptiness until the tables are recorded.

    A writer in between would not know that its changes must be reported. Subscriptions' locks are
    taken before."""
    with ExitStack() as stack:
        for location in sorted({target.table.location for target in targets}):
            stack.enter_context(node.tables.writing(location))
        for target in targets:
            name = target.table.name
            node.prepared.refuse_held(target.table, f'replicate into table "{name}"')
        yield


@contextmanager
def tables_unchanged(
    targets: Sequence[TargetTable], versions: Mapping[int, int], node: TableLocks
) -> Iterator[None]:
    """Check, at a block's commit, that the tables are still at the versions the block found.

    40001 if one has changed. Then keeps writers away like ``writes_blocked``."""
    with writes_blocked(node, targets):
        if present_versions(node, targets) != versions:
            raise CommitConflict(
                "could not serialize access due to concurrent update",
                detail="A table of the new subscription has changed.",
                hint="The transaction might succeed if retried.",
            )
        yield


def new_rels(
    node: HasTables,
    subid: Oid,
    targets: Sequence[TargetTable],
    *,
    copy_data: bool,
    begins: Lsn | None = None,
    replaced: Collection[Oid] = (),
    seen_as: Mapping[tuple[str, str], str] = NOT_SEEN,
) -> list[SubscriptionRel]:
    """Return the first relation states of tables that are ``writes_blocked``.

    ``begins``: without a copy, transactions that committed below this position are ignored.
    ``replaced``: tables whose rows the copy replaces. ``seen_as``: how they are published."""
    return [
        SubscriptionRel(
            subid=subid,
            relid=target.table.oid,
            remote_namespace=target.namespace,
            remote_name=target.name,
            state=SyncState.INIT if copy_data else SyncState.READY,
            lsn=None,
            epoch=int(epoch),
            trusted=copy_data and target.whole and is_unwritten(node, target.table),
            begins=begins,
            replaces=target.table.oid in replaced,
            seen_as=seen_as.get((target.namespace, target.name)),
        )
        for target, epoch in zip(
            targets, node.catalog.new_oids(len(targets)), strict=True
        )
    ]


def is_unwritten(node: HasTables, table: TableDef) -> bool:
    """Return whether the table has never been written.

    Earlier rows are not the publisher's, and rows whose deletion was not published remain. In both
    cases inserts must look for existing rows."""
    return node.tables.state(table.location).version == 0


def follow_from(node: HasCatalog, subid: Oid, targets: Sequence[TargetTable]) -> None:
    """Record the columns of new tables, if the subscription follows the publisher's schema.

    Incoming changes are compared with these columns. A copy records its own."""
    subscription = node.catalog.subscription(subid)
    if subscription is not None and subscription.follows_schema and targets:
        node.catalog.start_following(
            subid, {t.table.oid: t.schema for t in targets}, subscription.floor
        )


def present_versions(node: HasTables, targets: Sequence[TargetTable]) -> dict[int, int]:
    """Return the present version of each table, which readers see until its copy joins.

    The tables are ``writes_blocked``."""
    tables = [t.table for t in targets]
    tables += [t.history for t in targets if t.history is not None]
    return {int(t.oid): node.tables.state(t.location).version for t in tables}
