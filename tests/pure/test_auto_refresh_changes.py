"""Which tables join, leave and are copied again, from two states of a publication."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wal2lake.catalog import SubscriptionRel
from wal2lake.commands.subscription.auto.changes import (
    Changes,
    decide,
    vanished_partitions,
)
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.pg.publications import PublishedState

T = PublishedState(
    Oid(100),
    "s",
    "t",
    through=frozenset({"r1"}),
    operations="iudt",
    rows="[null, []]",
    publications=frozenset({"p"}),
)
ROOT = replace(T, leaves=frozenset({7, 8}))


def rel(seen: PublishedState | None, **fields: object) -> SubscriptionRel:
    made = SubscriptionRel(
        Oid(1),
        Oid(10),
        "s",
        "t",
        SyncState.READY,
        Lsn(5),
        epoch=1,
        seen_as=None if seen is None else seen.as_json(),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def again(changes: Changes) -> str | None:
    return next((c.change for c in changes.again.values()), None)


def test_a_table_joins_and_one_leaves() -> None:
    other = replace(T, oid=Oid(101), name="u")
    changes = decide([rel(T)], [other], follows=False)
    assert changes.joining == (other,)
    assert [c.change for c in changes.leaving.values()] == ["no longer published"]
    assert decide([rel(T)], [T], follows=False) == Changes()


def test_the_first_look_is_what_later_ones_compare_with() -> None:
    changes = decide([rel(None)], [T], follows=False)
    assert changes.seen == {Oid(10): T}
    assert not changes.again
    # The copy says from which table it was made.
    changes = decide([rel(None, copied_from=Oid(99))], [T], follows=False)
    assert again(changes) == "dropped and created again at the publisher"


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (T, replace(T, oid=Oid(101)), "dropped and created again at the publisher"),
        (
            T,
            replace(T, through=frozenset({"r2"})),
            "left the publication and joined it",
        ),
        (T, replace(T, through=frozenset({"r1", "r2"})), None),
        (T, replace(T, through=frozenset({"r2"}), rows="[[1], []]"), "row filter or"),
        (
            T,
            replace(T, generated="s", rows="[[1, 2], []]"),
            "row filter or column list",
        ),
        (T, replace(T, generated="s"), None),
        # ALTER TABLE ... ADD COLUMN.
        (T, replace(T, rows="[[1, 2], []]"), None),
        (replace(T, operations="i"), T, "the publication publishes more operations"),
        (
            T,
            replace(T, through=frozenset({"r2"}), publications=frozenset({"p", "q"})),
            None,
        ),
        (
            T,
            replace(T, leaves=frozenset({7}), attached=frozenset({7})),
            "a partition with",
        ),
        (ROOT, replace(ROOT, attached=frozenset({7})), None),
        (ROOT, replace(ROOT, leaves=frozenset({7})), "a partition was detached"),
    ],
)
def test_a_copy_that_differs_from_the_publication_is_made_again(
    before: PublishedState, now: PublishedState, change: str | None
) -> None:
    changes = decide([rel(before)], [now], follows=False, existing={8})
    assert (again(changes) or "").startswith(change or "nothing") or change is None
    assert (again(changes) is None) is (change is None)
    assert not changes.joining
    assert not changes.leaving
    # Recorded, so that it is done once; and a copy without a snapshot need not begin anew.
    assert changes == Changes() or changes.seen == {Oid(10): now}
    waits = decide(
        [rel(before, state=SyncState.INIT)], [now], follows=False, existing={8}
    )
    assert not waits.again
    assert waits.seen == changes.seen
    paused = decide([rel(before, paused_at="now")], [now], follows=False, existing={8})
    assert not paused.again
    assert bool(paused.postponed) is (change is not None)
    assert change is None or not paused.seen


def test_changes_that_need_no_copy_are_noted() -> None:
    fewer = decide([rel(T)], [replace(T, operations="i")], follows=False)
    assert [c.change for c in fewer.noted.values()] == [
        "the publication publishes fewer operations"
    ]
    now = replace(ROOT, leaves=frozenset({7}))
    assert vanished_partitions([rel(ROOT)], [now]) == {8}
    dropped = decide([rel(ROOT)], [now], follows=False, existing=())
    assert [c.change for c in dropped.noted.values()] == [
        "a partition was dropped at the publisher"
    ]


def test_a_followed_table_is_known_by_its_oid() -> None:
    renamed = replace(T, name="other")
    followed = decide([rel(T)], [renamed], follows=True)
    assert not followed.joining
    assert not followed.leaving
    by_name = decide([rel(T)], [renamed], follows=False)
    assert by_name.joining == (renamed,)
    assert by_name.leaving
    # Another table takes the name.
    successor = replace(T, oid=Oid(101))
    both = decide([rel(T)], [renamed, successor], follows=True)
    assert both.joining == (successor,)
    assert not both.leaving
