"""Determines a publication's tables, columns and rows, and checks replica identities.

In: records of the catalog. Out: one ``PublishedRelation`` per table, as in
pg_get_publication_tables(); whether a table may be updated. Pure. Called by system views, by
sessions before a write, and by decoding.

    publication            a table is published as
    -------------------    ---------------------------------------------------------------------
    FOR TABLE t            itself, with the column list and row filter given for it
    FOR TABLE root         its partition, without either; with publish_via_partition_root itself
    FOR TABLES IN SCHEMA   itself, whole: each table that exists at the time of the call
    FOR ALL TABLES         likewise

Source: pg_get_publication_tables(), GetAllTablesPublicationRelations(),
GetPublicationRelations() in pg_publication.c; pub_rf_contains_invalid_column(),
pub_contains_invalid_column() in publicationcmds.c; CheckCmdReplicaIdentity() in execReplication.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wal2lake.catalog import (
    Namespace,
    Publication,
    PublishedOperation,
    PublishedTable,
    TableDef,
)
from wal2lake.errors import UsageError
from wal2lake.model import Oid, ReplicaIdentity


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """A table as a publication sends it."""

    publication: Publication
    table: TableDef
    columns: tuple[str, ...]
    """Columns that are sent, in the table's order."""
    named: PublishedTable | None = None
    """The table's column list and row filter. None if the table is sent whole."""


def published_tables(
    publication: Publication,
    tables: Sequence[TableDef],
    namespaces: Iterable[Namespace],
) -> list[PublishedRelation]:
    """Return the tables that one publication sends."""
    if publication.all_tables:
        sent_tables = [t for t in tables if _is_sent(publication, t)]
        return [
            PublishedRelation(publication, t, _all(publication, t)) for t in sent_tables
        ]
    oids = {schema.nspid for schema in publication.schemas}
    schemas = {entry.name for entry in namespaces if entry.oid in oids}
    by_oid = {table.oid: table for table in tables}
    named = [
        by_oid[entry.relid] for entry in publication.tables if entry.relid in by_oid
    ]
    whole = [table for table in tables if table.namespace in schemas]
    sent: dict[Oid, TableDef] = {}
    for table in _by_root(publication, [*named, *whole], tables):
        sent.setdefault(table.oid, table)
    if publication.via_root:
        sent = _without_partitions(sent)
    return [_published(publication, table, schemas) for table in sent.values()]


def all_published(
    publications: Iterable[Publication],
    tables: Sequence[TableDef],
    namespaces: Sequence[Namespace],
) -> list[PublishedRelation]:
    """Return the tables that several publications send together. A partition is left out if one of
    them sends its partitioned table."""
    publications = list(publications)
    relations = [
        relation
        for publication in publications
        for relation in published_tables(publication, tables, namespaces)
    ]
    if not any(publication.via_root for publication in publications):
        return relations
    oids = {relation.table.oid for relation in relations}
    return [
        relation for relation in relations if relation.table.partition_of not in oids
    ]


def _is_sent(publication: Publication, table: TableDef) -> bool:
    """Whether FOR ALL TABLES sends the table under this name (a partition and its root are one
    table)."""
    if publication.via_root:
        return table.partition_of is None
    return table.partition_key is None


def _by_root(
    publication: Publication, chosen: Iterable[TableDef], tables: Sequence[TableDef]
) -> Iterable[TableDef]:
    """Yield partitioned tables themselves, or their partitions."""
    for table in chosen:
        if table.partition_key is None or publication.via_root:
            yield table
        else:
            yield from (t for t in tables if t.partition_of == table.oid)


def _without_partitions(sent: dict[Oid, TableDef]) -> dict[Oid, TableDef]:
    return {oid: t for oid, t in sent.items() if t.partition_of not in sent}


def _published(
    publication: Publication, table: TableDef, schemas: set[str]
) -> PublishedRelation:
    named = None if table.namespace in schemas else publication.table(table.oid)
    if named is None or named.columns is None:
        return PublishedRelation(publication, table, _all(publication, table), named)
    return PublishedRelation(publication, table, named.columns, named)


def _all(publication: Publication, table: TableDef) -> tuple[str, ...]:
    """Return the columns sent without a column list: generated columns only if the publication
    sends them."""
    return tuple(
        column.name
        for column in table.columns
        if column.generated is None or publication.sends_generated
    )


# ---- what may be written -----------------------------------------------------------------


def check_replica_identity(
    table: TableDef,
    operation: PublishedOperation,
    publications: Iterable[Publication],
    tables: Sequence[TableDef],
    namespaces: Sequence[Namespace],
) -> None:
    """Raise if subscribers could not find the row of an UPDATE or DELETE of a table: 42P10 if a row
    filter or column list does not fit the replica identity, 55000 if there is none. It does not
    matter whether the statement changes a row."""
    if table.partition_key is not None:
        # The partition is the table that is updated.
        table = next((t for t in tables if t.partition_of == table.oid), table)
    sending = [
        publication
        for publication in publications
        if operation in publication.publishes
        and _sends(publication, table, tables, namespaces)
    ]
    verb = "update" if operation is PublishedOperation.UPDATE else "delete from"
    message = f'cannot {verb} table "{table.name}"'
    identity = table.identity_columns
    detail = _misfit(table, sending, namespaces)
    if detail is not None:
        raise UsageError(message, sqlstate="42P10", detail=detail)
    if not sending or identity is None or identity:
        return
    updating = operation is PublishedOperation.UPDATE
    raise UsageError(
        f"{message} because it does not have a replica identity and publishes"
        f" {'updates' if updating else 'deletes'}",
        sqlstate="55000",
        hint=f"To enable {'updating' if updating else 'deleting from'} the table, set"
        " REPLICA IDENTITY using ALTER TABLE.",
    )


def _misfit(
    table: TableDef, sending: Sequence[Publication], namespaces: Sequence[Namespace]
) -> str | None:
    """Return why a row filter, column list or generated column does not fit the replica identity;
    None if all fit."""
    identity = table.identity_columns
    entries = _named(sending, table, namespaces)
    if identity is not None and any(
        not set(entry.filter_columns) <= set(identity) for entry in entries
    ):
        return (
            "Column used in the publication WHERE expression is not part of the replica"
            " identity."
        )
    if any(
        entry.columns is not None
        and (identity is None or not set(identity) <= set(entry.columns))
        for entry in entries
    ):
        return (
            "Column list used by the publication does not cover the replica identity."
        )
    generated = [
        name for name, _ in table.generated if identity is None or name in identity
    ]
    whole = [p for p in sending if _sends_whole(p, table, namespaces)]
    if generated and not all(p.sends_generated for p in whole):
        return "Replica identity must not contain unpublished generated columns."
    return None


def _sends(
    publication: Publication,
    table: TableDef,
    tables: Sequence[TableDef],
    namespaces: Sequence[Namespace],
) -> bool:
    """Whether a publication sends the table, as itself or as its partitioned table."""
    if publication.all_tables:
        return True
    relations = published_tables(publication, tables, namespaces)
    return any(
        relation.table.oid in (table.oid, table.partition_of) for relation in relations
    )


def _named(
    sending: Sequence[Publication],
    table: TableDef,
    namespaces: Sequence[Namespace],
) -> list[PublishedTable]:
    """Return the column lists and row filters that apply to the table."""
    entries = []
    for publication in sending:
        oids = {schema.nspid for schema in publication.schemas}
        if any(n.oid in oids and n.name == table.namespace for n in namespaces):
            continue
        relid = table.oid
        root = table.partition_of
        if (
            publication.via_root
            and root is not None
            and publication.table(root) is not None
        ):
            relid = root
        named = publication.table(relid)
        if named is not None:
            entries.append(named)
    return entries


def _sends_whole(
    publication: Publication, table: TableDef, namespaces: Sequence[Namespace]
) -> bool:
    """Whether a publication has no column list for the table."""
    return all(
        named.columns is None for named in _named([publication], table, namespaces)
    )


def index_identity(table: TableDef) -> bool:
    """Whether pg_get_replica_identity_index() returns the primary key's index."""
    by_key = (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX)
    has_index = bool(table.key) and not table.key_deferral.deferrable
    return has_index and table.replica_identity in by_key
