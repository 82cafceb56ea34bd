"""Compares a published table's columns with those that the local table agrees with. Pure.

In: the schema that the local table agrees with, a Relation message, and the publisher's catalog as
read after the message had arrived. Out: the steps from the old schema to the new one, and whether
the values of the new columns are known for the local rows.

Attribute numbers tell a renamed column from another column. A Relation message has no numbers. If
the catalog was read after further changes, the message's columns are matched by name or by place:
message and catalog both list columns in the order of their numbers.

If the server has not rewritten its rows, the value of a new column in old rows is known: the
attribute's missing value, or null. If the server has rewritten them, they may have any value (a
volatile default, ``USING``), and the table has to be copied. The table also has to be copied if a
column existed before it was published, and if a column was dropped and added again under the same
name between two messages.

Source: PostgreSQL manual, ALTER TABLE, notes on rewriting; ATExecAddColumn().
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from wal2lake.model import (
    Column,
    Oid,
    Relation,
    RemoteAttribute,
    RemoteSchema,
    ReplicaIdentity,
    SentSchema,
)


@dataclass(frozen=True, slots=True)
class Added:
    """A new column, at the end."""

    attribute: RemoteAttribute


@dataclass(frozen=True, slots=True)
class Dropped:
    """A column that was dropped."""

    name: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same column under another name."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column whose type has changed; ``attribute`` has the new type and the new name."""

    attribute: RemoteAttribute


@dataclass(frozen=True, slots=True)
class NullsAllowed:
    """SET or DROP NOT NULL."""

    name: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class RelationMoved:
    """RENAME TO, SET SCHEMA."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Keyed:
    """A new primary key or another replica identity index: UPDATE and DELETE identify rows by other
    columns."""

    before: tuple[str, ...] | None
    """Present names of the columns of the previous key; empty if one of them was dropped. None if
    the previous key is not known."""
    columns: tuple[str, ...]
    whole: bool
    """Whether all columns of the table are published, so that ``columns`` is the whole key."""


Step = Added | Dropped | Renamed | Retyped | NullsAllowed | RelationMoved | Keyed


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """The difference between two schemas of a published table."""

    steps: tuple[Step, ...]
    """Steps in an order in which they can be carried out: each name is given up before it is
    taken."""
    after: RemoteSchema
    """Schema that the table agrees with once the steps are made."""
    unknown: str | None = None
    """Reason why the values of the columns are not known for the local rows. None if they are
    known."""
    partitions: tuple[str, ...] = ()
    """Partitions attached or detached. Their rows are not sent, so the table does not change."""


def difference(before: RemoteSchema, sent: SentSchema) -> SchemaDifference:
    """Compute the steps from ``before`` to the columns of a Relation message."""
    relation = sent.relation
    after, certain = _as_sent(before, sent)
    after = replace(after, identity=_identity(relation, after) or before.identity)
    old = {a.number: a for a in before.attributes}
    new = {a.number: a for a in after.attributes}
    dropped = [
        Dropped(a.name)
        for a in before.attributes
        if a.number not in new and a.number not in after.live
    ]
    renamed = _renames(
        [
            Renamed(old[n].name, a.name)
            for n, a in new.items()
            if n in old and old[n].name != a.name
        ],
        taken={a.name for a in (*before.attributes, *after.attributes)},
    )
    added = [Added(a) for n, a in new.items() if n not in old]
    retyped = [
        Retyped(a) for n, a in new.items() if n in old and _type(old[n]) != _type(a)
    ]
    nulls = [
        NullsAllowed(a.name, not a.not_null)
        for n, a in new.items()
        if n in old and old[n].not_null != a.not_null
    ]
    moved = (relation.namespace, relation.name) != (before.namespace, before.name)
    steps: list[Step] = [*dropped, *renamed, *retyped, *added, *nulls]
    if after.identity is not None and after.identity != before.identity:
        steps.append(
            Keyed(
                None if before.identity is None else _names(after, before.identity),
                _names(after, after.identity),
                after.is_whole,
            )
        )
    if moved:
        steps.append(RelationMoved(relation.namespace, relation.name))
    return SchemaDifference(
        tuple(steps),
        after,
        _unknown(before, sent, added, retyped, dropped)
        if certain
        else "its columns have changed more than once, and not all of that can be told",
        _partitions(before, after),
    )


def _identity(relation: Relation, after: RemoteSchema) -> tuple[int, ...]:
    """Return the numbers of the key columns in the message; empty if it has no key, and the old key
    stays."""
    if relation.identity not in (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX):
        return ()
    named = {c.name for c in relation.columns if c.is_key}
    return tuple(sorted(a.number for a in after.attributes if a.name in named))


def _names(schema: RemoteSchema, numbers: Sequence[int]) -> tuple[str, ...]:
    attributes = [schema.attribute(number) for number in numbers]
    names = [a.name for a in attributes if a is not None]
    return tuple(names) if len(names) == len(numbers) else ()


def _type(attribute: RemoteAttribute) -> tuple[object, ...]:
    return (
        attribute.declared_oid,
        attribute.declared_typmod,
        attribute.type_oid,
        attribute.typmod,
        attribute.domain,
    )


def _unknown(
    before: RemoteSchema,
    sent: SentSchema,
    added: Sequence[Added],
    retyped: Sequence[Retyped],
    dropped: Sequence[Dropped],
) -> str | None:
    # The rewrite may have come later, but then the missing values of older rows are lost.
    rewritten = sent.schema.rewritten_since(before)
    names = [c.name for c in sent.relation.columns]
    alike = names == [a.name for a in before.attributes]
    dropped_names = {step.name for step in dropped if alike}
    for step in added:
        column = step.attribute
        if column.number <= before.numbers_taken:
            return f'column "{column.name}" was there before it was published'
        if rewritten:
            return f'adding column "{column.name}" has written all rows anew'
        if column.name in dropped_names:
            return f'column "{column.name}" was dropped and added anew'
        between = range(before.numbers_taken + 1, column.number)
        if not set(between) <= set(sent.schema.live):
            # Rows of this transaction may have the lost column under the same name.
            return f'another column came and went before "{column.name}" was added'
    if retyped and rewritten:
        name = retyped[0].attribute.name
        return f'the new type of column "{name}" has written all rows anew'
    if sent.schema.altered_since(before):
        # USING, or a new expression of a generated column. Other changes leave no such trace.
        return "ALTER TABLE has written all rows anew"
    return None


def _partitions(before: RemoteSchema, after: RemoteSchema) -> tuple[str, ...]:
    had, has = ({s.split(":")[0] for s in schema.storage} for schema in (before, after))
    if had == has or before.relid in map(_oid, had | has):
        return ()
    return (
        *(f"ATTACH PARTITION with OID {oid}" for oid in sorted(has - had)),
        *(f"DETACH PARTITION with OID {oid}" for oid in sorted(had - has)),
    )


def _oid(text: str) -> Oid:
    return Oid(int(text))


def _renames(renames: Sequence[Renamed], taken: set[str]) -> list[Renamed]:
    """Order renames so that each new name is free. In a cycle, one column first gets a temporary
    name that is not taken."""
    remaining = list(renames)
    ordered: list[Renamed] = []
    while remaining:
        held = {rename.before for rename in remaining}
        free = [rename for rename in remaining if rename.after not in held]
        if free:
            ordered += free
            remaining = [rename for rename in remaining if rename not in free]
            continue
        first = remaining[0]
        waiting = f"{first.before[:50]}_"
        while waiting in taken:
            waiting += "_"
        taken.add(waiting)
        ordered.append(Renamed(first.before, waiting))
        remaining[0] = Renamed(waiting, first.after)
    return ordered


def _as_sent(before: RemoteSchema, sent: SentSchema) -> tuple[RemoteSchema, bool]:
    """Build the schema with the columns of the Relation message. The second value tells whether the
    match is certain."""
    columns, catalog_schema = sent.relation.columns, sent.schema
    named = replace(
        catalog_schema, namespace=sent.relation.namespace, name=sent.relation.name
    )
    if len(columns) == len(catalog_schema.attributes) and all(
        a.is_sent_as(c) for a, c in zip(catalog_schema.attributes, columns, strict=True)
    ):
        sent_numbers = tuple(a.number for a in catalog_schema.attributes)
        last = max([before.numbers_taken, *sent_numbers])
        if catalog_schema.listed or not any(
            number > last for number in catalog_schema.live
        ):
            return named, True
        aligned = _Aligned(0, sent_numbers, 1)
    else:
        aligned = _align(before, columns, catalog_schema)
    # The catalog is newer than the message, so its facts about the rows are too new.
    numbers = aligned.numbers
    old = {a.number: a for a in before.attributes}
    new = {a.number: a for a in catalog_schema.attributes}
    attributes = []
    for number, column in zip(numbers, columns, strict=True):
        attribute = next(
            (
                candidate
                for candidate in (new.get(number), old.get(number))
                if candidate is not None and candidate.declared_oid == column.type_oid
            ),
            None,
        )
        attributes.append(_attribute(number, column, attribute))
    schema = replace(
        named,
        attributes=tuple(attributes),
        live=tuple(sorted({*(set(catalog_schema.live) & set(before.live)), *numbers})),
        numbers_taken=max([before.numbers_taken, *numbers]),
        storage=before.storage,
    )
    # The walsender may send a commit before other sessions see it. Then the catalog has not
    # changed yet.
    stale = (catalog_schema.live, catalog_schema.numbers_taken) == (
        before.live,
        before.numbers_taken,
    )
    renamed = any(
        old[number].name != column.name
        for number, column in zip(numbers, columns, strict=True)
        if number in old
    )
    return schema, aligned.ways == 1 and not (stale and renamed)


def _attribute(
    number: int, column: Column, attribute: RemoteAttribute | None
) -> RemoteAttribute:
    if attribute is not None:
        return replace(
            attribute,
            name=column.name,
            declared_typmod=column.typmod,
            typmod=column.typmod if attribute.domain is None else attribute.typmod,
        )
    return RemoteAttribute(
        number=number,
        name=column.name,
        declared_oid=column.type_oid,
        declared_typmod=column.typmod,
        type_oid=column.type_oid,
        typmod=column.typmod,
        type_name="",
        dimensions=0,
        domain=None,
        not_null=False,
        default=None,
        missing=None,
    )


@dataclass(frozen=True, slots=True)
class _Aligned:
    """Attribute numbers assigned to the columns of a message, in order."""

    score: int
    numbers: tuple[int, ...]
    ways: int
    """Number of assignments with this score."""


_IMPOSSIBLE: Final = _Aligned(-1_000_000, (), 0)

_SAME_NAME: Final = 8
_LATER_NAME: Final = 6
_SAME_TYPE: Final = 1
_OTHER_TYPE: Final = -2
_LEFT_OUT: Final = -20
"""Penalty for leaving out a column that exists before and after: it existed all the time and can
only have been unpublished."""


def _align(
    before: RemoteSchema, columns: Sequence[Column], catalog_schema: RemoteSchema
) -> _Aligned:
    """Assign numbers to the columns of a Relation message that lies between two schemas. All three
    list columns in the order of their numbers. The best assignment agrees with most names and
    types."""
    if [c.name for c in columns] == [a.name for a in before.attributes]:
        return _Aligned(0, tuple(a.number for a in before.attributes), 1)
    old = {a.number: a for a in before.attributes}
    new = {a.number: a for a in catalog_schema.attributes}
    later = range(before.numbers_taken + 1, catalog_schema.numbers_taken + 1)
    numbers = sorted({*old, *new, *later})
    # best[j]: best assignment of the columns so far to the first j numbers.
    best = [_Aligned(0, (), 1)]
    for number in numbers:
        left = _LEFT_OUT if number in old and number in catalog_schema.live else 0
        last = best[-1]
        best.append(_Aligned(last.score + left, (), 1))
    for column in columns:
        row = [_IMPOSSIBLE]
        for j, number in enumerate(numbers, 1):
            taken = best[j - 1]
            score = _likeness(column, old.get(number), new.get(number))
            assigned_here = _Aligned(
                taken.score + score, (*taken.numbers, number), taken.ways
            )
            left = _LEFT_OUT if number in old and number in catalog_schema.live else 0
            skipped = row[j - 1]
            without = _Aligned(skipped.score + left, skipped.numbers, skipped.ways)
            if assigned_here.ways == 0 or without.score > assigned_here.score:
                row.append(without)
            elif without.score == assigned_here.score and without.ways:
                ways = assigned_here.ways + without.ways
                row.append(_Aligned(without.score, without.numbers, ways))
            else:
                row.append(assigned_here)
        best = row
    if best[-1].ways:
        return best[-1]
    # There are more columns than numbers: the catalog was read before the message was sent.
    first = max([before.numbers_taken, catalog_schema.numbers_taken]) + 1
    numbers_by_name = {a.name: a.number for a in before.attributes}
    assigned = [numbers_by_name.get(c.name, first + i) for i, c in enumerate(columns)]
    return _Aligned(0, tuple(assigned), 2)


def _likeness(
    column: Column, old: RemoteAttribute | None, new: RemoteAttribute | None
) -> int:
    score = 0
    if old is not None and old.name == column.name:
        score += _SAME_NAME
    elif new is not None and new.name == column.name:
        score += _LATER_NAME
    type_oids = [
        attribute.declared_oid for attribute in (old, new) if attribute is not None
    ]
    if type_oids:
        score += _SAME_TYPE if column.type_oid in type_oids else _OTHER_TYPE
    return score


def names_now(
    before: RemoteSchema, relation: Relation, now: RemoteSchema
) -> tuple[str, ...] | None:
    """Return the present names of the columns of a Relation message sent at ``before``, or between
    ``before`` and ``now``. The name of a dropped column is empty. None if the message agrees with
    ``now``."""
    qualified = (relation.namespace, relation.name) == (now.namespace, now.name)
    if qualified and tuple(c.name for c in relation.columns) == tuple(
        a.name for a in now.attributes
    ):
        return None
    names = {a.number: a.name for a in now.attributes}
    numbers = _align(before, relation.columns, now).numbers
    return tuple(names.get(number, "") for number in numbers)
