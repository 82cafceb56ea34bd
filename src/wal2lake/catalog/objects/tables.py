"""Rows of ``relation``: lake tables with their columns, key and location.

In: a connection, and in writes a transaction on it. Out: ``TableDef``. Called by ``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from wal2lake.catalog import places
from wal2lake.catalog.objects import indexes, pendingdeletes, sequences
from wal2lake.catalog.records import ColumnDef, TableDef
from wal2lake.errors import UndefinedObjectError
from wal2lake.model import (
    Acl,
    CheckConstraint,
    Deferral,
    Domain,
    Generation,
    Oid,
    PartitionKey,
    PartitionStrategy,
    ReplicaIdentity,
)

_COLUMNS_KEPT: Final = 4096
"""Number of cached decoded lists of columns. They never change, and workers read every table after
each change of the catalog."""


def all_tables(connection: sqlite3.Connection) -> list[TableDef]:
    """Return all tables, by OID."""
    return [
        table_of(connection, r)
        for r in connection.execute("select * from relation order by oid")
    ]


def table_named(
    connection: sqlite3.Connection, namespace: str, name: str
) -> TableDef | None:
    """Return a table by its exact names."""
    row = connection.execute(
        "select * from relation where namespace = ? and name = ?", (namespace, name)
    ).fetchone()
    return None if row is None else table_of(connection, row)


def table_by_oid(connection: sqlite3.Connection, oid: Oid) -> TableDef | None:
    """Return a table by OID."""
    row = connection.execute("select * from relation where oid = ?", (oid,)).fetchone()
    return None if row is None else table_of(connection, row)


def sharing(connection: sqlite3.Connection, storage: Oid) -> tuple[Oid, ...]:
    """Return the OIDs of a table and its partition, by the table's OID."""
    rows = connection.execute(
        "select oid from relation where oid = ? or partition_of = ? order by oid",
        (storage, storage),
    )
    return tuple(Oid(row["oid"]) for row in rows)


def create_table(connection: sqlite3.Connection, table: TableDef) -> None:
    """Record a table, whose files stay. Raises 42P07 if the name is taken, 3F000 if the schema does
    not exist."""
    sequences.refuse_taken(connection, table.namespace, table.name)
    pendingdeletes.forget(connection, table.location)
    try:
        connection.execute(
            "insert into relation (oid, namespace, name, owner, location, columns, key,"
            " key_name, partition_key, partition_of, parameters, replica_identity,"
            " key_deferral, checks) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                table.oid,
                table.namespace,
                table.name,
                table.owner,
                places.stored(connection, table.location),
                json.dumps([asdict(c) for c in table.columns]),
                json.dumps(table.key),
                table.key_name,
                _recorded(table.partition_key),
                table.partition_of,
                json.dumps(table.parameters),
                table.replica_identity.value,
                table.key_deferral.value,
                checks_to_json(table.checks),
            ),
        )
    except sqlite3.IntegrityError as error:
        if "FOREIGN KEY" in str(error):
            raise UndefinedObjectError(
                f'schema "{table.namespace}" does not exist', sqlstate="3F000"
            ) from None
        raise


def rename_table(
    connection: sqlite3.Connection, table: TableDef, namespace: str, name: str
) -> None:
    """Rename a table, or move it with its sequences and indexes to another schema. Raises 42P07 if
    a name is taken."""
    sequences.move_owned(connection, table.oid, namespace)
    if namespace != table.namespace:
        for index in indexes.names_of(connection, table.oid):
            sequences.refuse_taken(connection, namespace, index)
    key_name = table.key_name
    if table.key and key_name is None:
        key_name = table.index_name
    if (namespace, name) != (table.namespace, table.name):
        sequences.refuse_taken(connection, namespace, name)
    connection.execute(
        "update relation set namespace = ?, name = ?, key_name = ? where oid = ?",
        (namespace, name, key_name, table.oid),
    )


def drop_table(connection: sqlite3.Connection, oid: Oid) -> None:
    """Delete a table and its entries in all subscriptions. Its files are to be removed. Raises
    42P01 if it does not exist."""
    table = table_by_oid(connection, oid)
    if table is None:
        raise UndefinedObjectError(
            "the table has been dropped already", sqlstate="42P01"
        )
    if table.partition_of is None:
        pendingdeletes.add(connection, table.location, oid)
    connection.execute("delete from subscription_rel where relid = ?", (oid,))
    connection.execute("delete from coercion where relid = ?", (oid,))
    connection.execute("delete from relation_history where relid = ?", (oid,))
    sequences.drop_owned(connection, oid)
    indexes.drop_of_table(connection, oid)
    connection.execute("delete from relation where oid = ?", (oid,))


def set_replica_identity(
    connection: sqlite3.Connection, oid: Oid, identity: ReplicaIdentity
) -> None:
    """Set the replica identity of a table."""
    connection.execute(
        "update relation set replica_identity = ? where oid = ?", (identity.value, oid)
    )


def set_parameters(
    connection: sqlite3.Connection, oid: Oid, changes: Mapping[str, str | None]
) -> None:
    """Set storage parameters of a table; None to remove one."""
    row = connection.execute(
        "select parameters from relation where oid = ?", (oid,)
    ).fetchone()
    merged = {**dict(json.loads(row["parameters"])), **changes}
    kept = [(name, value) for name, value in merged.items() if value is not None]
    connection.execute(
        "update relation set parameters = ? where oid = ?", (json.dumps(kept), oid)
    )


def any_parameter(connection: sqlite3.Connection, word: str) -> bool:
    """Whether a table has a storage parameter of this name, or with this value."""
    row = connection.execute(
        "select 1 from relation where instr(parameters, ?) limit 1", (json.dumps(word),)
    ).fetchone()
    return row is not None


def table_of(
    connection: sqlite3.Connection, row: sqlite3.Row | Mapping[str, Any]
) -> TableDef:
    """Build the record of a row."""
    return TableDef(
        oid=Oid(row["oid"]),
        namespace=row["namespace"],
        name=row["name"],
        owner=Oid(row["owner"]),
        columns=columns_from_json(row["columns"]),
        key=tuple(json.loads(row["key"])),
        location=places.resolved(connection, row["location"]),
        key_name=row["key_name"],
        partition_key=_partition_key(row["partition_key"]),
        partition_of=None if row["partition_of"] is None else Oid(row["partition_of"]),
        acl=Acl.decode(row["acl"]),
        parameters=tuple(
            (name, value) for name, value in json.loads(row["parameters"])
        ),
        replica_identity=ReplicaIdentity(row["replica_identity"]),
        key_deferral=Deferral(row["key_deferral"]),
        checks=checks_from_json(row["checks"]),
    )


def checks_to_json(checks: Sequence[CheckConstraint]) -> str:
    """Encode constraints for a row of ``relation``."""
    return json.dumps([asdict(check) for check in checks])


@lru_cache(maxsize=_COLUMNS_KEPT)
def checks_from_json(recorded: str) -> tuple[CheckConstraint, ...]:
    """Decode the text of ``checks_to_json``."""
    return tuple(
        CheckConstraint(check["name"], check["expression"], tuple(check["columns"]))
        for check in json.loads(recorded)
    )


def _recorded(key: PartitionKey | None) -> str | None:
    return None if key is None else json.dumps([key.strategy.value, *key.columns])


def _partition_key(recorded: str | None) -> PartitionKey | None:
    if recorded is None:
        return None
    strategy, *columns = json.loads(recorded)
    return PartitionKey(PartitionStrategy(strategy), tuple(columns))


@lru_cache(maxsize=_COLUMNS_KEPT)
def columns_from_json(recorded: str) -> tuple[ColumnDef, ...]:
    """Decode the columns of a row of ``relation``, or of one of its history."""
    return tuple(_column(column) for column in json.loads(recorded))


def _column(recorded: dict[str, Any]) -> ColumnDef:
    domain = recorded.get("domain")
    if domain is not None:
        domain = Domain(**{**domain, "type_oid": Oid(domain["type_oid"])})
    typed: dict[str, Any] = {"type_oid": Oid(recorded["type_oid"]), "domain": domain}
    if recorded.get("sequence") is not None:
        typed["sequence"] = Oid(recorded["sequence"])
    generated = recorded.get("generated")
    if generated is not None:
        columns = tuple(generated["columns"])
        typed["generated"] = Generation(generated["expression"], columns)
    return ColumnDef(**{**recorded, **typed})
