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
from dataclasses import asdict, dataclass, replace
from typing import Self

from wal2lake.model.lsn import INVALID_LSN, Lsn, Oid
from wal2lake.model.relation import Column, Relation, ReplicaIdentity


@dataclass(frozen=True, slots=True)
class RemoteAttribute:
    """A column that is published."""

    number: int
    """pg_attribute.attnum."""
    name: str
    declared_oid: Oid
    """As a Relation message has it: a domain's own."""
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
    """What rows that are older than the column have in it, as text; None: null, or nobody knows
    because all rows were written anew since."""

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
    """Those that are published, by number."""
    live: tuple[int, ...]
    """Numbers of all that the table has."""
    numbers_taken: int
    """pg_class.relnatts: dropped ones count."""
    storage: tuple[str, ...]
    """``oid:filenode`` of the table, or of each leaf partition."""
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
        known = dict(one.split(":") for one in before.storage)
        return any(
            known.get(oid, node) != node
            for oid, node in (one.split(":") for one in self.storage)
        )

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
    """What a publisher's catalog said when a Relation message had come."""

    at: Lsn
    """The commit LSN of the transaction in which the message came: whatever commits below it has
    the columns of before, and only the transaction that altered the table can have both."""
    relation: Relation
    """The message."""
    schema: RemoteSchema
    """The server may be further: then it does not have these columns."""
    settled: Lsn = INVALID_LSN
    """What the publisher asks of rows (NOT NULL) holds for all that commit at or above it: so far
    it was when it was asked. Rows that come before may be of a time without it."""


def _attribute(read: dict[str, object]) -> RemoteAttribute:
    oids = {name: Oid(int(str(read[name]))) for name in ("declared_oid", "type_oid")}
    return RemoteAttribute(**{**read, **oids})  # type: ignore[arg-type]


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
