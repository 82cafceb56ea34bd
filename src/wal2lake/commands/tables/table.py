"""CREATE and DROP of schemas and tables.

A table has storage (a Delta table at its location) and a definition in the catalog (PostgreSQL
types, key, defaults, NOT NULL). Storage is created first and removed last, so a crash leaves at
worst a directory that no definition names. Such a directory is reused only if it holds an empty
table that this node created.

A partitioned table and its default partition are two names of one location. The results are
PostgreSQL's, since a default partition without siblings takes every row. Neither is dropped
without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from wal2lake.apply.local.altering import field_spec
from wal2lake.apply.local.histories import finish_all
from wal2lake.catalog import ColumnDef, OwnedSequence, TableDef
from wal2lake.commands.constraints.checkconstraints import added_checks
from wal2lake.commands.constraints.generatedcolumns import with_generations
from wal2lake.commands.constraints.indexes import COMMANDS as OF_INDEXES
from wal2lake.commands.constraints.indexes import names_index
from wal2lake.commands.constraints.keyconstraints import is_taken, refuse_taken
from wal2lake.commands.constraints.ownedcolumns import owned_columns
from wal2lake.commands.roles.names import check_can_set_role, need_role
from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    StorageError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.lake import INDEXED_COLUMNS, FieldSpec, can_cluster, can_partition
from wal2lake.local.access import (
    check_database_create,
    check_owner,
    check_schema,
    owns,
    refuse_fed,
)
from wal2lake.local.commits.pendingdeletes import (
    OWNER_PROPERTY,
    remove_later,
    remove_now,
    reserve,
)
from wal2lake.local.concurrency.blocks import OpenBlock
from wal2lake.local.node import (
    PERMISSION_DENIED,
    Caller,
    EngineParts,
    described,
    find_table,
    need_table,
    target_schema,
)
from wal2lake.local.ports import (
    Definitions,
    HasCatalog,
    HasSettings,
    HasTables,
    TableDefinitions,
    TableLocks,
)
from wal2lake.model import (
    INVALID_OID,
    CheckConstraint,
    Deferral,
    Oid,
    PartitionKey,
    ReplicaIdentity,
)
from wal2lake.pgtypes.columnnames import check_column_names
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.statements import (
    CreatePartition,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    QualifiedName,
)

_OF_DELTA: Final = "delta."

_MAKERS: Final = 4
"""Tables created at the same time: each waits for its own commit and fsync."""

_DEPENDENT: Final = "2BP01"

_COPY_STOP_SECONDS: Final = 30.0
"""How long DROP TABLE waits for a copy's commit."""

_SAFE: Final = "-_."


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to create."""

    namespace: str
    name: str
    columns: tuple[ColumnDef, ...]
    key: tuple[str, ...]
    key_name: str | None = None
    dimensions: tuple[int, ...] = ()
    """pg_attribute.attndims for each column, if known."""
    partition_key: PartitionKey | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    """Requested Delta properties, and ``partition_columns`` and ``cluster_by`` as text."""
    partition_columns: tuple[str, ...] = ()
    """Columns that partition the lake's files."""
    clustering: tuple[str, ...] = ()
    """Columns that cluster the lake's rows."""
    sequences: tuple[OwnedSequence, ...] = ()
    """Sequences of the columns."""
    replica_identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    key_deferral: Deferral = Deferral.NO
    checks: tuple[CheckConstraint, ...] = ()

    @property
    def qualified(self) -> str:
        """``schema.table`` as in PostgreSQL's messages."""
        return f"{self.namespace}.{self.name}"


def create_schema(node: Definitions, caller: Caller, statement: CreateSchema) -> str:
    """CREATE SCHEMA."""
    owner = caller.role
    if statement.authorization is not None:
        owner = need_role(node.catalog.authority(), caller, statement.authorization)
    name = statement.name or owner.name
    check_database_create(node, caller)
    if owner.oid != caller.role.oid:
        check_can_set_role(node.catalog.authority(), caller, owner)
    if name.startswith("pg_"):
        raise UsageError(
            f'unacceptable schema name "{name}"',
            sqlstate="42939",
            detail='The prefix "pg_" is reserved for system schemas.',
        )
    with node.ddl_lock:
        try:
            node.catalog.create_namespace(name, owner.oid)
        except DuplicateObjectError:
            if not statement.if_not_exists:
                raise
            caller.notice(
                Notice(f'schema "{name}" already exists, skipping', sqlstate="42P06")
            )
    return "CREATE SCHEMA"


def create_table(node: TableDefinitions, caller: Caller, statement: CreateTable) -> str:
    """CREATE TABLE."""
    with node.ddl_lock:
        schema = _free_name(node, caller, statement.table, statement.if_not_exists)
        if schema is None:
            return "CREATE TABLE"
        key_name, name = statement.key_name, statement.table.name
        if key_name is not None:
            refuse_taken(node.catalog, schema, key_name)
        if key_name == name:
            raise DuplicateObjectError(
                f'relation "{name}" already exists', sqlstate="42P07"
            )
        columns, sequences = owned_columns(node.catalog, schema, statement, caller.zone)
        new = NewTable(
            schema,
            statement.table.name,
            columns,
            statement.key,
            statement.key_name,
            partition_key=statement.partition_key,
            parameters=statement.parameters,
            partition_columns=statement.partition_columns,
            clustering=statement.clustering,
            sequences=sequences,
            key_deferral=statement.key_deferral,
        )
        clauses = {
            c.name: c.generated for c in statement.columns if c.generated is not None
        }
        if clauses:
            table = _definition(INVALID_OID, caller, new, "")
            table = with_generations(table, clauses, caller.zone)
            new = replace(new, columns=table.columns)
            _refuse_generated_partition_key(new)
        if statement.checks:
            table = _definition(INVALID_OID, caller, new, "")
            checks = added_checks(node.catalog, table, statement.checks, caller.zone)
            new = replace(new, checks=tuple(checks))
        make_tables(node, caller, [new])
    return "CREATE TABLE"


def _refuse_generated_partition_key(new: NewTable) -> None:
    for column in new.columns:
        keyed = () if new.partition_key is None else new.partition_key.columns
        if column.generated is not None and column.name in keyed:
            raise UsageError(
                "cannot use generated column in partition key",
                sqlstate="42P17",
                detail=f'Column "{column.name}" is a generated column.',
            )


def _free_name(
    node: HasCatalog, caller: Caller, name: QualifiedName, if_not_exists: bool
) -> str | None:
    """Return the schema of a new table; None if IF NOT EXISTS finds the table."""
    schema = target_schema(node.catalog, caller, name.schema)
    check_schema(node, caller, schema, "C")
    if not is_taken(node.catalog, schema, name.name):
        return schema
    text = f'relation "{name.name}" already exists'
    if not if_not_exists:
        raise DuplicateObjectError(text, sqlstate="42P07")
    caller.notice(Notice(f"{text}, skipping", sqlstate="42P07"))
    return None


def create_partition(
    node: Definitions, caller: Caller, statement: CreatePartition
) -> str:
    """CREATE TABLE ... PARTITION OF ... DEFAULT."""
    with node.ddl_lock:
        schema = _free_name(node, caller, statement.table, statement.if_not_exists)
        if schema is None:
            return "CREATE TABLE"
        parent = need_table(
            node.catalog, caller, statement.parent.schema, statement.parent.name
        )
        name = statement.table.name
        check_owner(node, caller, "table", parent.name, parent.owner)
        if parent.partition_key is None:
            raise UsageError(f'"{parent.name}" is not partitioned', sqlstate="42P17")
        default = default_partition(node, parent)
        if default is not None:
            raise UsageError(
                f'partition "{name}" conflicts with existing default partition'
                f' "{default.name}"',
                sqlstate="42P17",
            )
        node.catalog.create_table(
            TableDef(
                node.catalog.new_oid(),
                schema,
                name,
                caller.role.oid,
                parent.columns,
                parent.key,
                parent.location,
                partition_of=parent.oid,
                key_deferral=parent.key_deferral,
                checks=parent.checks,
            )
        )
    return "CREATE TABLE"


def default_partition(node: HasCatalog, table: TableDef) -> TableDef | None:
    """Return the default partition of a partitioned table."""
    return next((t for t in node.catalog.tables() if t.partition_of == table.oid), None)


def make_tables(
    node: TableDefinitions, caller: Caller, new_tables: Sequence[NewTable]
) -> list[TableDef]:
    """Create storage, then catalog entries, for all tables or none. Needs the DDL lock."""
    tables: list[TableDef] = []
    if not new_tables:
        return tables
    taken = {location.lower() for location in node.catalog.locations()}
    taken |= node.unfinished
    for new, oid in zip(
        new_tables, node.catalog.new_oids(len(new_tables)), strict=True
    ):
        check_column_names((c.name for c in new.columns), new.qualified)
        _check_partition_columns(new)
        _check_clustering(new)
        location = _free_location(node, oid, new, taken)
        taken.add(location.lower())
        tables.append(_definition(oid, caller, new, location))
    if caller.block is not None:
        reserve(node, caller.block, tables)
    with ThreadPoolExecutor(_MAKERS, thread_name_prefix="create-table") as makers:
        futures = [
            makers.submit(_make_storage, node, table, new)
            for table, new in zip(tables, new_tables, strict=True)
        ]
        _, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
    try:
        for future in futures:
            if not future.cancelled():
                future.result()
        # One transaction costs one fsync for all tables.
        owning = [
            replace(sequence, relid=table.oid)
            for new, table in zip(new_tables, tables, strict=True)
            for sequence in new.sequences
        ]
        node.catalog.create_table(*tables, owning=owning)
    except BaseException:
        # A block removes them at its end.
        for table, future in zip(tables, futures, strict=True):
            made = not future.cancelled() and future.exception() is None
            if made and caller.block is None:
                node.tables.drop(table.location)
        raise
    return tables


def _definition(oid: Oid, caller: Caller, new: NewTable, location: str) -> TableDef:
    return TableDef(
        oid,
        new.namespace,
        new.name,
        caller.role.oid,
        new.columns,
        new.key,
        location,
        new.key_name,
        new.partition_key,
        parameters=new.parameters,
        replica_identity=new.replica_identity,
        key_deferral=new.key_deferral,
        checks=new.checks,
    )


def _make_storage(node: HasTables, table: TableDef, new: NewTable) -> None:
    if node.tables.exists(table.location):
        _reclaim(node, table.location)
    node.tables.create(
        table.location,
        field_specs(table.columns, new.dimensions),
        {
            **{n: v for n, v in table.parameters if n.startswith(_OF_DELTA)},
            OWNER_PROPERTY: f"{node.catalog.system_identifier}:{table.oid}",
        },
        new.partition_columns,
        new.clustering,
    )


def _check_partition_columns(new: NewTable) -> None:
    for field in field_specs(new.columns, new.dimensions):
        if field.name in new.partition_columns and not can_partition(field.spark_ddl):
            raise FeatureNotSupportedError(
                f'lake tables cannot be partitioned by column "{field.name}"',
                detail=f"Its values are stored as {field.spark_ddl}, and not all of them"
                " can be read back from the name of a partition.",
                hint="Partition by columns of type smallint, integer, bigint,"
                " numeric(p,s), boolean, date or timestamp.",
            )


def _check_clustering(new: NewTable) -> None:
    if not new.clustering:
        return
    for position, field in enumerate(field_specs(new.columns, new.dimensions)):
        if field.name not in new.clustering:
            continue
        if not can_cluster(field.spark_ddl):
            raise FeatureNotSupportedError(
                f'lake tables cannot be clustered by column "{field.name}"',
                detail=f"Its values are stored as {field.spark_ddl}, for which files have"
                " no minimum and maximum.",
                hint="Cluster by columns of a type that is stored as whole number,"
                " decimal, date, timestamp or text.",
            )
        if position >= INDEXED_COLUMNS:
            raise FeatureNotSupportedError(
                f'lake tables cannot be clustered by column "{field.name}"',
                detail="Files have the minimum and maximum of only a table's first"
                f" {INDEXED_COLUMNS} columns.",
                hint="Declare the column among them.",
            )


def _reclaim(node: HasTables, location: str) -> None:
    """Remove what a crashed CREATE of this node left; refuse any other table."""
    state = node.tables.state(location)
    owner = state.properties.get(OWNER_PROPERTY, "")
    mine, _, oid = owner.partition(":")
    ours = mine == str(node.catalog.system_identifier)
    if not ours or node.catalog.table_by_oid(Oid(int(oid or 0))) is not None:
        raise DuplicateObjectError(
            f'a Delta table already exists at "{location}"',
            sqlstate="42P07",
            hint="This node did not create it. Move it away, or use another schema.",
        )
    node.tables.drop(location)


def _free_location(
    node: HasSettings, oid: Oid, new: NewTable, taken: Collection[str]
) -> str:
    """Return an unused location for the table.

    The location has the table's name. If a renamed table is there, or a table whose name differs
    only in case, which some file systems don't distinguish, the OID is appended."""
    location = table_location(node.settings.warehouse, new.namespace, new.name)
    return f"{location}%{oid}" if location.lower() in taken else location


def table_location(warehouse: str, namespace: str, name: str) -> str:
    """``<warehouse>/<schema>/<table>``; unsafe characters are percent-encoded."""
    return f"{warehouse}/{_segment(namespace)}/{_segment(name)}"


def _segment(name: str) -> str:
    # Spark and Hadoop hide names that begin with a dot or an underscore.
    encoded = quote(name, safe=_SAFE)
    if encoded[0] in "._":
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    return encoded


def field_specs(
    columns: Sequence[ColumnDef], dimensions: Sequence[int] = ()
) -> tuple[FieldSpec, ...]:
    """Return the Delta columns of a table definition."""
    return tuple(
        field_spec(column, dimensions[i] if i < len(dimensions) else 0)
        for i, column in enumerate(columns)
    )


def drop_table(node: TableDefinitions, caller: Caller, statement: DropTable) -> str:
    """DROP TABLE."""
    with node.ddl_lock:
        tables: list[TableDef] = []
        for name in statement.tables:
            table = find_table(node.catalog, caller, name.schema, name.name)
            if table is not None:
                _check_droppable(node, caller, table)
                tables.append(table)
                continue
            if names_index(node.catalog, caller, name):
                raise UsageError(
                    f'"{name.name}" is not a table',
                    sqlstate="42809",
                    hint="Use DROP INDEX to remove an index.",
                )
            text = f'table "{name.name}" does not exist'
            if not statement.if_exists:
                raise UndefinedObjectError(text, sqlstate="42P01")
            caller.notice(Notice(f"{text}, skipping"))
        _drop_all(node, caller, tables)
    return "DROP TABLE"


def _drop_all(
    node: TableDefinitions, caller: Caller, tables: Sequence[TableDef]
) -> list[TableDef]:
    """Drop tables and their partitions; returns the tables that are no partitions."""
    oids = {table.oid for table in tables}
    for table in tables:
        if table.partition_of is not None and table.partition_of not in oids:
            raise FeatureNotSupportedError(
                f'"{table.name}" is a partition, which cannot be dropped alone here',
                hint="Drop the partitioned table.",
            )
    named = [table for table in tables if table.partition_of is None]
    for table in named:
        refuse_fed(node.catalog, table, f'drop table "{table.name}"')
    if caller.block is not None:
        for table in named:
            _drop_in_block(node, caller.block, table)
        return named
    if named:
        # Capture first, so subscribers get everything committed before the drop.
        node.capture_before(caller.check)
    for table in named:
        _drop_one(node, table)
    return named


def _drop_in_block(node: TableDefinitions, block: OpenBlock, table: TableDef) -> None:
    """Drop a table and its partition for the rest of a block; COMMIT captures before the drop."""
    oids = _with_partition(node, table)
    if any(rel.relid in oids for rel in node.catalog.rels()):
        raise FeatureNotSupportedError(
            f'cannot drop table "{table.name}" inside a transaction block because a'
            " subscription replicates into it",
            hint="Run DROP TABLE outside of BEGIN ... COMMIT.",
        )
    for oid in oids:
        node.catalog.drop_table(oid)
    remove_later(node, block, table)


def _check_droppable(node: TableLocks, caller: Caller, table: TableDef) -> None:
    """Check that the caller owns the table or its schema."""
    schemas = node.catalog.namespaces()
    owners = [n.owner for n in schemas if n.name == table.namespace]
    if not owns(node.catalog, caller, table.owner, *owners):
        raise UsageError(
            f"must be owner of table {table.name}", sqlstate=PERMISSION_DENIED
        )
    node.prepared.refuse_held(table, f'drop table "{table.name}"')


def _with_partition(node: HasCatalog, table: TableDef) -> list[Oid]:
    """Return the OIDs of a table and its partition, in the order in which they are dropped."""
    partition = default_partition(node, table)
    # The partition first: its catalog row must never name a missing table.
    return [table.oid] if partition is None else [partition.oid, table.oid]


def _drop_one(node: TableDefinitions, table: TableDef) -> None:
    oids = _with_partition(node, table)
    for rel in node.catalog.rels():
        if rel.relid in oids:
            with node.locks.of(rel.subid):
                # A table that cannot be read any more can be dropped all the same.
                with suppress(StorageError):
                    finish_all(node.catalog, node.tables, rel.subid, [rel.relid])
                node.catalog.remove_rel(rel.subid, rel.relid)
    for oid in oids:
        node.catalog.drop_table(oid)
    # A running copy must not write into the next table of that name.
    if not node.sync.halt(relids=oids, timeout_seconds=_COPY_STOP_SECONDS):
        raise UsageError(
            f'table "{table.name}" is being copied',
            sqlstate="55006",
            hint="It is dropped; its files are removed when the table is created again.",
        )
    remove_now(node, table.location)


def drop_schema(node: TableDefinitions, caller: Caller, statement: DropSchema) -> str:
    """DROP SCHEMA; CASCADE drops its tables."""
    with node.ddl_lock:
        owners = {n.name: n.owner for n in node.catalog.namespaces()}
        for name in statement.names:
            if name not in owners:
                text = f'schema "{name}" does not exist'
                if not statement.if_exists:
                    raise UndefinedObjectError(text, sqlstate="3F000")
                caller.notice(Notice(f"{text}, skipping"))
                continue
            check_owner(node, caller, "schema", name, owners[name])
            tables = [t for t in node.catalog.tables() if t.namespace == name]
            if tables and not statement.cascade:
                raise UsageError(
                    f"cannot drop schema {name} because other objects depend on it",
                    sqlstate=_DEPENDENT,
                    detail="\n".join(
                        f"table {described(t, caller.search_path)} depends on schema"
                        f" {name}"
                        for t in tables
                        if t.partition_of is None
                    ),
                    hint="Use DROP ... CASCADE to drop the dependent objects too.",
                )
            named = _drop_all(node, caller, tables)
            if named:
                caller.notice(_cascaded(caller, named))
            node.catalog.drop_namespace(name)
    return "DROP SCHEMA"


def _cascaded(caller: Caller, tables: Sequence[TableDef]) -> Notice:
    names = [described(t, caller.search_path) for t in tables]
    if len(names) == 1:
        return Notice(f"drop cascades to table {names[0]}")
    return Notice(
        f"drop cascades to {len(names)} other objects",
        detail="\n".join(f"drop cascades to table {name}" for name in names),
    )


OF_BLOCKS: Final[Mapping[type, Callable[[EngineParts, Caller, Any], str]]] = {
    CreateSchema: create_schema,
    CreateTable: create_table,
    CreatePartition: create_partition,
    DropTable: drop_table,
    **OF_INDEXES,
}
"""Commands that a transaction block can roll back."""

COMMANDS: Final[Mapping[type, Callable[[EngineParts, Caller, Any], str]]] = {
    **OF_BLOCKS,
    DropSchema: drop_schema,
}
