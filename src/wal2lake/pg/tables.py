"""Published tables as a publisher's catalog has them: their columns, keys and filters.

In: a session, names. Out: ``RemoteTable`` values. Called by ``publisher``.

Source: fetch_remote_table_info() in tablesync.c (reference section 3), and questions of ours: row
estimates, page counts, file nodes.
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
"""NOT NULL that holds for all rows. A constraint may be NOT VALID since 18: older rows may then
have null."""

_STORAGE: Final = (
    "pg_catalog.string_agg({0}.oid || ':' || {0}.relfilenode || ':'"
    " || COALESCE((SELECT pg_catalog.string_agg(m.attnum || '=' || m.xmin, '/'"
    " ORDER BY m.attnum) FROM pg_catalog.pg_attribute m WHERE m.attrelid = {0}.oid"
    " AND m.attnum > 0::pg_catalog.int2 AND NOT m.attisdropped), ''),"
    " ',' ORDER BY {0}.oid)"
)
"""Storage marks (``RemoteSchema.storage``). pg_relation_filenode() would read the file node as it
is now, and the rest comes from the query's snapshot: an ALTER TABLE in between would be seen by
half, and what it has done to the rows would never be noticed."""


@dataclass(frozen=True, slots=True)
class RemoteColumn:
    """A published column as the publisher's catalog has it."""

    name: str
    type_oid: Oid
    """OID of the type; of a domain, here and below, the type under it, through any number of
    domains."""
    typmod: int
    type_name: str
    """``schema.name`` of a type that is not built in, else the plain name."""
    type_kind: str
    """pg_type.typtype: b base, e enum, c composite, r range, m multirange."""
    dimensions: int
    """pg_attribute.attndims: 0 for a scalar."""
    not_null: bool
    """True if all rows satisfy NOT NULL, also those older than the constraint."""
    default: str | None
    is_identity_key: bool
    toastable: bool
    domain: str | None = None
    """``schema.name`` if the column is declared with a domain."""
    number: int = 0
    """pg_attribute.attnum."""
    declared_oid: Oid = INVALID_OID
    """Type OID as a Relation message has it: a domain's own."""
    declared_typmod: int = -1
    missing: str | None = None
    """Value, as text, that rows older than the column have in it."""


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """A published table as the publisher's catalog has it."""

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
    """Expressions, OR-ed; empty: all rows."""
    estimated_rows: int | None
    pages: int
    file_node: str | None
    """pg_relation_filenode: another one means that the rows have moved."""
    persistence: str
    """pg_class.relpersistence: p, u or t."""
    row_security: bool
    whole: bool = True
    """It has a ctid, which may be asked for: SELECT is granted on the table, not on some of its
    columns."""
    live: tuple[int, ...] = ()
    """Numbers of all its columns."""
    numbers_taken: int = 0
    """pg_class.relnatts: dropped columns count."""
    storage: tuple[str, ...] = ()
    """Storage marks; ``RemoteSchema.storage`` explains them."""
    unique: tuple[frozenset[str], ...] = ()
    """Columns of each index by which rows of a snapshot are unique: see ``unique_columns``."""
    published_as: str | None = None
    """``publication_marks`` of a snapshot; None: not known."""
    published_since: bool = True
    """They are the same now."""
    key_deferral: Deferral = Deferral.NO

    @property
    def qualified(self) -> str:
        """``schema.table`` quoted as needed."""
        return f"{quote_ident(self.namespace)}.{quote_ident(self.name)}"

    @property
    def schema(self) -> RemoteSchema:
        """Return the facts that following the table's changes needs."""
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
    """Published ones, (schema, table), by their names: those that are there.

    As many questions as for one table.
    """
    if not names:
        return {}
    rows = _table_rows(session, names)
    if not rows:
        return {}
    relids = tuple(_oid(row[0]) for row in rows)
    published = _published(session, relids, publications)
    columns, live = _columns(session, relids, published)
    storage = _storage(session, relids)
    indexes = _index_columns(session, relids)
    found = {}
    for relid, row in sorted(
        zip(relids, rows, strict=True), key=lambda one: one[1][10:]
    ):
        _, identity, kind, tuples, pages, node, persistence, security, whole = row[:9]
        namespace, table = map(str, row[10:])
        key, identity_key, deferral = indexes[relid]
        found[namespace, table] = RemoteTable(
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
    return found


def _table_rows(session: Session, names: Sequence[tuple[str, str]]) -> Rows:
    pairs = ", ".join(f"({quote_literal(s)}, {quote_literal(t)})" for s, t in names)
    return session.query(
        "SELECT c.oid, c.relreplident, c.relkind, c.reltuples::bigint,"
        " pg_catalog.pg_relation_size(c.oid)"
        " / pg_catalog.current_setting('block_size')::bigint,"
        " pg_catalog.pg_relation_filenode(c.oid), c.relpersistence,"
        " c.relrowsecurity,"
        # A table of another node has none.
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
    """Tables by OID, those that are there, with all their columns, published or not.

    One statement, so of one moment, that asks for no lock: whoever alters a table may hold it until
    the asker has logged what it has done (synchronous_standby_names).
    """
    if not relids:
        return {}
    rows = session.query(_schema_query(session.server_version, relids))
    found: dict[Oid, RemoteSchema] = {}
    for relid, alike in groupby(rows, key=lambda row: _oid(row[0])):
        lines = list(alike)
        _, namespace, name, numbers_taken, has_list, storage = lines[0][:6]
        attributes = tuple(_attribute(line[6:]) for line in lines)
        found[relid] = RemoteSchema(
            relid,
            str(namespace),
            str(name),
            attributes,
            tuple(a.number for a in attributes),
            int(str(numbers_taken)),
            tuple(storage.split(",")) if storage else (),
            has_list == "t",
        )
    return found


def _schema_query(version: int, relids: Sequence[Oid]) -> str:
    listed = (
        "EXISTS (SELECT 1 FROM pg_catalog.pg_publication_rel r JOIN up"
        " ON up.relid = r.prrelid WHERE up.leaf = c.oid AND r.prattrs IS NOT NULL)"
        if version >= 150000
        else "false"
    )
    return (
        f"WITH RECURSIVE {_ancestors(relids)},"
        " part(root, relid) AS ("
        "SELECT c.oid, c.oid FROM pg_catalog.pg_class c"
        f" WHERE c.oid IN ({_numbers(relids)})"
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
        # Without the table's OID: nothing of the table is looked at.
        f" {_NOT_NULL}, pg_catalog.pg_get_expr(d.adbin, 0::pg_catalog.oid),"
        # Of a partitioned table its leaves have it.
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
    """Return storage marks (``RemoteSchema.storage``) of tables."""
    rows = session.query(
        f"SELECT t.root, {_STORAGE.format('l')} FROM (SELECT c.oid AS root,"
        " c.oid AS relid FROM pg_catalog.pg_class c"
        f" WHERE c.oid IN ({_numbers(relids)}) AND c.relkind <> 'p'"
        " UNION ALL SELECT c.oid, p.relid FROM pg_catalog.pg_class c,"
        " LATERAL pg_catalog.pg_partition_tree(c.oid) p"
        f" WHERE c.oid IN ({_numbers(relids)}) AND c.relkind = 'p' AND p.isleaf) t"
        " JOIN pg_catalog.pg_class l ON l.oid = t.relid GROUP BY t.root"
    )
    return {_oid(r[0]): tuple(str(r[1]).split(",")) for r in rows if r[1]}


def _columns(
    session: Session, relids: Sequence[Oid], published: Mapping[Oid, _Published]
) -> tuple[dict[Oid, tuple[RemoteColumn, ...]], dict[Oid, tuple[int, ...]]]:
    """The published ones, and the numbers of all."""
    rows = session.query(_column_query(relids))
    found: dict[Oid, list[RemoteColumn]] = {}
    live: dict[Oid, list[int]] = {}
    for r in rows:
        relid, generated = _oid(r[12]), r[13] != ""
        live.setdefault(relid, []).append(int(str(r[0])))
        listed = published[relid].columns
        # A column list has generated columns only if they are published.
        if generated if listed is None else int(str(r[0])) not in listed:
            continue
        found.setdefault(relid, []).append(_column(r))
    return (
        {relid: tuple(columns) for relid, columns in found.items()},
        {relid: tuple(numbers) for relid, numbers in live.items()},
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
        # Of a partitioned table its leaves have it.
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
        # OFFSET 0: asked once for each table, not for each pair with an index.
        " LEFT JOIN (SELECT r.relid, x.indkey FROM (SELECT c.oid AS relid,"
        " pg_catalog.pg_get_replica_identity_index(c.oid) AS identity"
        f" FROM pg_catalog.pg_class c WHERE c.oid IN ({_numbers(relids)})"
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


def _ancestors(relids: Sequence[Oid]) -> str:
    """Return a recursive CTE: each table, and the partitioned tables above it."""
    return (
        "up(leaf, relid) AS ("
        "SELECT c.oid, c.oid FROM pg_catalog.pg_class c"
        f" WHERE c.oid IN ({_numbers(relids)})"
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
        f" AND a.attrelid IN ({_numbers(relids)})"
        " UNION ALL SELECT below.relid, below.attnum,"
        " t.typbasetype, t.typtypmod, t.typndims"
        " FROM below JOIN pg_catalog.pg_type t ON t.oid = below.typid"
        " WHERE t.typtype = 'd')"
    )


def _index_columns(
    session: Session, relids: Sequence[Oid]
) -> dict[Oid, tuple[tuple[str, ...], tuple[str, ...], Deferral]]:
    """Columns of the primary key, and of the replica identity index; when the key is judged."""
    rows = session.query(
        "SELECT i.indrelid, i.indisprimary, i.indisreplident, a.attname,"
        " CASE WHEN i.indimmediate THEN 'n' WHEN (SELECT k.condeferred"
        " FROM pg_catalog.pg_constraint k WHERE k.conrelid = i.indrelid"
        " AND k.conindid = i.indexrelid AND k.contype = 'p') THEN 'd' ELSE 'i' END"
        " FROM pg_catalog.pg_index i,"
        " pg_catalog.unnest(i.indkey::pg_catalog.int2[])"
        " WITH ORDINALITY AS k(attnum, position),"
        " pg_catalog.pg_attribute a"
        f" WHERE i.indrelid IN ({_numbers(relids)})"
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
    """Columns of each unique index that has every row of the table, and looks at each at once: no
    two rows without nulls share their values.

    Of rows of an exported snapshot this is true if the session sees that one: an index that was
    made later says nothing of them.
    """
    if not relids:
        return {}
    rows = session.query(
        "SELECT i.indrelid, i.indexrelid, a.attname"
        " FROM pg_catalog.pg_index i,"
        " pg_catalog.unnest(i.indkey::pg_catalog.int2[])"
        " WITH ORDINALITY AS k(attnum, position),"
        " pg_catalog.pg_attribute a"
        f" WHERE i.indrelid IN ({_numbers(relids)})"
        " AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indislive"
        " AND i.indpred IS NULL AND i.indexprs IS NULL"
        " AND k.position <= i.indnkeyatts AND a.attrelid = i.indrelid"
        " AND a.attnum = k.attnum"
    )
    by_index: dict[tuple[Oid, str], set[str]] = {}
    for relid, index, name in rows:
        by_index.setdefault((_oid(relid), str(index)), set()).add(str(name))
    found: dict[Oid, list[frozenset[str]]] = {}
    for (oid, _), names in by_index.items():
        found.setdefault(oid, []).append(frozenset(names))
    return {relid: tuple(names) for relid, names in found.items()}


def publication_marks(
    session: Session, relids: Sequence[Oid], publications: tuple[str, ...]
) -> dict[Oid, str]:
    """Return a mark for each existing table. The mark changes with each ALTER PUBLICATION that
    concerns the table, taken back or not. It is made of the versions of the catalog's rows about
    it: its publications', its own in them (columns, row filter) and its schema's; of a partition
    its ancestors', too. Empty: the publisher is a node, whose rows have no versions."""
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
        f"WITH RECURSIVE {_ancestors(relids)},"
        " pubs AS (SELECT p.oid, p.xmin AS version FROM pg_catalog.pg_publication p"
        f" WHERE p.pubname IN ({quote_literals(publications)})),"
        " marks(leaf, mark) AS ("
        "SELECT c.oid, 'p' || pubs.oid || ':' || pubs.version"
        f" FROM pg_catalog.pg_class c, pubs WHERE c.oid IN ({_numbers(relids)})"
        " UNION ALL SELECT up.leaf, 'r' || pr.oid || ':' || pr.xmin"
        " FROM up JOIN pg_catalog.pg_publication_rel pr ON pr.prrelid = up.relid"
        f" JOIN pubs ON pubs.oid = pr.prpubid{schemas})"
        " SELECT leaf, pg_catalog.string_agg(mark, ' ' ORDER BY mark)"
        " FROM marks GROUP BY leaf"
    )
    return {_oid(relid): mark or "" for relid, mark in rows}


def _published(
    session: Session, relids: Sequence[Oid], publications: tuple[str, ...]
) -> dict[Oid, _Published]:
    """Return the columns and rows that the publications have of tables."""
    version = session.server_version
    found = dict.fromkeys(relids, _Published(None, ()))
    if version < 150000:
        return found
    # Before 18 no generated column can be published; since then the list is whole, with
    # those of publish_generated_columns.
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
        f" WHERE c.oid IN ({_numbers(relids)}) AND c.oid = gpt.relid"
        f" AND p.pubname IN ({quote_literals(publications)})"
    )
    by_table: dict[Oid, list[tuple[str | None, str | None]]] = {}
    for relid, columns, condition in rows:
        by_table.setdefault(_oid(relid), []).append((columns, condition))
    for oid, said in by_table.items():
        columns = said[0][0]
        filters = list(dict.fromkeys(condition for _, condition in said))
        found[oid] = _Published(
            None if columns is None else tuple(map(int, columns.split())),
            # One publication without a filter publishes every row.
            () if None in filters else tuple(map(str, filters)),
        )
    return found


@dataclass(frozen=True, slots=True)
class _Published:
    """The published columns and rows of one table."""

    columns: tuple[int, ...] | None
    """Attribute numbers; None: all that are not generated."""
    filters: tuple[str, ...]


def _oid(text: str | None) -> Oid:
    return Oid(int(str(text)))


def _numbers(relids: Sequence[Oid]) -> str:
    return ", ".join(str(int(relid)) for relid in relids)
