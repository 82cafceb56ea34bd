"""Decides which tables join, leave and are copied again. Pure.

In: the tables of a subscription, and how the publisher publishes tables now. Out: ``Changes``.

    found at the publisher                              here
    ------------------------------------------------    ------------------------------------------
    a table that is not in the subscription             joins, and is copied
    a table of the subscription is not published        leaves; its rows stay
    it was dropped and created again, it left and       is copied again
      came back, or now publishes other rows, other
      columns or more operations
    a partition was attached to its root with rows,     is copied again
      or detached
    a partition of its root was dropped                 is noted; its rows stay here, as the
                                                        publisher sends no DELETE for them
    fewer operations                                    is noted; the copy holds what was sent

PostgreSQL sends no row at any of these, and its subscriber keeps a copy that differs from the
publication until somebody truncates and copies it. Here the table is copied again: readers see the
old rows until one commit replaces them, and the other tables go on.

Without a look before, there is nothing to compare with: the present state is where the comparison
begins. A table whose copy has no snapshot yet (state i) gets one that is newer than the look. A
paused table keeps the state of the earlier look, so that it is copied again once it is resumed.

With schema_changes = follow, a table is known by its OID, since apply follows a RENAME at the
table's next row; otherwise by its name, as for REFRESH PUBLICATION.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from wal2lake.catalog import SchemaChange, SubscriptionRel
from wal2lake.commands.subscription.refresh import STAYS
from wal2lake.model import Oid, SyncState
from wal2lake.pg.publications import PublishedState

COPIED_AGAIN: Final = "the table is copied again"


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences between a subscription and its publications that one look has found."""

    joining: tuple[PublishedState, ...] = ()
    leaving: Mapping[Oid, SchemaChange] = field(default_factory=dict)
    """Tables of the subscription that are not published any more."""
    again: Mapping[Oid, SchemaChange] = field(default_factory=dict)
    """Tables whose copy differs from what is published now."""
    noted: Mapping[Oid, SchemaChange] = field(default_factory=dict)
    """Changes that need no copy."""
    seen: Mapping[Oid, PublishedState] = field(default_factory=dict)
    """States with which the next look compares, as far as they are others than before."""
    postponed: frozenset[Oid] = frozenset()
    """Paused tables that would have been copied again."""


def known_oid(rel: SubscriptionRel) -> Oid | None:
    """Return the publisher's OID of a table; None if no look and no copy has found it out."""
    if rel.seen_as is not None:
        return PublishedState.parse(rel.seen_as).oid
    return rel.copied_from


def vanished_partitions(
    rels: Sequence[SubscriptionRel], states: Sequence[PublishedState]
) -> set[int]:
    """Return the partitions of published roots that the states do not have any more."""
    present = set().union(*(state.leaves for state in states))
    before: set[int] = set()
    for rel in rels:
        if rel.seen_as is not None:
            before |= PublishedState.parse(rel.seen_as).leaves
    return before - present


def decide(
    rels: Sequence[SubscriptionRel],
    states: Sequence[PublishedState],
    *,
    follows: bool,
    existing: Collection[int] = (),
) -> Changes:
    """Compare a subscription's tables with what is published.

    ``follows``: schema_changes = follow. ``existing``: relations among ``vanished_partitions``
    that have not been dropped."""
    matched = _match(rels, states, follows=follows)
    taken = {state.oid for state in matched.values()}
    leaving, again, noted = {}, {}, {}
    seen: dict[Oid, PublishedState] = {}
    postponed = set()
    for rel in rels:
        state = matched.get(rel.relid)
        if state is None:
            leaving[rel.relid] = SchemaChange("no longer published", STAYS)
            continue
        change, copies = _difference(rel, state, existing)
        if change is not None and copies and rel.paused:
            postponed.add(rel.relid)
            continue
        if change is not None and copies and rel.state is not SyncState.INIT:
            again[rel.relid] = SchemaChange(change, COPIED_AGAIN)
        elif change is not None and not copies:
            noted[rel.relid] = SchemaChange(change, "the rows that are here stay")
        if rel.seen_as != state.as_json():
            seen[rel.relid] = state
    joining = tuple(state for state in states if state.oid not in taken)
    return Changes(joining, leaving, again, noted, seen, frozenset(postponed))


def _match(
    rels: Sequence[SubscriptionRel],
    states: Sequence[PublishedState],
    *,
    follows: bool,
) -> dict[Oid, PublishedState]:
    """Return the present state of each table that is still published."""
    by_oid = {state.oid: state for state in states}
    by_name = {(state.namespace, state.name): state for state in states}
    matched: dict[Oid, PublishedState] = {}
    if follows:
        for rel in rels:
            oid = known_oid(rel)
            if oid is not None and oid in by_oid:
                matched[rel.relid] = by_oid[oid]
    taken: AbstractSet[Oid] = {state.oid for state in matched.values()}
    for rel in rels:
        state = by_name.get((rel.remote_namespace, rel.remote_name))
        if rel.relid not in matched and state is not None and state.oid not in taken:
            matched[rel.relid] = state
    return matched


def _difference(
    rel: SubscriptionRel, state: PublishedState, existing: Collection[int]
) -> tuple[str | None, bool]:
    """Return what has changed since the look before, and whether the copy is wrong now."""
    oid = known_oid(rel)
    if oid is not None and oid != state.oid:
        return "dropped and created again at the publisher", True
    if rel.seen_as is None:
        return None, False
    before = PublishedState.parse(rel.seen_as)
    entries_differ = (before.through, before.generated) != (
        state.through,
        state.generated,
    )
    # Through the same entries, only columns of ALTER TABLE come and go.
    if entries_differ and before.rows != state.rows:
        return "row filter or column list changed", True
    # Another list of publications is a command's, whose receiver has begun where the one before
    # has ended.
    same_list = before.publications == state.publications
    if same_list and before.through and not before.through & state.through:
        return "left the publication and joined it again", True
    if not set(state.operations) <= set(before.operations):
        return "the publication publishes more operations", True
    if state.attached - before.leaves:
        return "a partition with rows was attached", True
    gone = before.leaves - state.leaves
    if gone.intersection(existing):
        return "a partition was detached", True
    if gone:
        return "a partition was dropped at the publisher", False
    if before.operations != state.operations:
        return "the publication publishes fewer operations", False
    return None, False
