"""Reads published tables from a publisher's catalog: their columns, keys and filters.

In: a session, names. Out: ``RemoteTable`` values. Called by ``publisher``.

Source: fetch_remote_table_info() in tablesync.c (reference section 3). The queries for row
estimates, page counts and file nodes are our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from wal2lake.model import (
    INVALID_OID,
    Deferral,
    Oid,
    RemoteAttribute,
    RemoteSchema,
    ReplicaIdentity,
)
from wal2lake.pg.connection import Rows, Session
from wal2lake.pg.quoting import quote_ident, quote_literal, quote_literals

_TYPE_NAME: Final = (
    "CASE WHEN {1}.nspname = 'pg_catalog' THEN {0}.typname"
    " ELSE {1}.nspname || '.' || {0}.typname END"
)


_NOT_NULL: Final = (
    "a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint nn"
    " WHERE nn.conrelid = a.attrelid AND nn.contype = 'n' AND NOT nn.convalidated"
    " AND nn.conkey = ARRAY[a.attnum])"
)
"""True if NOT NULL holds for all rows. Since 18 the constraint may be NOT VALID, and rows older
than the constraint may then contain null."""

_STORAGE: Final = (
    "pg_catalog.string_agg({0}.oid || ':' || {0}.relfilenode || ':'"
    " || COALESCE((SELECT pg_catalog.string_agg(m.attnum || '=' || m.xmin, '/'"
    " ORDER BY m.attnum) FROM pg_catalog.pg_attribute m WHERE m.attrelid = {0}.oid"
    " AND m.attnum > 0::pg_catalog.int2 AND NOT m.attisdropped), ''),"
    " ',' ORDER BY {0}.oid)"
)
"""Storage marks (``RemoteSchema.storage``). pg_relation_filenode() would return the current file
node, whereas the other parts come from the query's snapshot. An ALTER TABLE in between would be
visible in one part only, and its rewrite of the rows would go unnoticed."""


@dataclass(frozen=True, slots=True)
class RemoteColumn:
    """A published column in the publisher's catalog."""

    name: str
    type_oid: Oid
    """OID of the type. For a domain, here and in the fields below, of its base type, through any
    number of domains."""
    typmod: int
    type_name: str
    """``schema.name`` for a type that is not built in, else the plain name."""
    type_kind: str
    """pg_type.typtype: b base, e enum, c composite, r range, m multirange."""
    dimensions: int
    """pg_attribute.attndims: 0 for a scalar."""
    not_null: bool
    """True if all rows satisfy NOT NULL, including rows older than the constraint."""
    default: str | None
    is_identity_key: bool
    toastable: bool
    domain: str | None = None
    """``schema.name`` if the column is declared with a domain."""
    number: int = 0
    """pg_attribute.attnum."""
    declared_oid: Oid = INVALID_OID
    """The type's OID in Relation messages: for a domain, the domain's own OID."""
    declared_typmod: int = -1
    missing: str | None = None
    """The column's value, as text, in rows older than the column."""


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """A published table in the publisher's catalog."""

    oid: Oid
    namespace: str
    name: str
    kind: str
    """pg_class.relkind: r or p."""
    identity: ReplicaIdentity
    columns: tuple[RemoteColumn, ...]
    key: tuple[str, ...]
    """The primary key's columns in key order; empty: none."""
    identity_key: tuple[str, ...]
    """The replica identity index's columns; empty: none."""
    row_filters: tuple[str, ...]
    """Expressions, combined with OR; empty: all rows."""
    estimated_rows: int | None
    pages: int
    file_node: str | None
    """pg_relation_filenode; a different one means that the rows have moved."""
    persistence: str
    """pg_class.relpersistence: p, u or t."""
    row_security: bool
    whole: bool = True
    """True if a query may use ctid: the table has one, and SELECT is granted on the whole table,
    not on some columns only."""
    live: tuple[int, ...] = ()
    """Numbers of all existing columns."""
    numbers_taken: int = 0
    """pg_class.relnatts, which includes dropped columns."""
    storage: tuple[str, ...] = ()
    """Storage marks; ``RemoteSchema.storage`` explains them."""
    unique: tuple[frozenset[str], ...] = ()
    """Column sets by which the rows of a snapshot are unique: see ``unique_columns``."""
    published_as: str | None = None
    """``publication_marks`` in a snapshot; None: not known."""
    published_since: bool = True
    """True if the publication marks have not changed since then."""
    key_deferral: Deferral = Deferral.NO

    @property
    def qualified(self) -> str:
        """``schema.table``, both parts quoted."""
        return f"{quote_ident(self.namespace)}.{quote_ident(self.name)}"

    @property
    def schema(self) -> RemoteSchema:
        """The description that replication of the table's changes needs."""
        return RemoteSchema(
            self.oid,
            self.namespace,
            self.name,
            tuple(
                RemoteAttribute(
                    number=c.number,
                    name=c.name,
                    declared_oid=c.declared_oid,
                    declared_typmod=c.declared_typmod,
                    type_oid=c.type_oid,
                    typmod=c.typmod,
                    type_name=c.type_name,
                    dimensions=c.dimensions,
                    domain=c.domain,
                    not_null=c.not_null,
                    default=c.default,
                    missing=c.missing,
                )
                for c in self.columns
            ),
            self.live,
            self.numbers_taken,
            self.storage,
            identity=tuple(sorted(c.number for c in self.columns if c.is_identity_key))
            or None,
        )


def describe_tables(
    session: Session, names: Sequence[tuple[str, str]], publications: tuple[str, ...]
) -> dict[tuple[str, str], RemoteTable]:
    """Describe published tables, (schema, table), by name; missing ones are left out.

    The number of queries does not depend on the number of tables.
    """
    if not names:
        return {}
    rows = _table_rows(session, names)
    if not rows:
        return {}
    relids = tuple(_oid(row[0]) for row in rows)
    published = published_parts(session, relids, publications)
    columns, live = _columns(session, relids, published)
    storage = _storage(session, relids)
    indexes = _index_columns(session, relids)
    tables = {}
    for relid, row in sorted(
        zip(relids, rows, strict=True), key=lambda pair: pair[1][10:]
    ):
        _, identity, kind, tuples, pages, node, persistence, security, whole = row[:9]
        namespace, table = map(str, row[10:])
        key, identity_key, deferral = indexes[relid]
        tables[namespace, table] = RemoteTable(
            oid=relid,
            namespace=namespace,
            name=table,
            kind=str(kind),
            identity=ReplicaIdentity(identity),
            columns=columns.get(relid, ()),
            key=key,
            identity_key=identity_key,
            row_filters=published[relid].filters,
            estimated_rows=None if tuples is None or int(tuples) < 0 else int(tuples),
            pages=int(pages or 0),
            file_node=node,
            persistence=str(persistence),
            row_security=security == "t",
            whole=whole == "t",
            live=live.get(relid, ()),
            numbers_taken=int(str(row[9])),
            storage=storage.get(relid, ()),
            key_deferral=deferral,
        )
    return tables


def _table_rows(session: Session, names: Sequence[tuple[str, str]]) -> Rows:
    pairs = ", ".join(f"({quote_literal(s)}, {quote_literal(t)})" for s, t in names)
    return session.query(
        "SELECT c.oid, c.relreplident, c.relkind, c.reltuples::bigint,"
        " pg_catalog.pg_relation_size(c.oid)"
        " / pg_catalog.current_setting('block_size')::bigint,"
        " pg_catalog.pg_relation_filenode(c.oid), c.relpersistence,"
        " c.relrowsecurity,"
        # A table of a node has no ctid.
        " pg_catalog.has_table_privilege(c.oid, 'SELECT') AND EXISTS (SELECT"
        " FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid"
        " AND a.attname = 'ctid'), c.relnatts,"
        " n.nspname, c.relname"
        " FROM pg_catalog.pg_class c"
        " INNER JOIN pg_catalog.pg_namespace n ON (c.relnamespace = n.oid)"
        f" WHERE (n.nspname, c.relname) IN ({pairs})"
    )


def describe_schemas(
    session: Session, relids: Sequence[Oid]
) -> dict[Oid, RemoteSchema]:
    """Describe existing tables by OID, with all columns, published or not.

    A single statement reads all of them, so the result is consistent. It takes no lock: a session
    that alters a table may hold its lock until this subscriber has logged the transaction
    (synchronous_standby_names).
    """
    if not relids:
        return {}
    rows = session.query(_schema_query(session.server_version, relids))
    schemas: dict[Oid, RemoteSchema] = {}
    for relid, group in groupby(rows, key=lambda row: _oid(row[0])):
        lines = list(group)
        _, namespace, name, numbers_taken, has_list, storage = lines[0][:6]
        attributes = tuple(_attribute(line[6:]) for line in lines)
        schemas[relid] = RemoteSchema(
            relid,
            str(namespace),
            str(name),
            attributes,
            tuple(a.number for a in attributes),
            int(str(numbers_taken)),
            tuple(storage.split(",")) if storage else (),
            has_list == "t",
        )
    return schemas


def _schema_query(version: int, relids: Sequence[Oid]) -> str:
    listed = (
        "EXISTS (SELECT 1 FROM pg_catalog.pg_publication_rel r JOIN up"
        " ON up.relid = r.prrelid WHERE up.leaf = c.oid AND r.prattrs IS NOT NULL)"
        if version >= 150000
        else "false"
    )
    return (
        f"WITH RECURSIVE {ancestors(relids)},"
        " part(root, relid) AS ("
        "SELECT c.oid, c.oid FROM pg_catalog.pg_class c"
        f" WHERE c.oid IN ({numbers(relids)})"
        " UNION ALL SELECT part.root, i.inhrelid FROM part"
        " JOIN pg_catalog.pg_inherits i ON i.inhparent = part.relid"
        " JOIN pg_catalog.pg_class p ON p.oid = part.relid AND p.relkind = 'p'),"
        f" {_base_types(relids)}"
        f" SELECT c.oid, n.nspname, c.relname, c.relnatts, {listed},"
        f" (SELECT {_STORAGE.format('l')}"
        " FROM part JOIN pg_catalog.pg_class l ON l.oid = part.relid"
        " WHERE part.root = c.oid AND l.relkind <> 'p'),"
        " a.attnum, a.attname, a.atttypid, a.atttypmod, t.oid, below.typmod,"
        f" {_TYPE_NAME.format('t', 'tn')}, below.dimensions,"
        f" CASE WHEN t.oid <> a.atttypid THEN {_TYPE_NAME.format('o', 'own')} END,"
        # With OID 0 instead of the table's, pg_get_expr does not open the table.
        f" {_NOT_NULL}, pg_catalog.pg_get_expr(d.adbin, 0::pg_catalog.oid),"
        # A partitioned table has no missing value; its leaves have it.
        " COALESCE((a.attmissingval::text::text[])[1], (SELECT pg_catalog.min("
        "(l.attmissingval::text::text[])[1]) FROM part"
        " JOIN pg_catalog.pg_attribute l ON l.attrelid = part.relid"
        " WHERE part.root = c.oid AND part.relid <> c.oid"
        " AND l.attname = a.attname AND l.atthasmissing))"
        " FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid"
        " JOIN below ON below.relid = a.attrelid AND below.attnum = a.attnum"
        " JOIN pg_catalog.pg_type t ON t.oid = below.typid AND t.typtype <> 'd'"
        " JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace"
        " JOIN pg_catalog.pg_type o ON o.oid = a.atttypid"
        " JOIN pg_catalog.pg_namespace own ON own.oid = o.typnamespace"
        " LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid"
        " AND d.adnum = a.attnum AND a.attgenerated = ''"
        " ORDER BY c.oid, a.attnum"
    )


def _attribute(row: Sequence[str | None]) -> RemoteAttribute:
    number, name, declared, declared_typmod, type_oid, typmod, type_name = row[:7]
    dimensions, domain, not_null, default, missing = row[7:]
    return RemoteAttribute(
        number=int(str(number)),
        name=str(name),
        declared_oid=_oid(declared),
        declared_typmod=int(str(declared_typmod)),
        type_oid=_oid(type_oid),
        typmod=int(str(typmod)),
        type_name=str(type_name),
        dimensions=int(str(dimensions)),
        domain=domain,
        not_null=not_null == "t",
        default=default,
        missing=missing,
    )


def _storage(session: Session, relids: Sequence[Oid]) -> dict[Oid, tuple[str, ...]]:
    """Return the storage marks of tables; see ``RemoteSchema.storage``."""
    rows = session.query(
        f"SELECT t.root, {_STORAGE.format('l')} FROM (SELECT c.oid AS root,"
        " c.oid AS relid FROM pg_catalog.pg_class c"
        f" WHERE c.oid IN ({numbers(relids)}) AND c.relkind <> 'p'"
        " UNION ALL SELECT c.oid, p.relid FROM pg_catalog.pg_class c,"
        " LATERAL pg_catalog.pg_partition_tree(c.oid) p"
        f" WHERE c.oid IN ({numbers(relids)}) AND c.relkind = 'p' AND p.isleaf) t"
        " JOIN pg_catalog.pg_class l ON l.oid = t.relid GROUP BY t.root"
    )
    return {_oid(r[0]): tuple(str(r[1]).split(",")) for r in rows if r[1]}


def _columns(
    session: Session, relids: Sequence[Oid], published: Mapping[Oid, PublishedParts]
) -> tuple[dict[Oid, tuple[RemoteColumn, ...]], dict[Oid, tuple[int, ...]]]:
    """Return the published columns of tables, and the numbers of all columns."""
    rows = session.query(_column_query(relids))
    published_columns: dict[Oid, list[RemoteColumn]] = {}
    live: dict[Oid, list[int]] = {}
    for row in rows:
        relid, generated = _oid(row[12]), row[13] != ""
        live.setdefault(relid, []).append(int(str(row[0])))
        listed = published[relid].columns
        # A column list contains a generated column only if it is published.
        if generated if listed is None else int(str(row[0])) not in listed:
            continue
        published_columns.setdefault(relid, []).append(_column(row))
    return (
        {relid: tuple(columns) for relid, columns in published_columns.items()},
        {relid: tuple(attnums) for relid, attnums in live.items()},
    )


def _column_query(relids: Sequence[Oid]) -> str:
    return (
        f"WITH RECURSIVE {_base_types(relids)}"
        " SELECT a.attnum, a.attname, t.oid, below.typmod,"
        f" {_TYPE_NAME.format('t', 'tn')}, t.typtype, below.dimensions,"
        f" {_NOT_NULL}, pg_catalog.pg_get_expr(d.adbin, d.adrelid),"
        " COALESCE(a.attnum = ANY(i.indkey), false), a.attstorage <> 'p',"
        f" CASE WHEN t.oid <> a.atttypid THEN {_TYPE_NAME.format('o', 'own')} END,"
        " a.attrelid, a.attgenerated, a.atttypid, a.atttypmod,"
        # A partitioned table has no missing value; its leaves have it.
        " COALESCE((a.attmissingval::text::text[])[1], (SELECT pg_catalog.min("
        "(l.attmissingval::text::text[])[1]) FROM pg_catalog.pg_class r,"
        " LATERAL pg_catalog.pg_partition_tree(r.oid) t, pg_catalog.pg_attribute l"
        " WHERE r.oid = a.attrelid AND r.relkind = 'p' AND t.isleaf"
        " AND l.attrelid = t.relid AND l.attname = a.attname AND l.atthasmissing))"
        " FROM below JOIN pg_catalog.pg_attribute a"
        " ON a.attrelid = below.relid AND a.attnum = below.attnum"
        " JOIN pg_catalog.pg_type t"
        " ON t.oid = below.typid AND t.typtype <> 'd'"
        " JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace"
        " JOIN pg_catalog.pg_type o ON o.oid = a.atttypid"
        " JOIN pg_catalog.pg_namespace own ON own.oid = o.typnamespace"
        " LEFT JOIN pg_catalog.pg_attrdef d"
        " ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
        " AND a.attgenerated = ''"
        # OFFSET 0: the function is called once for each table, not for each pair of a
        # table and an index.
        " LEFT JOIN (SELECT r.relid, x.indkey FROM (SELECT c.oid AS relid,"
        " pg_catalog.pg_get_replica_identity_index(c.oid) AS identity"
        f" FROM pg_catalog.pg_class c WHERE c.oid IN ({numbers(relids)})"
        " OFFSET 0) r JOIN pg_catalog.pg_index x ON x.indexrelid = r.identity) i"
        " ON i.relid = a.attrelid"
        " ORDER BY a.attrelid, a.attnum"
    )


def _column(row: Sequence[str | None]) -> RemoteColumn:
    return RemoteColumn(
        name=str(row[1]),
        type_oid=Oid(int(str(row[2]))),
        typmod=int(str(row[3])),
        type_name=str(row[4]),
        type_kind=str(row[5]),
        dimensions=int(str(row[6])),
        not_null=row[7] == "t",
        default=row[8],
        is_identity_key=row[9] == "t",
        toastable=row[10] == "t",
        domain=row[11],
        number=int(str(row[0])),
        declared_oid=_oid(row[14]),
        declared_typmod=int(str(row[15])),
        missing=row[16],
    )


def ancestors(relids: Sequence[Oid]) -> str:
    """Return a recursive CTE: each table, and the partitioned tables above it."""
    return (
        "up(leaf, relid) AS ("
        "SELECT c.oid, c.oid FROM pg_catalog.pg_class c"
        f" WHERE c.oid IN ({numbers(relids)})"
        " UNION ALL SELECT up.leaf, i.inhparent FROM up"
        " JOIN pg_catalog.pg_inherits i ON i.inhrelid = up.relid"
        " JOIN pg_catalog.pg_class p ON p.oid = i.inhparent AND p.relkind = 'p')"
    )


def _base_types(relids: Sequence[Oid]) -> str:
    """Return a recursive CTE: each column's type, and the types below its domains."""
    return (
        "below(relid, attnum, typid, typmod, dimensions) AS ("
        "SELECT a.attrelid, a.attnum, a.atttypid, a.atttypmod,"
        " a.attndims::pg_catalog.int4 FROM pg_catalog.pg_attribute a"
        " WHERE a.attnum > 0::pg_catalog.int2 AND NOT a.attisdropped"
        f" AND a.attrelid IN ({numbers(relids)})"
        " UNION ALL SELECT below.relid, below.attnum,"
        " t.typbasetype, t.typtypmod, t.typndims"
        " FROM below JOIN pg_catalog.pg_type t ON t.oid = below.typid"
        " WHERE t.typtype = 'd')"
    )


def _index_columns(
    session: Session, relids: Sequence[Oid]
) -> dict[Oid, tuple[tuple[str, ...], tuple[str, ...], Deferral]]:
    """Return the primary key's columns, the replica identity index's columns, and the primary
    key's deferral."""
    rows = session.query(
        "SELECT i.indrelid, i.indisprimary, i.indisreplident, a.attname,"
        " CASE WHEN i.indimmediate THEN 'n' WHEN (SELECT k.condeferred"
        " FROM pg_catalog.pg_constraint k WHERE k.conrelid = i.indrelid"
        " AND k.conindid = i.indexrelid AND k.contype = 'p') THEN 'd' ELSE 'i' END"
        " FROM pg_catalog.pg_index i,"
        " pg_catalog.unnest(i.indkey::pg_catalog.int2[])"
        " WITH ORDINALITY AS k(attnum, position),"
        " pg_catalog.pg_attribute a"
        f" WHERE i.indrelid IN ({numbers(relids)})"
        " AND (i.indisprimary OR i.indisreplident) AND i.indisvalid"
        " AND k.position <= i.indnkeyatts AND a.attrelid = i.indrelid"
        " AND a.attnum = k.attnum ORDER BY k.position"
    )
    keys: dict[Oid, list[str]] = {}
    identities: dict[Oid, list[str]] = {}
    deferrals: dict[Oid, Deferral] = {}
    for relid, primary, identity, name, deferral in rows:
        if primary == "t":
            keys.setdefault(_oid(relid), []).append(str(name))
            deferrals[_oid(relid)] = Deferral(deferral)
        if identity == "t":
            identities.setdefault(_oid(relid), []).append(str(name))
    return {
        relid: (
            tuple(keys.get(relid, ())),
            tuple(identities.get(relid, ())),
            deferrals.get(relid, Deferral.NO),
        )
        for relid in relids
    }


def unique_columns(
    session: Session, relids: Sequence[Oid]
) -> dict[Oid, tuple[frozenset[str], ...]]:
    """Return the columns of each unique index that is immediate and covers all rows.

    No two rows without nulls have the same values in such columns. For rows of an exported
    snapshot the session must use the snapshot: an index created later proves nothing about them.
    """
    if not relids:
        return {}
    rows = session.query(
        "SELECT i.indrelid, i.indexrelid, a.attname"
        " FROM pg_catalog.pg_index i,"
        " pg_catalog.unnest(i.indkey::pg_catalog.int2[])"
        " WITH ORDINALITY AS k(attnum, position),"
        " pg_catalog.pg_attribute a"
        f" WHERE i.indrelid IN ({numbers(relids)})"
        " AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indislive"
        " AND i.indpred IS NULL AND i.indexprs IS NULL"
        " AND k.position <= i.indnkeyatts AND a.attrelid = i.indrelid"
        " AND a.attnum = k.attnum"
    )
    by_index: dict[tuple[Oid, str], set[str]] = {}
    for relid, index, name in rows:
        by_index.setdefault((_oid(relid), str(index)), set()).add(str(name))
    column_sets: dict[Oid, list[frozenset[str]]] = {}
    for (oid, _), names in by_index.items():
        column_sets.setdefault(oid, []).append(frozenset(names))
    return {relid: tuple(names) for relid, names in column_sets.items()}


def publication_marks(
    session: Session, relids: Sequence[Oid], publications: tuple[str, ...]
) -> dict[Oid, str]:
    """Return a mark for each existing table.

    The mark changes with each ALTER PUBLICATION that concerns the table, even if a later one
    reverts the change. It consists of the versions (xmin) of catalog rows: the rows of the
    publications, of the table in them (columns, row filter) and of the table's schema; for a
    partition also its ancestors' rows. Empty: the publisher is a node, whose catalog rows have
    no versions.
    """
    if not relids:
        return {}
    schemas = (
        " UNION ALL SELECT up.leaf, 'n' || pn.oid || ':' || pn.xmin"
        " FROM up JOIN pg_catalog.pg_class c ON c.oid = up.relid"
        " JOIN pg_catalog.pg_publication_namespace pn ON pn.pnnspid = c.relnamespace"
        " JOIN pubs ON pubs.oid = pn.pnpubid"
        if session.server_version >= 150000
        else ""
    )
    rows = session.query(
        f"WITH RECURSIVE {ancestors(relids)},"
        " pubs AS (SELECT p.oid, p.xmin AS version FROM pg_catalog.pg_publication p"
        f" WHERE p.pubname IN ({quote_literals(publications)})),"
        " marks(leaf, mark) AS ("
        "SELECT c.oid, 'p' || pubs.oid || ':' || pubs.version"
        f" FROM pg_catalog.pg_class c, pubs WHERE c.oid IN ({numbers(relids)})"
        " UNION ALL SELECT up.leaf, 'r' || pr.oid || ':' || pr.xmin"
        " FROM up JOIN pg_catalog.pg_publication_rel pr ON pr.prrelid = up.relid"
        f" JOIN pubs ON pubs.oid = pr.prpubid{schemas})"
        " SELECT leaf, pg_catalog.string_agg(mark, ' ' ORDER BY mark)"
        " FROM marks GROUP BY leaf"
    )
    return {_oid(relid): mark or "" for relid, mark in rows}


def published_parts(
    session: Session, relids: Sequence[Oid], publications: tuple[str, ...]
) -> dict[Oid, PublishedParts]:
    """Return each table's published columns and row filters. Without a publication: all."""
    version = session.server_version
    by_relid = dict.fromkeys(relids, PublishedParts(None, ()))
    if version < 150000 or not publications:
        return by_relid
    # Before 18 no generated column can be published. Since 18 attrs lists all published
    # columns, including those of publish_generated_columns.
    listed = (
        "COALESCE(gpt.attrs, '')"
        if version >= 180000
        else "CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)"
        " THEN NULL ELSE gpt.attrs END"
    )
    rows = session.query(
        f"SELECT DISTINCT c.oid, {listed},"
        " pg_catalog.pg_get_expr(gpt.qual, gpt.relid)"
        " FROM pg_catalog.pg_publication p,"
        " LATERAL pg_catalog.pg_get_publication_tables(p.pubname) gpt,"
        " pg_catalog.pg_class c"
        f" WHERE c.oid IN ({numbers(relids)}) AND c.oid = gpt.relid"
        f" AND p.pubname IN ({quote_literals(publications)})"
    )
    by_table: dict[Oid, list[tuple[str | None, str | None]]] = {}
    for relid, columns, condition in rows:
        by_table.setdefault(_oid(relid), []).append((columns, condition))
    for oid, entries in by_table.items():
        columns = entries[0][0]
        filters = list(dict.fromkeys(condition for _, condition in entries))
        by_relid[oid] = PublishedParts(
            None if columns is None else tuple(map(int, columns.split())),
            # A single publication without a filter publishes every row.
            () if None in filters else tuple(map(str, filters)),
        )
    return by_relid


@dataclass(frozen=True, slots=True)
class PublishedParts:
    """The published columns and rows of one table."""

    columns: tuple[int, ...] | None
    """Attribute numbers; None: all columns except generated ones."""
    filters: tuple[str, ...]


def _oid(text: str | None) -> Oid:
    return Oid(int(str(text)))


def numbers(relids: Sequence[Oid]) -> str:
    return ", ".join(str(int(relid)) for relid in relids)
