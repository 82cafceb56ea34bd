"""Compares a published table's columns with those that our table agrees with. Pure. Pure.

In: the description that our table agrees with, a Relation message, and what the publisher's catalog
said when that had come. Out: steps that lead from one to the other, and whether the rows that we
have tell what is in the columns now.

Attribute numbers tell a new name from another column. A Relation message has none: where the
catalog was further already, its columns are found by their names, or by their place, for both
have them in the order of their numbers.

What old rows have in a new column is known if the server has not written them anew: its own value
for them, or null. If it has, they may have anything (a volatile default, ``USING``), and the
table has to be copied. The same is true of a column that was there and not published, and
of one that was dropped and added under its name while nobody looked.

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
    """One that is not there any more."""

    name: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same column under another name."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column of another type; ``attribute`` has the new one, and its new name."""

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
    """UPDATE and DELETE name rows by other columns: a new primary key, or another index."""

    before: tuple[str, ...] | None
    """Columns that the table had before, by the names that they have now; an empty name: the column
    is gone. None: not known."""
    columns: tuple[str, ...]
    whole: bool
    """All columns are published, so these are the whole key."""


Step = Added | Dropped | Renamed | Retyped | NullsAllowed | RelationMoved | Keyed


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """Between two descriptions."""

    steps: tuple[Step, ...]
    """In the order in which they can be made: names that are given up are free."""
    after: RemoteSchema
    """Schema that the table agrees with once the steps are made."""
    unknown: str | None = None
    """Why the rows that are here do not tell what is in the columns now; None: they do."""
    partitions: tuple[str, ...] = ()
    """Attached or detached; their rows are not sent, so nothing follows from it."""


def difference(before: RemoteSchema, sent: SentSchema) -> SchemaDifference:
    """From ``before`` to the columns of a Relation message."""
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
    """Numbers of the key that the message has; empty: it has none, and ours may go on."""
    if relation.identity not in (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX):
        return ()
    named = {c.name for c in relation.columns if c.is_key}
    return tuple(sorted(a.number for a in after.attributes if a.name in named))


def _names(schema: RemoteSchema, numbers: Sequence[int]) -> tuple[str, ...]:
    found = [schema.attribute(number) for number in numbers]
    names = [a.name for a in found if a is not None]
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
    # Perhaps later only; but what the server said of older rows is gone then.
    rewritten = sent.schema.rewritten_since(before)
    names = [c.name for c in sent.relation.columns]
    alike = names == [a.name for a in before.attributes]
    gone = {one.name for one in dropped if alike}
    for one in added:
        column = one.attribute
        if column.number <= before.numbers_taken:
            return f'column "{column.name}" was there before it was published'
        if rewritten:
            return f'adding column "{column.name}" has written all rows anew'
        if column.name in gone:
            return f'column "{column.name}" was dropped and added anew'
        between = range(before.numbers_taken + 1, column.number)
        if not set(between) <= set(sent.schema.live):
            # Rows of this transaction may have had it, and by the same name.
            return f'another column came and went before "{column.name}" was added'
    if retyped and rewritten:
        name = retyped[0].attribute.name
        return f'the new type of column "{name}" has written all rows anew'
    if sent.schema.altered_since(before):
        # USING, or another expression of a generated column: the rest looks as before.
        return "ALTER TABLE has written all rows anew"
    return None


def _partitions(before: RemoteSchema, after: RemoteSchema) -> tuple[str, ...]:
    had, has = ({s.split(":")[0] for s in one.storage} for one in (before, after))
    if had == has or before.relid in map(_oid, had | has):
        return ()
    return (
        *(f"ATTACH PARTITION with OID {oid}" for oid in sorted(has - had)),
        *(f"DETACH PARTITION with OID {oid}" for oid in sorted(had - has)),
    )


def _oid(text: str) -> Oid:
    return Oid(int(text))


def _renames(wanted: Sequence[Renamed], taken: set[str]) -> list[Renamed]:
    """In an order in which no name is taken; of those that go round in a circle one waits
    under a name that nobody has."""
    left = list(wanted)
    ordered: list[Renamed] = []
    while left:
        held = {one.before for one in left}
        free = [one for one in left if one.after not in held]
        if free:
            ordered += free
            left = [one for one in left if one not in free]
            continue
        first = left[0]
        waiting = f"{first.before[:50]}_"
        while waiting in taken:
            waiting += "_"
        taken.add(waiting)
        ordered.append(Renamed(first.before, waiting))
        left[0] = Renamed(waiting, first.after)
    return ordered


def _as_sent(before: RemoteSchema, sent: SentSchema) -> tuple[RemoteSchema, bool]:
    """The table with just the columns of the Relation message; whether it can only be so."""
    columns, now = sent.relation.columns, sent.schema
    named = replace(now, namespace=sent.relation.namespace, name=sent.relation.name)
    if len(columns) == len(now.attributes) and all(
        a.is_sent_as(c) for a, c in zip(now.attributes, columns, strict=True)
    ):
        sent_numbers = tuple(a.number for a in now.attributes)
        last = max([before.numbers_taken, *sent_numbers])
        if now.listed or not any(number > last for number in now.live):
            return named, True
        aligned = _Aligned(0, sent_numbers, 1)
    else:
        aligned = _align(before, columns, now)
    # The server is further. What it says of its rows is not of this moment.
    numbers = aligned.numbers
    old = {a.number: a for a in before.attributes}
    new = {a.number: a for a in now.attributes}
    attributes = []
    for number, column in zip(numbers, columns, strict=True):
        found = next(
            (
                one
                for one in (new.get(number), old.get(number))
                if one is not None and one.declared_oid == column.type_oid
            ),
            None,
        )
        attributes.append(_attribute(number, column, found))
    schema = replace(
        named,
        attributes=tuple(attributes),
        live=tuple(sorted({*(set(now.live) & set(before.live)), *numbers})),
        numbers_taken=max([before.numbers_taken, *numbers]),
        storage=before.storage,
    )
    # A commit may be sent before others see it: then the catalog has not changed yet.
    stale = (now.live, now.numbers_taken) == (before.live, before.numbers_taken)
    renamed = any(
        old[number].name != column.name
        for number, column in zip(numbers, columns, strict=True)
        if number in old
    )
    return schema, aligned.ways == 1 and not (stale and renamed)


def _attribute(
    number: int, column: Column, found: RemoteAttribute | None
) -> RemoteAttribute:
    if found is not None:
        return replace(
            found,
            name=column.name,
            declared_typmod=column.typmod,
            typmod=column.typmod if found.domain is None else found.typmod,
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
    """Numbers for columns, in order."""

    score: int
    numbers: tuple[int, ...]
    ways: int
    """How many are as likely."""


_IMPOSSIBLE: Final = _Aligned(-1_000_000, (), 0)

_SAME_NAME: Final = 8
_LATER_NAME: Final = 6
_SAME_TYPE: Final = 1
_OTHER_TYPE: Final = -2
_LEFT_OUT: Final = -20
"""A number that is there afterwards was there all the time, unless it was not published."""


def _align(
    before: RemoteSchema, columns: Sequence[Column], now: RemoteSchema
) -> _Aligned:
    """Numbers of the columns of a Relation message that lies between two descriptions: both have
    their columns in the order of their numbers, and so has the message. The likeliest are
    those that agree with most names and types."""
    if [c.name for c in columns] == [a.name for a in before.attributes]:
        return _Aligned(0, tuple(a.number for a in before.attributes), 1)
    old = {a.number: a for a in before.attributes}
    new = {a.number: a for a in now.attributes}
    later = range(before.numbers_taken + 1, now.numbers_taken + 1)
    numbers = sorted({*old, *new, *later})
    # best[j]: the columns so far with the first j numbers.
    best = [_Aligned(0, (), 1)]
    for number in numbers:
        left = _LEFT_OUT if number in old and number in now.live else 0
        last = best[-1]
        best.append(_Aligned(last.score + left, (), 1))
    for column in columns:
        row = [_IMPOSSIBLE]
        for j, number in enumerate(numbers, 1):
            taken = best[j - 1]
            score = _likeness(column, old.get(number), new.get(number))
            with_it = _Aligned(
                taken.score + score, (*taken.numbers, number), taken.ways
            )
            left = _LEFT_OUT if number in old and number in now.live else 0
            skipped = row[j - 1]
            without = _Aligned(skipped.score + left, skipped.numbers, skipped.ways)
            if with_it.ways == 0 or without.score > with_it.score:
                row.append(without)
            elif without.score == with_it.score and without.ways:
                ways = with_it.ways + without.ways
                row.append(_Aligned(without.score, without.numbers, ways))
            else:
                row.append(with_it)
        best = row
    if best[-1].ways:
        return best[-1]
    # More columns than there were numbers: what was asked for is older than the message.
    first = max([before.numbers_taken, now.numbers_taken]) + 1
    known = {a.name: a.number for a in before.attributes}
    found = [known.get(c.name, first + i) for i, c in enumerate(columns)]
    return _Aligned(0, tuple(found), 2)


def _likeness(
    column: Column, old: RemoteAttribute | None, new: RemoteAttribute | None
) -> int:
    score = 0
    if old is not None and old.name == column.name:
        score += _SAME_NAME
    elif new is not None and new.name == column.name:
        score += _LATER_NAME
    known = [one.declared_oid for one in (old, new) if one is not None]
    if known:
        score += _SAME_TYPE if column.type_oid in known else _OTHER_TYPE
    return score


def names_now(
    before: RemoteSchema, relation: Relation, now: RemoteSchema
) -> tuple[str, ...] | None:
    """Return the present names of the columns of a Relation message that was sent at ``before``, or
    between the two; empty: the column is gone. None: it is a message of now."""
    qualified = (relation.namespace, relation.name) == (now.namespace, now.name)
    if qualified and tuple(c.name for c in relation.columns) == tuple(
        a.name for a in now.attributes
    ):
        return None
    known = {a.number: a.name for a in now.attributes}
    numbers = _align(before, relation.columns, now).numbers
    return tuple(known.get(number, "") for number in numbers)
