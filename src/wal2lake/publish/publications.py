"""Which tables, columns and rows a publication has, and what it asks of a replica identity.

Comes in: records of the catalog. Goes out: ``PublishedRelation`` per table, as
pg_get_publication_tables() has them; whether a table may be updated. Pure. Called by system views,
by the front door before a write, and by decoding.

    publication            a table is published as
    -------------------    ---------------------------------------------------------------------
    FOR TABLE t            itself, with the column list and row filter given for it
    FOR TABLE root         its partition, without either; with publish_via_partition_root itself
    FOR TABLES IN SCHEMA   itself, whole: each table that is there when somebody asks
    FOR ALL TABLES         the same

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
    """The table's own column list and row filter; None: the table is sent whole."""


def published_tables(
    publication: Publication,
    tables: Sequence[TableDef],
    namespaces: Iterable[Namespace],
) -> list[PublishedRelation]:
    """Return the tables that subscribers of one publication get."""
    if publication.all_tables:
        found = [t for t in tables if _is_sent(publication, t)]
        return [PublishedRelation(publication, t, _all(publication, t)) for t in found]
    oids = {schema.nspid for schema in publication.schemas}
    schemas = {one.name for one in namespaces if one.oid in oids}
    by_oid = {table.oid: table for table in tables}
    named = [by_oid[one.relid] for one in publication.tables if one.relid in by_oid]
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
    """Return the tables that subscribers of several publications at once get: a partition whose
    partitioned table one of them sends is not sent apart."""
    publications = list(publications)
    found = [
        one
        for each in publications
        for one in published_tables(each, tables, namespaces)
    ]
    if not any(each.via_root for each in publications):
        return found
    oids = {one.table.oid for one in found}
    return [one for one in found if one.table.partition_of not in oids]


def _is_sent(publication: Publication, table: TableDef) -> bool:
    """Whether FOR ALL TABLES has it, and not under its other name."""
    if publication.via_root:
        return table.partition_of is None
    return table.partition_key is None


def _by_root(
    publication: Publication, chosen: Iterable[TableDef], tables: Sequence[TableDef]
) -> Iterable[TableDef]:
    """Partitioned tables, or what they consist of."""
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
    """Without a column list: generated columns are sent if the publication says so."""
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
    """Raise if an UPDATE or DELETE of a table could not be sent so that subscribers find the row:
    42P10 for a row filter or column list that the replica identity does not fit, 55000 without
    one. Whether a row is touched does not matter."""
    if table.partition_key is not None:
        # Its partition is what is updated.
        table = next((t for t in tables if t.partition_of == table.oid), table)
    sending = [
        one
        for one in publications
        if operation in one.publishes and _has(one, table, tables, namespaces)
    ]
    verb = "update" if operation is PublishedOperation.UPDATE else "delete from"
    what = f'cannot {verb} table "{table.name}"'
    identity = table.identity_columns
    for named in _named(sending, table, namespaces):
        if identity is not None and not set(named.filter_columns) <= set(identity):
            raise UsageError(
                what,
                sqlstate="42P10",
                detail="Column used in the publication WHERE expression is not part of"
                " the replica identity.",
            )
    for named in _named(sending, table, namespaces):
        if named.columns is None:
            continue
        if identity is None or not set(identity) <= set(named.columns):
            raise UsageError(
                what,
                sqlstate="42P10",
                detail="Column list used by the publication does not cover the replica"
                " identity.",
            )
    known = [
        name for name, _ in table.generated if identity is None or name in identity
    ]
    whole = [one for one in sending if _sends_whole(one, table, namespaces)]
    if known and not all(one.sends_generated for one in whole):
        raise UsageError(
            what,
            sqlstate="42P10",
            detail="Replica identity must not contain unpublished generated columns.",
        )
    if not sending or identity is None or identity:
        return
    updating = operation is PublishedOperation.UPDATE
    raise UsageError(
        f"{what} because it does not have a replica identity and publishes"
        f" {'updates' if updating else 'deletes'}",
        sqlstate="55000",
        hint=f"To enable {'updating' if updating else 'deleting from'} the table, set"
        " REPLICA IDENTITY using ALTER TABLE.",
    )


def _has(
    publication: Publication,
    table: TableDef,
    tables: Sequence[TableDef],
    namespaces: Sequence[Namespace],
) -> bool:
    """Whether it sends the table, itself or as its partitioned table."""
    if publication.all_tables:
        return True
    found = published_tables(publication, tables, namespaces)
    return any(one.table.oid in (table.oid, table.partition_of) for one in found)


def _named(
    sending: Sequence[Publication],
    table: TableDef,
    namespaces: Sequence[Namespace],
) -> list[PublishedTable]:
    """The column lists and row filters that hold for the table."""
    found = []
    for one in sending:
        oids = {schema.nspid for schema in one.schemas}
        if any(n.oid in oids and n.name == table.namespace for n in namespaces):
            continue
        relid = table.oid
        root = table.partition_of
        if one.via_root and root is not None and one.table(root) is not None:
            relid = root
        named = one.table(relid)
        if named is not None:
            found.append(named)
    return found


def _sends_whole(
    publication: Publication, table: TableDef, namespaces: Sequence[Namespace]
) -> bool:
    """Whether it has no column list for the table."""
    return all(
        named.columns is None for named in _named([publication], table, namespaces)
    )


def index_identity(table: TableDef) -> bool:
    """Whether the primary key's index is what pg_get_replica_identity_index() gives."""
    by_key = (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX)
    has_index = bool(table.key) and not table.key_deferral.deferrable
    return has_index and table.replica_identity in by_key
