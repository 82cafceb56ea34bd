"""Publications with the tables and schemas that they name.

In: a connection, and in writes a transaction on it. Out: ``Publication``. ``publish.published``
determines the published tables (partitions, all tables of a schema). Called by ``store``.

A row filter is stored as its tree (``pgtypes.expressions.tree``), which is opaque here. The names
of its columns are stored beside the tree, so a column can be renamed here.

Source: pg_publication.h, pg_publication_rel.h, pg_publication_namespace.h.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from wal2lake.catalog.database import take_oid
from wal2lake.errors import DuplicateObjectError
from wal2lake.model import INVALID_OID, Oid

Row: TypeAlias = sqlite3.Row | Mapping[str, Any]


class PublishedOperation(StrEnum):
    """Operations that a publication may send. The value is the operation's word in ``publish``."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """pg_publication_rel: a table that a publication names."""

    relid: Oid
    columns: tuple[str, ...] | None = None
    """Column list, in the table's order. None for all columns."""
    filter: str | None = None
    """Tree of the row filter. None for all rows."""
    filter_columns: tuple[str, ...] = ()
    """Columns that the tree refers to by number."""
    oid: Oid = INVALID_OID
    """OID of the row, given by the catalog."""


@dataclass(frozen=True, slots=True)
class PublishedSchema:
    """pg_publication_namespace: a schema all of whose tables are published."""

    nspid: Oid
    oid: Oid = INVALID_OID


@dataclass(frozen=True, slots=True)
class Publication:
    """pg_publication, with its rows in pg_publication_rel and pg_publication_namespace."""

    oid: Oid
    name: str
    owner: Oid
    all_tables: bool = False
    publishes: frozenset[PublishedOperation] = frozenset(PublishedOperation)
    via_root: bool = False
    """publish_via_partition_root."""
    generated_columns: str = "n"
    """publish_generated_columns: n for none, s for stored."""
    tables: tuple[PublishedTable, ...] = ()
    schemas: tuple[PublishedSchema, ...] = ()

    @property
    def sends_generated(self) -> bool:
        """Whether tables without a column list are sent with generated columns."""
        return self.generated_columns == "s"

    def table(self, relid: Oid) -> PublishedTable | None:
        """Return the publication's row for a table that it names."""
        return next((entry for entry in self.tables if entry.relid == relid), None)


def all_publications(connection: sqlite3.Connection) -> list[Publication]:
    """Return all publications by OID, each with its tables and schemas by OID."""
    return put_together(
        connection.execute("select * from publication order by oid"),
        connection.execute("select * from publication_rel order by oid"),
        connection.execute("select * from publication_namespace order by oid"),
    )


def put_together(
    publications: Iterable[Row], rels: Iterable[Row], namespaces: Iterable[Row]
) -> list[Publication]:
    """Build publications from rows of the three tables, each by OID."""
    tables: dict[int, list[PublishedTable]] = {}
    for row in rels:
        tables.setdefault(row["pubid"], []).append(_table(row))
    schemas: dict[int, list[PublishedSchema]] = {}
    for row in namespaces:
        schema = PublishedSchema(Oid(row["nspid"]), Oid(row["oid"]))
        schemas.setdefault(row["pubid"], []).append(schema)
    return [
        Publication(
            Oid(row["oid"]),
            row["name"],
            Oid(row["owner"]),
            bool(row["all_tables"]),
            frozenset(map(PublishedOperation, row["publishes"].split())),
            bool(row["via_root"]),
            row["generated_columns"],
            tuple(tables.get(row["oid"], ())),
            tuple(schemas.get(row["oid"], ())),
        )
        for row in publications
    ]


def create_publication(
    connection: sqlite3.Connection, publication: Publication
) -> None:
    """Create a publication with its tables and schemas. Raises 42710 if the name is taken."""
    try:
        connection.execute(
            "insert into publication (oid, name, owner, all_tables, publishes, via_root,"
            " generated_columns) values (?, ?, ?, ?, ?, ?, ?)",
            (
                publication.oid,
                publication.name,
                publication.owner,
                publication.all_tables,
                _written(publication.publishes),
                publication.via_root,
                publication.generated_columns,
            ),
        )
    except sqlite3.IntegrityError:
        raise _taken(publication.name) from None
    add_objects(connection, publication.oid, publication.tables, publication.schemas)


def update_publication(
    connection: sqlite3.Connection, oid: Oid, changes: Mapping[str, Any]
) -> None:
    """Set fields of a publication's row. Raises 42710 if a new name is taken."""
    values = {
        name: _written(value) if name == "publishes" else value
        for name, value in changes.items()
    }
    names = ", ".join(f"{name} = ?" for name in values)
    try:
        connection.execute(
            f"update publication set {names} where oid = ?", (*values.values(), oid)
        )
    except sqlite3.IntegrityError:
        raise _taken(str(changes.get("name"))) from None


def drop_publication(connection: sqlite3.Connection, oid: Oid) -> None:
    """Drop a publication with its rows for tables and schemas."""
    connection.execute("delete from publication where oid = ?", (oid,))


def add_objects(
    connection: sqlite3.Connection,
    pubid: Oid,
    tables: Sequence[PublishedTable],
    schemas: Sequence[PublishedSchema],
) -> None:
    """Add tables and schemas that the publication does not name yet."""
    for table in tables:
        columns = None if table.columns is None else json.dumps(table.columns)
        connection.execute(
            "insert into publication_rel (oid, pubid, relid, columns, filter,"
            " filter_columns) values (?, ?, ?, ?, ?, ?)",
            (
                take_oid(connection),
                pubid,
                table.relid,
                columns,
                table.filter,
                json.dumps(table.filter_columns),
            ),
        )
    for schema in schemas:
        connection.execute(
            "insert into publication_namespace (oid, pubid, nspid) values (?, ?, ?)",
            (take_oid(connection), pubid, schema.nspid),
        )


def remove_objects(connection: sqlite3.Connection, oids: Collection[Oid]) -> None:
    """Remove rows of tables and schemas, by the rows' OIDs."""
    for oid in oids:
        connection.execute("delete from publication_rel where oid = ?", (oid,))
        connection.execute("delete from publication_namespace where oid = ?", (oid,))


def forget_table(connection: sqlite3.Connection, relid: Oid) -> None:
    """Delete the rows of a dropped table."""
    connection.execute("delete from publication_rel where relid = ?", (relid,))


def forget_schema(connection: sqlite3.Connection, name: str) -> None:
    """Delete the rows of a schema that is about to be dropped."""
    connection.execute(
        "delete from publication_namespace where nspid ="
        " (select oid from namespace where name = ?)",
        (name,),
    )


def follow_columns(
    connection: sqlite3.Connection,
    relid: Oid,
    renamed: Mapping[str, str],
    present: Collection[str],
) -> None:
    """Adapt a table's column lists and row filters to ALTER TABLE. Renamed columns are renamed. A
    table whose list or filter has a dropped column (DROP COLUMN ... CASCADE) leaves the
    publication. ``present``: present names of the table's columns."""
    rows = connection.execute(
        "select * from publication_rel where relid = ?", (relid,)
    ).fetchall()
    for row in rows:
        columns = None if row["columns"] is None else json.loads(row["columns"])
        read = json.loads(row["filter_columns"])
        listed = columns and [renamed.get(name, name) for name in columns]
        filtered = [renamed.get(name, name) for name in read]
        if not set(listed or ()) | set(filtered) <= set(present):
            connection.execute(
                "delete from publication_rel where oid = ?", (row["oid"],)
            )
        elif (listed, filtered) != (columns, read):
            connection.execute(
                "update publication_rel set columns = ?, filter_columns = ?"
                " where oid = ?",
                (
                    None if listed is None else json.dumps(listed),
                    json.dumps(filtered),
                    row["oid"],
                ),
            )


def _table(row: Row) -> PublishedTable:
    columns = row["columns"]
    return PublishedTable(
        Oid(row["relid"]),
        None if columns is None else tuple(json.loads(columns)),
        row["filter"],
        tuple(json.loads(row["filter_columns"])),
        Oid(row["oid"]),
    )


def _written(publishes: Collection[PublishedOperation]) -> str:
    return " ".join(
        operation.value for operation in PublishedOperation if operation in publishes
    )


def _taken(name: str) -> DuplicateObjectError:
    return DuplicateObjectError(f'publication "{name}" already exists')
