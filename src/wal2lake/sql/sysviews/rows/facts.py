"""The catalog's records in the form of PostgreSQL's catalogs: relations, OIDs and attributes.

Comes in: roles, schemas, tables and comments of a ``CatalogSource``, and the system relations. Goes
out: ``Facts``, immutable and indexed, which the views and the functions share.

The catalog assigns no OIDs to indexes, constraints and defaults. This module assigns OIDs that are
far above those of the catalog. The OIDs of an index and a key constraint are computed from the
table's OID and never change. Defaults and NOT NULL constraints are numbered in order, so their OIDs
may change, and clients do not keep them.

Sources: pg_class.h, pg_constraint.h (names: ChooseConstraintName), ruleutils.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import (
    Authority,
    ColumnDef,
    Comment,
    Namespace,
    OwnedSequence,
    Publication,
    Role,
    RoleMember,
    TableDef,
    TableIndex,
)
from wal2lake.errors import UndefinedObjectError
from wal2lake.model import (
    BOOTSTRAP_SUPERUSER,
    INVALID_OID,
    PUBLIC,
    Acl,
    AclItem,
    CheckConstraint,
    Oid,
)
from wal2lake.pgtypes.columnnames import derived_name
from wal2lake.pgtypes.expressions import decode, deparse
from wal2lake.sql.backend import SessionContext
from wal2lake.sql.grammar import quote_identifier
from wal2lake.sql.grammar.constraints.sequenceoptions import nextval
from wal2lake.sql.sysviews.declarations.relations import SYSTEM, SYSTEM_SCHEMAS

HEAP_AM: Final = Oid(2)
INDEX_METHODS: Final = {
    "btree": Oid(403),
    "hash": Oid(405),
    "gist": Oid(783),
    "gin": Oid(2742),
    "spgist": Oid(4000),
    "brin": Oid(3580),
}
"""pg_am.oid of the access methods of indexes."""
UTF8: Final = 6
"""The number of UTF8 in pg_enc."""

_PG_NAMESPACE: Final = 2615
_PUBLIC_COMMENT: Final = "standard public schema"
"""The comment that initdb gives to schema public."""

_INDEX_OIDS: Final = 0x4000_0000
_KEY_OIDS: Final = 0x5000_0000
_DEFAULT_OIDS: Final = 0x8000_0000
_NOT_NULL_OIDS: Final = 0xA000_0000
_CHECK_OIDS: Final = 0xC000_0000


@dataclass(frozen=True, slots=True)
class Attribute:
    """One row of pg_attribute; ``number`` starts at 1."""

    number: int
    name: str
    type_oid: Oid
    typmod: int
    not_null: bool
    default: str | None = None
    default_oid: Oid = INVALID_OID
    not_null_oid: Oid = INVALID_OID
    """OID of the NOT NULL constraint, for lake tables."""
    identity: str = ""
    """attidentity: a, d, or none."""
    generated: str = ""
    """attgenerated: s, or none. The expression of a generated column is in ``default``."""


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """One row of pg_class."""

    oid: Oid
    namespace: str
    namespace_oid: Oid
    name: str
    kind: str
    """relkind: r, p, v, i, I or S."""
    owner: Oid
    attributes: tuple[Attribute, ...]
    table: TableDef | None = None
    """The lake table; for an index or a sequence, its table."""
    acl: Acl | None = None
    """None: the defaults."""
    index: TableIndex | None = None
    """The definition of an index, unless it is a primary key's."""

    @property
    def key_numbers(self) -> tuple[int, ...]:
        """Attribute numbers of the primary key, in key order."""
        if self.table is None:
            return ()
        names = [column.name for column in self.table.columns]
        return tuple(names.index(name) + 1 for name in self.table.key)

    def attribute(self, name: str) -> Attribute | None:
        """Return the column of that name."""
        return next((a for a in self.attributes if a.name == name), None)

    @property
    def qualified(self) -> str:
        """The relation's name as regclass prints it with its schema."""
        return f"{quote_identifier(self.namespace)}.{quote_identifier(self.name)}"


def index_oid(table: TableDef) -> Oid:
    """Return the OID of a table's primary key index."""
    return Oid(_INDEX_OIDS + table.oid)


def key_constraint_oid(table: TableDef) -> Oid:
    """Return the OID of a table's primary key constraint."""
    return Oid(_KEY_OIDS + table.oid)


def key_name(table: TableDef) -> str:
    """Return the name of a table's primary key constraint and index."""
    return table.index_name


def _not_null_name(table: TableDef, column: Attribute) -> str:
    """Return the name that PostgreSQL gives to a NOT NULL constraint."""
    return derived_name(table.name, column.name, "not_null")


def expression_text(check: CheckConstraint, *, pretty: bool = False) -> str:
    """Return the expression as pg_get_expr() shows it."""
    tree = decode(check.expression)
    return deparse(tree, check.columns, quote_identifier, pretty=pretty)


def generation_text(column: ColumnDef, *, pretty: bool = False) -> str | None:
    """Return the expression of a generated column, as pg_get_expr() shows it."""
    generation = column.generated
    if generation is None:
        return None
    tree = decode(generation.expression)
    return deparse(
        tree,
        generation.columns,
        quote_identifier,
        pretty=pretty,
        assigned=(column.type_oid, column.typmod),
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """The schema of the node at one moment."""

    roles: tuple[Role, ...]
    namespaces: tuple[Namespace, ...]
    """The schemas of lake tables. ``namespace_names`` also has the system schemas."""
    relations: tuple[RelationFacts, ...]
    """Lake tables with their indexes and sequences, and system relations."""
    by_oid: dict[int, RelationFacts]
    by_name: dict[tuple[str, str], RelationFacts]
    partitions: dict[int, RelationFacts]
    """Default partitions by the OID of the partitioned table."""
    accesses: dict[int, tuple[Oid, Acl | None]]
    """Owner and acl of the schemas of lake tables, by the schema's OID."""
    role_names: dict[int, str]
    namespace_names: dict[int, str]
    comments: dict[tuple[int, int], str]
    """By the OID of the catalog that has the object, and the object's OID."""
    authority: Authority
    """The roles with their memberships."""
    database_acl: Acl | None
    tables: tuple[TableDef, ...]
    """The records of the lake tables."""
    publications: tuple[Publication, ...]
    sequences: tuple[OwnedSequence, ...]
    indexed: frozenset[int]
    """OIDs of the tables with indexes."""
    owned_by: dict[int, tuple[RelationFacts, Attribute]]
    """The columns that own sequences, by the sequence's OID."""

    def lake_tables(self) -> Iterator[RelationFacts]:
        """Return the relations that are lake tables."""
        return (r for r in self.relations if r.table is not None and r.kind in "rp")

    def parent(self, table: TableDef) -> TableDef | None:
        """Return the partitioned table of a partition; None if the table is no partition."""
        if table.partition_of is None:
            return None
        return self.by_oid[table.partition_of].table

    def checks(self, table: TableDef) -> list[tuple[Oid, CheckConstraint]]:
        """Return the table's CHECK constraints, with their OIDs."""
        first = _CHECK_OIDS + 1
        for relation in self.lake_tables():
            if relation.table is None or relation.oid == table.oid:
                break
            first += len(relation.table.checks)
        return [(Oid(first + i), check) for i, check in enumerate(table.checks)]

    def partition(self, table: TableDef) -> RelationFacts | None:
        """Return the default partition of a partitioned table."""
        return self.partitions.get(table.oid)

    def not_null_name(self, table: TableDef, attribute: Attribute) -> str:
        """Return a constraint's name; a partition inherits the names of its partitioned table."""
        return _not_null_name(self.parent(table) or table, attribute)

    def namespace_access(self, oid: int) -> tuple[Oid, Acl | None]:
        """Return the owner and the acl of a schema."""
        return self.accesses.get(oid, (BOOTSTRAP_SUPERUSER, SYSTEM_SCHEMA_ACL))

    def acl_text(self, acl: Acl | None) -> list[str] | None:
        """Print an acl as aclitem[]."""
        return None if acl is None else acl.items_text(self.authority.names)

    def namespace_oid(self, name: str) -> Oid | None:
        """Return pg_namespace.oid of a schema's name."""
        return next(
            (
                Oid(oid)
                for oid, schema in self.namespace_names.items()
                if schema == name
            ),
            None,
        )


def build_facts(
    roles: Sequence[Role],
    namespaces: Sequence[Namespace],
    tables: Sequence[TableDef],
    comments: Sequence[Comment],
    members: Sequence[RoleMember] = (),
    database_acl: Acl | None = None,
    publications: Sequence[Publication] = (),
    sequences: Sequence[OwnedSequence] = (),
    indexes: Sequence[TableIndex] = (),
) -> Facts:
    """Index the catalog's records."""
    oids = {n.name: n.oid for n in namespaces}
    owned_by: dict[int, tuple[RelationFacts, Attribute]] = {}
    sequence_by_oid = {sequence.oid: sequence for sequence in sequences}
    numbers = _Numbers()
    lake: list[RelationFacts] = []
    for table in tables:
        relation = _lake_table(table, oids[table.namespace], numbers, sequence_by_oid)
        lake.append(relation)
        if table.key:
            lake.append(_key_index(relation, table))
        lake += _indexes(relation, table, indexes)
        lake += [_sequence(relation, s) for s in sequences if s.relid == table.oid]
        for column, attribute in zip(table.columns, relation.attributes, strict=True):
            owned = sequence_by_oid.get(column.sequence or INVALID_OID)
            if owned is not None and owned.relid == table.oid:
                owned_by[owned.oid] = (relation, attribute)
    relations = (*lake, *_SYSTEM_RELATIONS)
    return Facts(
        roles=tuple(roles),
        namespaces=tuple(namespaces),
        relations=relations,
        by_oid={r.oid: r for r in relations},
        by_name={(r.namespace, r.name): r for r in relations},
        partitions={
            r.table.partition_of: r
            for r in lake
            if r.table is not None
            and r.kind in "rp"
            and r.table.partition_of is not None
        },
        accesses={n.oid: (n.owner, n.acl) for n in namespaces},
        role_names={role.oid: role.name for role in roles},
        namespace_names={
            **{n.oid: n.name for n in namespaces},
            **{oid: name for name, oid in SYSTEM_SCHEMAS.items()},
        },
        comments={
            **{
                (_PG_NAMESPACE, int(n.oid)): _PUBLIC_COMMENT
                for n in namespaces
                if n.name == "public"
            },
            **{(int(c.classid), int(c.objid)): c.description for c in comments},
        },
        authority=Authority(tuple(roles), tuple(members)),
        database_acl=database_acl,
        tables=tuple(tables),
        publications=tuple(publications),
        sequences=tuple(sequences),
        indexed=frozenset(
            {table.oid for table in tables if table.key}
            | {index.relid for index in indexes}
        ),
        owned_by=owned_by,
    )


def current_role(facts: Facts, context: SessionContext) -> Oid:
    """Return the current role's OID; raises 42704 if the role has been dropped."""
    role = facts.authority.by_name.get(context.current_user)
    if role is None:
        raise UndefinedObjectError(f'role "{context.current_user}" does not exist')
    return role.oid


@dataclass(slots=True)
class _Numbers:
    """The next OIDs of defaults and NOT NULL constraints."""

    default: int = _DEFAULT_OIDS
    not_null: int = _NOT_NULL_OIDS

    def next_default(self) -> Oid:
        self.default += 1
        return Oid(self.default)

    def next_not_null(self) -> Oid:
        self.not_null += 1
        return Oid(self.not_null)


def _lake_table(
    table: TableDef,
    namespace_oid: Oid,
    numbers: _Numbers,
    sequences: Mapping[Oid, OwnedSequence],
) -> RelationFacts:
    attributes = []
    for number, column in enumerate(table.columns, 1):
        default = column.default
        owned = sequences.get(column.sequence or INVALID_OID)
        if default is not None and owned is not None:
            # The sequence may have been moved to another schema.
            default = nextval(owned.namespace, owned.name)
        if column.generated is not None:
            default = generation_text(column)
        not_null = column.not_null or column.name in table.key
        attributes.append(
            Attribute(
                number=number,
                name=column.name,
                type_oid=column.type_oid,
                typmod=column.typmod,
                not_null=not_null,
                default=default,
                default_oid=INVALID_OID if default is None else numbers.next_default(),
                not_null_oid=numbers.next_not_null() if not_null else INVALID_OID,
                identity=column.identity,
                generated="" if column.generated is None else "s",
            )
        )
    return RelationFacts(
        oid=table.oid,
        namespace=table.namespace,
        namespace_oid=namespace_oid,
        name=table.name,
        kind="r" if table.partition_key is None else "p",
        owner=table.owner,
        attributes=tuple(attributes),
        table=table,
        acl=table.acl,
    )


def _key_index(relation: RelationFacts, table: TableDef) -> RelationFacts:
    attributes = []
    for number, key in enumerate(relation.key_numbers, 1):
        column = relation.attributes[key - 1]
        attributes.append(
            Attribute(number, column.name, column.type_oid, column.typmod, False)
        )
    return RelationFacts(
        oid=index_oid(table),
        namespace=relation.namespace,
        namespace_oid=relation.namespace_oid,
        name=key_name(table),
        kind="i" if table.partition_key is None else "I",
        owner=relation.owner,
        attributes=tuple(attributes),
        table=table,
    )


def _indexes(
    relation: RelationFacts, table: TableDef, indexes: Sequence[TableIndex]
) -> list[RelationFacts]:
    # The indexes were read after the tables: a column may have been added in between.
    names = {column.name for column in table.columns}
    return [
        _index(relation, index)
        for index in indexes
        if index.relid == table.oid and names.issuperset(index.columns)
    ]


def _index(relation: RelationFacts, index: TableIndex) -> RelationFacts:
    attributes = []
    for number, name in enumerate(index.columns, 1):
        column = relation.attribute(name)
        assert column is not None
        attributes.append(
            Attribute(number, name, column.type_oid, column.typmod, False)
        )
    return RelationFacts(
        oid=index.oid,
        namespace=relation.namespace,
        namespace_oid=relation.namespace_oid,
        name=index.name,
        kind="i",
        owner=relation.owner,
        attributes=tuple(attributes),
        table=relation.table,
        index=index,
    )


_SEQUENCE_COLUMNS: Final = (
    Attribute(1, "last_value", Oid(20), -1, True),
    Attribute(2, "log_cnt", Oid(20), -1, True),
    Attribute(3, "is_called", Oid(16), -1, True),
)


def _sequence(table: RelationFacts, sequence: OwnedSequence) -> RelationFacts:
    return RelationFacts(
        oid=sequence.oid,
        namespace=table.namespace,
        namespace_oid=table.namespace_oid,
        name=sequence.name,
        kind="S",
        owner=table.owner,
        attributes=_SEQUENCE_COLUMNS,
        table=table.table,
    )


def _for_all(letters: str, own: str) -> Acl:
    """Return the privileges that initdb grants on a system object."""
    return Acl(
        (
            AclItem(BOOTSTRAP_SUPERUSER, BOOTSTRAP_SUPERUSER, own),
            AclItem(PUBLIC, BOOTSTRAP_SUPERUSER, letters),
        )
    )


SYSTEM_SCHEMA_ACL: Final = _for_all("U", "UC")

SECRET: Final = frozenset(
    ("pg_catalog", name)
    for name in ("pg_authid", "pg_shadow", "pg_replication_origin_status")
)
"""Relations that only superusers may read, unless it is granted to others."""

_SYSTEM_RELATIONS: Final = tuple(
    RelationFacts(
        oid=relation.oid,
        namespace=relation.schema,
        namespace_oid=SYSTEM_SCHEMAS[relation.schema],
        name=relation.name,
        kind=relation.kind,
        owner=BOOTSTRAP_SUPERUSER,
        attributes=tuple(
            Attribute(number, c.name, c.type_oid, c.typmod, c.not_null)
            for number, c in enumerate(relation.columns, 1)
        ),
        acl=_for_all("", "arwdDxtm")
        if (relation.schema, relation.name) in SECRET
        else _for_all("r", "arwdDxtm"),
    )
    for relation in SYSTEM.values()
)
