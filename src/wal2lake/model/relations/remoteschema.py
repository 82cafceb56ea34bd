"""A published table's columns with what the protocol does not tell of them.

A Relation message has names and types. Which of them were renamed, added or dropped since the last
one follows from attribute numbers, which never come again; what the rows that were there have in a
new column, from the value that the server keeps for them; and whether it has written all rows anew,
from the files that they are in.

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
    """A column that is published."""

    number: int
    """pg_attribute.attnum."""
    name: str
    declared_oid: Oid
    """Type OID as a Relation message has it: a domain's own."""
    declared_typmod: int
    type_oid: Oid
    """The type under all domains."""
    typmod: int
    type_name: str
    """``schema.name`` of a type that is not built in, else the plain name."""
    dimensions: int
    domain: str | None
    not_null: bool
    default: str | None
    missing: str | None
    """Value, as text, that rows older than the column have in it; None: null, or unknown because
    all rows have been rewritten since."""

    def is_sent_as(self, column: Column) -> bool:
        """Does a Relation message mean this one, as it is?"""
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
    """Published attributes, by number."""
    live: tuple[int, ...]
    """Numbers of all that the table has."""
    numbers_taken: int
    """pg_class.relnatts: dropped ones count."""
    storage: tuple[str, ...]
    """``oid:filenode:columns`` of the table, or of each leaf partition. ``columns``:
    ``number=xmin`` of its rows in pg_attribute, between slashes."""
    listed: bool = False
    """A publication has a column list for it, so what is not sent may be there all the same."""
    identity: tuple[int, ...] | None = None
    """Numbers of the published columns by which UPDATE and DELETE name a row, ascending: of the
    primary key or of an index. None: not known; all of them (FULL) say nothing of a key."""

    @property
    def qualified(self) -> str:
        """``schema.table``, unquoted."""
        return f"{self.namespace}.{self.name}"

    def published(self, relation: Relation) -> RemoteSchema:
        """With the columns of a Relation message only, if the table has them all as they are in
        it; otherwise it is of another moment, and stays as it is."""
        sent = [a for a in self.attributes if any(map(a.is_sent_as, relation.columns))]
        if len(sent) != len(relation.columns):
            return self
        return replace(self, attributes=tuple(sent))

    def as_relation(self) -> Relation:
        """A Relation message with these columns."""
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
        """With those of its columns that are called so: as if no other were published."""
        kept = tuple(a for a in self.attributes if a.name in names)
        return replace(self, attributes=kept)

    def attribute(self, number: int) -> RemoteAttribute | None:
        """One by number."""
        return next((a for a in self.attributes if a.number == number), None)

    @property
    def is_whole(self) -> bool:
        """Every column that it has is published."""
        return set(self.live) <= {a.number for a in self.attributes}

    def rewritten_since(self, before: RemoteSchema) -> bool:
        """Were all rows of the table, or of one of its partitions, written anew?

        Also after TRUNCATE and VACUUM FULL."""
        return bool(self._moved_since(before))

    def altered_since(self, before: RemoteSchema) -> bool:
        """True if ALTER TABLE may have written new values into columns that were there before.

        A new file node is not enough: TRUNCATE, VACUUM FULL, CLUSTER, SET LOGGED, SET TABLESPACE
        and SET ACCESS METHOD give the table one, too, and leave its values. None of them writes
        pg_attribute. ALTER COLUMN ... TYPE and SET EXPRESSION always do, so a new version of a
        column's row there tells them apart. (A table that was vacuumed and whose column got
        another default, say, between two looks counts as altered, although it is not.) Where
        nothing is known of the columns before, the table counts as altered.
        """
        return any(
            not was
            or any(was.get(number, xmin) != xmin for number, xmin in has.items())
            for was, has in self._moved_since(before)
        )

    def _moved_since(
        self, before: RemoteSchema
    ) -> list[tuple[dict[str, str], dict[str, str]]]:
        """The columns, before and now, of each table or leaf with another file node."""
        known = {one.oid: one for one in map(_Heap.parse, before.storage)}
        return [
            (known[one.oid].columns, one.columns)
            for one in map(_Heap.parse, self.storage)
            if one.oid in known and known[one.oid].node != one.node
        ]

    def as_json(self) -> str:
        """For the catalog."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of ``as_json``."""
        read = json.loads(text)
        return cls(
            relid=Oid(read["relid"]),
            namespace=read["namespace"],
            name=read["name"],
            attributes=tuple(_attribute(one) for one in read["attributes"]),
            live=tuple(read["live"]),
            numbers_taken=read["numbers_taken"],
            storage=tuple(read["storage"]),
            listed=read["listed"],
            identity=None if read.get("identity") is None else tuple(read["identity"]),
        )


@dataclass(frozen=True, slots=True)
class SentSchema:
    """The publisher's catalog at the time when a Relation message had come."""

    at: Lsn
    """The commit LSN of the transaction in which the message came: whatever commits below it has
    the columns of before, and only the transaction that altered the table can have both."""
    relation: Relation
    """The message."""
    schema: RemoteSchema
    """The server may be further: then it does not have these columns."""
    settled: Lsn = INVALID_LSN
    """Position from which the publisher's NOT NULL constraints hold: for all transactions that
    commit at or above it. It is the position at which the publisher was asked; earlier rows may be
    older than the constraint."""


@dataclass(frozen=True, slots=True)
class _Heap:
    """One entry of ``RemoteSchema.storage``."""

    oid: str
    node: str
    columns: dict[str, str]
    """pg_attribute's xmin by column number; empty: not known."""

    @classmethod
    def parse(cls, text: str) -> Self:
        oid, node, *columns = text.split(":")
        numbered = (one.partition("=") for one in "".join(columns).split("/") if one)
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
    """Columns of some tables that contain enum types, at any depth."""

    labels: Mapping[Oid, EnumLabel]
    """By OID in pg_enum, which RENAME VALUE keeps."""
    columns: Mapping[Oid, frozenset[tuple[Oid, int]]]
    """By type: table and attribute number of the columns that may hold its labels."""


@dataclass(frozen=True, slots=True)
class LabelRename:
    """ALTER TYPE ... RENAME VALUE at the publisher."""

    at: Lsn
    """Where the publisher was when it was noticed. Rows that were copied below it may have the
    label of before."""
    type_name: str
    before: str
    after: str
    columns: frozenset[tuple[Oid, int]]
    """Columns with enum types; ``EnumColumns`` explains them."""

    def concerns(self, schema: RemoteSchema) -> bool:
        """True if the table has a published column that may hold the label."""
        return any(
            relid == schema.relid and schema.attribute(number) is not None
            for relid, number in self.columns
        )


@dataclass(frozen=True, slots=True)
class KnownLabels:
    """Labels as they were last seen, and what has happened to them before."""

    labels: Mapping[Oid, str]
    renames: tuple[LabelRename, ...] = ()

    def then(self, seen: EnumColumns, at: Lsn) -> KnownLabels:
        """With what is seen now; ``at``: the publisher was there afterwards."""
        renames = [
            LabelRename(
                at,
                now.type_name,
                self.labels[oid],
                now.label,
                seen.columns[now.type_oid],
            )
            for oid, now in sorted(seen.labels.items())
            if self.labels.get(oid, now.label) != now.label
        ]
        return KnownLabels(
            {oid: one.label for oid, one in seen.labels.items()},
            (*self.renames, *renames),
        )

    def since(self, begins: Lsn) -> KnownLabels:
        """Without what was noticed below it."""
        kept = tuple(one for one in self.renames if one.at >= begins)
        return replace(self, renames=kept)

    def as_json(self) -> str:
        """For the catalog."""
        labels = {str(int(oid)): label for oid, label in sorted(self.labels.items())}
        renames = [
            [int(r.at), r.type_name, r.before, r.after, sorted(r.columns)]
            for r in self.renames
        ]
        return json.dumps({"labels": labels, "renames": renames})

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """The inverse of ``as_json``."""
        read = json.loads(text or '{"labels": {}, "renames": []}')
        return cls(
            {Oid(int(oid)): label for oid, label in read["labels"].items()},
            tuple(
                LabelRename(
                    Lsn(at),
                    type_name,
                    before,
                    after,
                    frozenset((Oid(relid), number) for relid, number in columns),
                )
                for at, type_name, before, after, columns in read["renames"]
            ),
        )


def relation_as_json(relation: Relation) -> str:
    """For the catalog."""
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
    """The inverse."""
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
