"""A published table's columns with the facts that the protocol does not send.

A Relation message has names and types only. Attribute numbers, which PostgreSQL never uses again,
show which columns were renamed, added or dropped since the last message. attmissingval is the value
that older rows have in a new column. The file node shows whether all rows were rewritten.

Source: PostgreSQL manual, "pg_attribute" (attnum, attisdropped, attmissingval), "pg_class"
(relnatts); pg_relation_filenode().
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Self

from wal2lake.model.lsn import INVALID_LSN, Lsn, Oid
from wal2lake.model.relations.relation import Column, Relation, ReplicaIdentity


@dataclass(frozen=True, slots=True)
class RemoteAttribute:
    """A published column."""

    number: int
    """pg_attribute.attnum."""
    name: str
    declared_oid: Oid
    """Type OID as in a Relation message: for a domain, the domain's OID."""
    declared_typmod: int
    type_oid: Oid
    """The type under all domains."""
    typmod: int
    type_name: str
    """``schema.name`` of a type that is not built in, otherwise the plain name."""
    dimensions: int
    domain: str | None
    not_null: bool
    default: str | None
    missing: str | None
    """Value of the column, as text, in rows older than the column. None: null, or unknown because
    all rows have been rewritten since."""

    def is_sent_as(self, column: Column) -> bool:
        """Return whether a column of a Relation message has this name, type and modifier."""
        return (self.name, self.declared_oid, self.declared_typmod) == (
            column.name,
            column.type_oid,
            column.typmod,
        )


@dataclass(frozen=True, slots=True)
class RemoteSchema:
    """A published table at one moment."""

    relid: Oid
    namespace: str
    name: str
    attributes: tuple[RemoteAttribute, ...]
    """Published attributes, in the order of their numbers."""
    live: tuple[int, ...]
    """Numbers of all attributes that the table has, published or not."""
    numbers_taken: int
    """pg_class.relnatts, which counts dropped attributes."""
    storage: tuple[str, ...]
    """``oid:filenode:columns`` of the table, or of each leaf partition. ``columns`` is
    ``number=xmin`` of its rows in pg_attribute, separated by slashes."""
    listed: bool = False
    """True if a publication has a column list for the table, so that a column that is not sent
    may still exist."""
    identity: tuple[int, ...] | None = None
    """Numbers, ascending, of the published columns by which UPDATE and DELETE identify a row: those
    of the primary key or of an index. None: not known. All columns (FULL) do not define a key."""

    @property
    def qualified(self) -> str:
        """``schema.table``, unquoted."""
        return f"{self.namespace}.{self.name}"

    def published(self, relation: Relation) -> RemoteSchema:
        """Reduce the schema to the columns of a Relation message.

        If the table does not have all of them exactly, then the message is of another moment and
        the schema is returned unchanged."""
        sent = [a for a in self.attributes if any(map(a.is_sent_as, relation.columns))]
        if len(sent) != len(relation.columns):
            return self
        return replace(self, attributes=tuple(sent))

    def as_relation(self) -> Relation:
        """Return a Relation message with these columns."""
        return Relation(
            self.relid,
            self.namespace,
            self.name,
            ReplicaIdentity.DEFAULT,
            tuple(
                Column(
                    a.name,
                    a.declared_oid,
                    a.declared_typmod,
                    is_key=a.number in (self.identity or ()),
                )
                for a in self.attributes
            ),
        )

    def with_columns(self, names: Container[str]) -> RemoteSchema:
        """Return the schema as if only the named columns were published."""
        kept = tuple(a for a in self.attributes if a.name in names)
        return replace(self, attributes=kept)

    def attribute(self, number: int) -> RemoteAttribute | None:
        """Return the published attribute with this number."""
        return next((a for a in self.attributes if a.number == number), None)

    @property
    def is_whole(self) -> bool:
        """True if every column of the table is published."""
        return set(self.live) <= {a.number for a in self.attributes}

    def rewritten_since(self, before: RemoteSchema) -> bool:
        """Return whether all rows of the table, or of one of its partitions, were rewritten.

        Also true after TRUNCATE and VACUUM FULL."""
        return bool(self._moved_since(before))

    def altered_since(self, before: RemoteSchema) -> bool:
        """Return whether ALTER TABLE may have written new values into columns that existed before.

        A new file node does not prove it: TRUNCATE, VACUUM FULL, CLUSTER, SET LOGGED, SET
        TABLESPACE and SET ACCESS METHOD also assign one, and keep the values. None of these writes
        pg_attribute. ALTER COLUMN ... TYPE and SET EXPRESSION always do, so a new xmin of a
        column's row in pg_attribute distinguishes them. (If a table is vacuumed and one of its
        columns gets another default between two looks, it counts as altered although its values
        are the same.) If nothing is known of the columns before, the table counts as altered.
        """
        return any(
            not was
            or any(was.get(number, xmin) != xmin for number, xmin in has.items())
            for was, has in self._moved_since(before)
        )

    def _moved_since(
        self, before: RemoteSchema
    ) -> list[tuple[dict[str, str], dict[str, str]]]:
        """Return the columns, before and now, of each table or leaf with another file node."""
        earlier = {heap.oid: heap for heap in map(_Heap.parse, before.storage)}
        return [
            (earlier[heap.oid].columns, heap.columns)
            for heap in map(_Heap.parse, self.storage)
            if heap.oid in earlier and earlier[heap.oid].node != heap.node
        ]

    def as_json(self) -> str:
        """Encode the schema for the catalog."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Decode the text from ``as_json``."""
        read = json.loads(text)
        return cls(
            relid=Oid(read["relid"]),
            namespace=read["namespace"],
            name=read["name"],
            attributes=tuple(_attribute(item) for item in read["attributes"]),
            live=tuple(read["live"]),
            numbers_taken=read["numbers_taken"],
            storage=tuple(read["storage"]),
            listed=read["listed"],
            identity=None if read.get("identity") is None else tuple(read["identity"]),
        )


@dataclass(frozen=True, slots=True)
class SentSchema:
    """The publisher's catalog after a Relation message had arrived."""

    commit_lsn: Lsn
    """Commit LSN of the transaction in which the message came. Transactions that commit below it
    have the earlier columns; only the transaction that altered the table can have both."""
    relation: Relation
    """The message."""
    schema: RemoteSchema
    """The schema in the publisher's catalog. If the server had already passed ``commit_lsn``, then
    the schema does not have the message's columns."""
    settled: Lsn = INVALID_LSN
    """The publisher's NOT NULL constraints hold for all transactions that commit at or above this
    position. It is the position at which the catalog was read; earlier rows may be older than the
    constraint."""


@dataclass(frozen=True, slots=True)
class _Heap:
    """One entry of ``RemoteSchema.storage``."""

    oid: str
    node: str
    columns: dict[str, str]
    """xmin in pg_attribute by column number; empty: not known."""

    @classmethod
    def parse(cls, text: str) -> Self:
        oid, node, *columns = text.split(":")
        numbered = (pair.partition("=") for pair in "".join(columns).split("/") if pair)
        return cls(oid, node, {number: xmin for number, _, xmin in numbered})


def _attribute(read: dict[str, object]) -> RemoteAttribute:
    oids = {name: Oid(int(str(read[name]))) for name in ("declared_oid", "type_oid")}
    return RemoteAttribute(**{**read, **oids})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class EnumLabel:
    """One value of an enum type."""

    type_oid: Oid
    type_name: str
    """``schema.name``, quoted as needed."""
    label: str


@dataclass(frozen=True, slots=True)
class EnumColumns:
    """Columns of some tables whose types contain enum types, at any depth."""

    labels: Mapping[Oid, EnumLabel]
    """Labels by their OID in pg_enum, which RENAME VALUE keeps."""
    columns: Mapping[Oid, frozenset[tuple[Oid, int]]]
    """For each enum type, table and attribute number of the columns that may hold its labels."""


@dataclass(frozen=True, slots=True)
class LabelRename:
    """ALTER TYPE ... RENAME VALUE at the publisher."""

    noticed_lsn: Lsn
    """Position of the publisher when the rename was noticed. Rows that were copied below it may
    have the old label."""
    type_name: str
    before: str
    after: str
    columns: frozenset[tuple[Oid, int]]
    """Table and attribute number of the columns that may hold the label (``EnumColumns``)."""

    def concerns(self, schema: RemoteSchema) -> bool:
        """True if the table has a published column that may hold the label."""
        return any(
            relid == schema.relid and schema.attribute(number) is not None
            for relid, number in self.columns
        )


@dataclass(frozen=True, slots=True)
class KnownLabels:
    """The labels that were last seen, and their earlier renames."""

    labels: Mapping[Oid, str]
    renames: tuple[LabelRename, ...] = ()

    def then(
        self, seen: EnumColumns, position: Lsn, copied: EnumColumns | None = None
    ) -> KnownLabels:
        """Add the labels that are seen now. ``position``: a position of the publisher after the
        look. ``copied``: the labels of tables that a copy reads, in its snapshot."""
        in_copies = EnumColumns({}, {}) if copied is None else copied
        renames: list[LabelRename] = []
        for oid, now in sorted(seen.labels.items()):
            columns = seen.columns[now.type_oid]
            copies = in_copies.columns.get(now.type_oid, frozenset())
            rows_have = [(columns - copies, self.labels.get(oid))]
            if oid in in_copies.labels:
                rows_have.append((columns & copies, in_copies.labels[oid].label))
            renames += [
                LabelRename(position, now.type_name, before, now.label, concerned)
                for concerned, before in rows_have
                if concerned and before is not None and before != now.label
            ]
        labels = {oid: label.label for oid, label in seen.labels.items()}
        return KnownLabels({**self.labels, **labels}, (*self.renames, *renames))

    def since(self, begins: Lsn) -> KnownLabels:
        """Drop renames that were noticed below ``begins``."""
        kept = tuple(rename for rename in self.renames if rename.noticed_lsn >= begins)
        return replace(self, renames=kept)

    def as_json(self) -> str:
        """Encode the labels for the catalog."""
        labels = {str(int(oid)): label for oid, label in sorted(self.labels.items())}
        renames = [
            [int(r.noticed_lsn), r.type_name, r.before, r.after, sorted(r.columns)]
            for r in self.renames
        ]
        return json.dumps({"labels": labels, "renames": renames})

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Decode the text from ``as_json``."""
        read = json.loads(text or '{"labels": {}, "renames": []}')
        return cls(
            {Oid(int(oid)): label for oid, label in read["labels"].items()},
            tuple(
                LabelRename(
                    Lsn(noticed),
                    type_name,
                    before,
                    after,
                    frozenset((Oid(relid), number) for relid, number in columns),
                )
                for noticed, type_name, before, after, columns in read["renames"]
            ),
        )


def relation_as_json(relation: Relation) -> str:
    """Encode a relation for the catalog."""
    return json.dumps(
        [
            int(relation.relid),
            relation.namespace,
            relation.name,
            relation.identity.value,
            [[c.name, int(c.type_oid), c.typmod, c.is_key] for c in relation.columns],
        ]
    )


def relation_from_json(text: str) -> Relation:
    """Decode the text from ``relation_as_json``."""
    relid, namespace, name, identity, columns = json.loads(text)
    return Relation(
        Oid(relid),
        namespace,
        name,
        ReplicaIdentity(identity),
        tuple(
            Column(name, Oid(type_oid), typmod, is_key)
            for name, type_oid, typmod, is_key in columns
        ),
    )
