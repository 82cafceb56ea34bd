"""What follows a publisher's ALTER TABLE, where it went wrong once.

Tables that swap their names got each other's rows. Steps that could not be made counted as made
once the user had altered the table by hand. A table that was to be copied anew stood with the
others in published states. Values that did not convert became null in rows that a copy left
there. ADD COLUMN, UPDATE and SET NOT NULL in a row stopped the subscription: the publisher's
catalog has NOT NULL before our rows have values. A copy of a table whose last column is not
published (a stored generated one) never began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wal2lake.apply.schema.diff import Renamed, difference
from wal2lake.apply.schema.follow import SchemaFollower
from wal2lake.catalog import (
    ENUM_LABELS,
    AddColumn,
    Catalog,
    ColumnChange,
    ColumnDef,
    DropColumn,
    SetKey,
    SetNotNull,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.commands.tables import altertable
from wal2lake.errors import UsageError
from wal2lake.model import (
    Column,
    KnownLabels,
    LabelRename,
    Lsn,
    Oid,
    Relation,
    RemoteAttribute,
    RemoteSchema,
    ReplicaIdentity,
    SentSchema,
    SyncState,
)

pytestmark = pytest.mark.usefixtures("no_fsync")

SUB = Oid(20000)
ORDERS, NEXT = Oid(30000), Oid(30001)
TEXT = Oid(25)


def schema(relid: int, name: str, columns: str, node: int = 1) -> RemoteSchema:
    """``columns``: names of one letter, numbered from 1; a space is one that was dropped."""
    numbered = [(n, c) for n, c in enumerate(columns, 1) if c != " "]
    return RemoteSchema(
        Oid(relid),
        "public",
        name,
        tuple(
            RemoteAttribute(
                n, c, TEXT, -1, TEXT, -1, "text", 0, None, False, None, None
            )
            for n, c in numbered
        ),
        tuple(n for n, _ in numbered),
        len(columns),
        (f"{relid}:{node}",),
    )


def sent(at: int, now: RemoteSchema) -> SentSchema:
    columns = tuple(Column(a.name, TEXT, -1, False) for a in now.attributes)
    relation = Relation(
        now.relid, now.namespace, now.name, ReplicaIdentity.DEFAULT, columns
    )
    return SentSchema(Lsn(at), relation, now)


class Altering:
    """``apply.local.altering``'s part."""

    def __init__(self) -> None:
        self.made: list[ColumnChange] = []
        self.replaced: list[bool] = []
        self.error: Exception | None = None

    def __call__(
        self, relid: Oid, changes: Sequence[ColumnChange], *, replaced: bool
    ) -> None:
        if self.error is not None:
            raise self.error
        self.made += changes
        self.replaced.append(replaced)

    def is_free(self, relid: Oid) -> bool:
        return True


class Mirror:
    """Two tables that follow those with OIDs 1 and 2."""

    def __init__(self, path: Path) -> None:
        self.catalog = Catalog.create(path, "me", None)
        rels = [
            SubscriptionRel(
                SUB, relid, "public", name, SyncState.READY, Lsn(5), epoch, trusted=True
            )
            for relid, name, epoch in ((ORDERS, "orders", 7), (NEXT, "next", 8))
        ]
        self.catalog.create_subscription(
            Subscription(
                SUB,
                "s",
                Oid(10),
                True,
                "host=p",
                "s",
                ("p",),
                floor=Lsn(90),
                options={"schema_changes": "follow"},
            ),
            rels,
            {int(ORDERS): 1, int(NEXT): 1},
        )
        self.catalog.start_following(
            SUB,
            {ORDERS: schema(1, "orders", "ab"), NEXT: schema(2, "next", "ab")},
            Lsn(5),
        )
        self.altering = Altering()
        self.follower = SchemaFollower(self.catalog, SUB, self.altering)

    def follow(self, table: TableDef) -> bool:
        """The next step, if there is one."""
        subscription = self.catalog.subscription(SUB)
        assert subscription is not None
        self.follower.refresh(subscription)
        rels = self.catalog.rels(SUB)
        due = self.follower.relabelled(rels) or self.follower.due(rels, Lsn(1000))
        if due is None:
            return False
        self.follower.adopt(subscription, due, table)
        return True

    def rel(self, relid: Oid) -> SubscriptionRel:
        return {r.relid: r for r in self.catalog.rels(SUB)}[relid]

    def names(self) -> dict[Oid, str]:
        return {r.relid: r.remote_name for r in self.catalog.rels(SUB)}


def table(columns: str) -> TableDef:
    defs = tuple(ColumnDef(c, TEXT) for c in columns)
    return TableDef(ORDERS, "public", "orders", Oid(10), defs, (), "/lake/orders")


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "catalog.sqlite")


def test_a_table_that_takes_anothers_name_does_not_take_its_rows(
    mirror: Mirror,
) -> None:
    # ALTER TABLE orders RENAME TO old; ALTER TABLE next RENAME TO orders; of old comes no row yet.
    mirror.catalog.note_sent(SUB, [sent(100, schema(2, "orders", "ab"))])
    assert mirror.follow(table("ab"))
    assert not mirror.follow(table("ab"))
    assert mirror.names() == {ORDERS: "next", NEXT: "orders"}
    followed = mirror.catalog.followed_schemas(SUB)
    assert {o: f.schema.relid for o, f in followed.items()} == {ORDERS: 1, NEXT: 2}
    mirror.catalog.note_sent(SUB, [sent(200, schema(1, "old", "ab"))])
    assert mirror.follow(table("ab"))
    assert mirror.names() == {ORDERS: "old", NEXT: "orders"}


def test_a_copy_begins_though_the_last_column_is_not_published(mirror: Mirror) -> None:
    now = schema(1, "orders", "abc", node=2)
    now = replace(now, live=(1, 2, 3, 4), numbers_taken=4, identity=(1,))
    subscription = mirror.catalog.subscription(SUB)
    assert subscription is not None
    rel = mirror.rel(ORDERS)

    def adopted(columns: str) -> bool:
        return mirror.follower.adopt_for_copy(
            subscription, rel, table(columns), now, Lsn(200)
        )

    assert adopted("ab")
    assert isinstance(mirror.altering.made[0], AddColumn)
    # The copy comes again, in its new epoch, and there is nothing left to do.
    assert not adopted("abc")


def test_a_new_table_of_the_name_of_one_that_is_gone_is_followed_by_name(
    mirror: Mirror,
) -> None:
    mirror.catalog.note_sent(SUB, [sent(100, schema(9, "orders", "ab"))])
    assert mirror.follow(table("ab"))
    assert mirror.catalog.followed_schemas(SUB)[ORDERS].schema.relid == 9
    assert not mirror.follow(table("ab"))


def test_steps_that_were_refused_are_made_after_the_user_has_altered_the_table(
    mirror: Mirror,
) -> None:
    mirror.catalog.note_sent(SUB, [sent(100, schema(1, "orders", "a c"))])
    mirror.altering.error = UsageError("no", sqlstate="23502")
    with pytest.raises(UsageError):
        mirror.follow(table("ab"))
    mirror.altering.error = None
    # Something else than what is to be followed.
    assert mirror.follow(table("abx"))
    assert mirror.altering.made[0] == DropColumn("b")
    assert isinstance(mirror.altering.made[1], AddColumn)
    # A crash behind them is still told by the definition.
    followed = mirror.catalog.followed_schemas(SUB)[ORDERS]
    mirror.catalog.begin_steps(SUB, ORDERS, '[["another"], []]')
    mirror.catalog.note_sent(SUB, [sent(200, schema(1, "orders", "a  d"))])
    made = list(mirror.altering.made)
    assert mirror.follow(table("acx"))
    assert mirror.altering.made == made
    assert followed.begins == Lsn(101)


def test_a_table_that_is_copied_anew_leaves_the_common_snapshot(mirror: Mirror) -> None:
    mirror.catalog.publish(SUB, Lsn(95), {int(ORDERS): 2})
    mirror.catalog.note_sent(SUB, [sent(100, schema(1, "orders", "abc", node=2))])
    assert mirror.follow(table("ab"))
    rel, vector = mirror.rel(ORDERS), mirror.catalog.newest_vector(SUB)
    assert (rel.state, rel.replaces) == (SyncState.INIT, True)
    assert rel.epoch not in (7, 8)
    assert vector is not None
    assert vector.apart == {int(ORDERS): Lsn(95)}
    assert mirror.rel(NEXT).state is SyncState.READY


def test_the_commit_lock_is_held_while_it_is_decided_whose_rows_there_are(
    mirror: Mirror,
) -> None:
    held: list[str] = []

    class Lock:
        def __enter__(self) -> None:
            held.append("taken")

        def __exit__(self, *error: object) -> None:
            held.append("given")
            assert mirror.rel(ORDERS).trusted

    def trusted() -> bool:
        held.append("asked")
        return True

    mirror.catalog.update_rel(SUB, ORDERS, trusted=False)
    mirror.catalog.note_sent(SUB, [sent(100, schema(1, "orders", "abc"))])
    subscription = mirror.catalog.subscription(SUB)
    assert subscription is not None
    mirror.follower.refresh(subscription)
    due = mirror.follower.due([mirror.rel(ORDERS)], Lsn(1000))
    assert due is not None
    mirror.follower.adopt(
        subscription, due, table("ab"), trusted=trusted, finishing=Lock()
    )
    assert held == ["taken", "asked", "given"]


@pytest.mark.parametrize("replaces", [False, True])
def test_before_a_copy_rows_count_as_replaced_only_if_it_replaces_them(
    mirror: Mirror, replaces: bool
) -> None:
    subscription = mirror.catalog.subscription(SUB)
    assert subscription is not None
    mirror.catalog.update_rel(SUB, ORDERS, state=SyncState.DATASYNC, replaces=replaces)
    now = schema(1, "orders", "abc", node=2)
    assert mirror.follower.adopt_for_copy(
        subscription, mirror.rel(ORDERS), table("ab"), now, Lsn(100)
    )
    assert mirror.altering.replaced == [replaces]
    rel = mirror.rel(ORDERS)
    assert (rel.state, rel.epoch) == (SyncState.DATASYNC, 7)
    assert not mirror.follower.adopt_for_copy(
        subscription, rel, table("abc"), now, Lsn(100)
    )


def test_not_null_is_left_out_where_rows_are_still_to_be_filled(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.catalog.create_table(table("ab"))
    added = ColumnDef("c", TEXT, not_null=True)
    changes: list[ColumnChange] = [
        DropColumn("b"),
        AddColumn(added),
        SetNotNull("a", True),
    ]
    tried: list[list[ColumnChange]] = []

    def carry_out(
        node: object,
        caller: object,
        table: object,
        changes: Sequence[ColumnChange],
        using: object,
        **options: object,
    ) -> None:
        tried.append(list(changes))
        if len(tried) == 1:
            raise UsageError("contains null values", sqlstate="23502")

    monkeypatch.setattr(altertable, "_carry_out", carry_out)
    monkeypatch.setattr(altertable, "hold_tables", lambda *arguments: None)
    node = cast(
        Any,
        SimpleNamespace(catalog=mirror.catalog, capture_before=lambda check: None),
    )
    altertable.follow(node, ORDERS, changes, replaced=False)
    assert tried == [changes, [DropColumn("b"), AddColumn(ColumnDef("c", TEXT))]]


def required(found: RemoteSchema, name: str) -> RemoteSchema:
    return replace(
        found,
        attributes=tuple(
            replace(a, not_null=a.not_null or a.name == name) for a in found.attributes
        ),
    )


def test_history_says_that_not_null_was_left_out(mirror: Mirror) -> None:
    """It said "changed"."""
    mirror.catalog.create_table(table("abc"))
    now = required(required(schema(1, "orders", "abc"), "b"), "c")
    mirror.catalog.note_sent(SUB, [sent(100, now)])
    assert mirror.follow(table("ab"))
    words = {one.change: one.outcome for one in mirror.catalog.schema_history()}
    assert words == {
        'ALTER COLUMN "b" SET NOT NULL': "left out: rows that are here have null",
        'ADD COLUMN "c" text': "added; NOT NULL is left out: rows that are here have"
        " null",
    }


def keyed(at: int, now: RemoteSchema, *names: str, full: bool = False) -> SentSchema:
    """A message in which these are the key."""
    one = sent(at, now)
    columns = tuple(replace(c, is_key=c.name in names) for c in one.relation.columns)
    identity = ReplicaIdentity.FULL if full else ReplicaIdentity.DEFAULT
    relation = replace(one.relation, columns=columns, identity=identity)
    return replace(one, relation=relation)


def test_a_new_key_is_followed_unless_the_key_here_is_another(mirror: Mirror) -> None:
    """It was left as it is, without a word."""
    now = schema(1, "orders", "abc")
    mirror.catalog.start_following(SUB, {ORDERS: replace(now, identity=(1,))}, Lsn(5))
    ours = replace(table("abc"), key=("a",))
    mirror.catalog.note_sent(SUB, [keyed(100, now, "a"), keyed(110, now, "b", "c")])
    assert mirror.follow(ours)
    assert mirror.altering.made == []
    # FULL and no key at all say nothing of what was the key.
    assert mirror.follow(ours)
    assert mirror.altering.made == [SetKey(("b", "c"))]
    ours = replace(ours, key=("b", "c"))
    mirror.catalog.note_sent(SUB, [keyed(120, now, "a", "b", "c", full=True)])
    assert mirror.follow(ours)
    mirror.catalog.note_sent(SUB, [keyed(130, now)])
    assert mirror.follow(ours)
    assert len(mirror.altering.made) == 1
    mirror.catalog.note_sent(SUB, [keyed(140, now, "c")])
    assert mirror.follow(replace(ours, key=("a",)))
    # A column of the key goes, and another one takes its place.
    now = replace(schema(1, "orders", "ab "), live=(1, 2))
    mirror.catalog.note_sent(SUB, [keyed(150, now, "b")])
    assert mirror.follow(replace(ours, key=("c",)))
    assert mirror.altering.made[1:] == [DropColumn("c"), SetKey(("b",))]
    # Something is not published: it may be in the key.
    hidden = replace(now, live=(1, 2, 3))
    mirror.catalog.note_sent(SUB, [keyed(160, hidden, "a")])
    assert mirror.follow(replace(table("ab"), key=("b",)))
    said = [
        (one.change, one.outcome)
        for one in mirror.catalog.schema_history()
        if "IDENTITY" in one.change
    ]
    left = "left out: of a key whose columns are not all published, not all is known"
    assert said == [
        ('REPLICA IDENTITY ("b", "c")', "changed"),
        ('REPLICA IDENTITY ("c")', "left out: the key here is another"),
        ('REPLICA IDENTITY ("b")', "changed"),
        ('REPLICA IDENTITY ("a")', left),
    ]


@pytest.mark.parametrize("sqlstate", ["23502", "23505"])
def test_a_key_is_left_out_where_rows_are_not_unique(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, sqlstate: str
) -> None:
    mirror.catalog.create_table(table("ab"))
    tried: list[list[ColumnChange]] = []

    def carry_out(*arguments: Any, **options: object) -> None:
        tried.append(list(arguments[3]))
        if len(tried) == 1:
            raise UsageError("rows say no", sqlstate=sqlstate)

    monkeypatch.setattr(altertable, "_carry_out", carry_out)
    monkeypatch.setattr(altertable, "hold_tables", lambda *arguments: None)
    node = cast(
        Any,
        SimpleNamespace(catalog=mirror.catalog, capture_before=lambda check: None),
    )
    changes: list[ColumnChange] = [
        DropColumn("b"),
        SetNotNull("a", True),
        SetKey(("a",)),
    ]
    altertable.follow(node, ORDERS, changes, replaced=False)
    assert tried == [changes, changes[:2]]


def test_not_null_waits_for_rows_of_the_time_before(mirror: Mirror) -> None:
    now = required(schema(1, "orders", "abc"), "b")
    mirror.catalog.note_sent(SUB, [replace(sent(100, now), settled=Lsn(400))])
    assert mirror.follow(table("ab"))
    added = mirror.altering.made[0]
    assert isinstance(added, AddColumn)
    assert len(mirror.altering.made) == 1, "rows up to 400 may have null"
    # Another change comes before, with columns that are asked for later.
    later = replace(now, attributes=now.attributes, namespace="other")
    mirror.catalog.note_sent(SUB, [replace(sent(300, later), settled=Lsn(600))])
    assert mirror.follow(table("abc"))
    assert len(mirror.altering.made) == 1
    subscription = mirror.catalog.subscription(SUB)
    assert subscription is not None
    mirror.follower.refresh(subscription)
    assert mirror.follower.due(mirror.catalog.rels(SUB), Lsn(600)) is None
    due = mirror.follower.due(mirror.catalog.rels(SUB), Lsn(601))
    assert due is not None
    assert due.lsn == Lsn(600)
    mirror.follower.adopt(subscription, due, table("abc"))
    assert mirror.altering.made[1:] == [SetNotNull("b", True)]
    assert not mirror.follow(table("abc"))
    words = [(one.change, one.outcome) for one in mirror.catalog.schema_history()]
    assert words[-1] == ('ALTER COLUMN "b" SET NOT NULL', "changed")


def test_not_null_that_waits_is_not_forgotten_by_a_copy(mirror: Mirror) -> None:
    now = required(schema(1, "orders", "abc"), "c")
    mirror.catalog.note_sent(SUB, [replace(sent(100, now), settled=Lsn(400))])
    assert mirror.follow(table("ab"))
    mirror.catalog.start_following(SUB, {ORDERS: now}, Lsn(200))
    followed = mirror.catalog.followed_schemas(SUB)[ORDERS]
    assert (followed.required, followed.settles) == ((3,), Lsn(400))
    # Of a column that may be null there by now, nothing waits.
    mirror.catalog.start_following(SUB, {ORDERS: schema(1, "orders", "abc")}, Lsn(300))
    assert mirror.catalog.followed_schemas(SUB)[ORDERS].required == ()


def test_not_null_of_a_column_that_was_added_before_a_crash_waits(
    mirror: Mirror,
) -> None:
    now = required(schema(1, "orders", "abc"), "c")
    mirror.catalog.note_sent(SUB, [replace(sent(100, now), settled=Lsn(400))])
    assert mirror.follow(table("abc"))
    assert mirror.altering.made == []
    assert mirror.catalog.followed_schemas(SUB)[ORDERS].required == (3,)


def test_not_null_that_is_dropped_meanwhile_never_comes(mirror: Mirror) -> None:
    now = schema(1, "orders", "ab")
    with_it = replace(sent(100, required(now, "b")), settled=Lsn(400))
    mirror.catalog.note_sent(SUB, [with_it])
    assert mirror.follow(table("ab"))
    mirror.catalog.note_sent(SUB, [replace(sent(300, now), settled=Lsn(600))])
    assert mirror.follow(table("ab"))
    assert not mirror.follow(table("ab"))
    assert mirror.altering.made == []


def test_what_was_sent_of_tables_that_are_not_here_goes_with_the_floor(
    mirror: Mirror,
) -> None:
    mirror.catalog.note_sent(
        SUB, [sent(at, schema(9, "absent", "abc"[:n])) for n, at in enumerate((10, 20))]
    )
    mirror.catalog.note_sent(SUB, [sent(95, schema(9, "absent", "abc"))])
    mirror.follow(table("ab"))
    assert [int(one.commit_lsn) for one in mirror.catalog.sent_schemas(SUB)] == [95]


def test_a_table_that_is_paused_while_it_is_altered_stays_paused(
    mirror: Mirror,
) -> None:
    """The copy that ALTER TABLE had asked for put it among the others again."""
    mirror.catalog.publish(SUB, Lsn(95), {int(ORDERS): 2})
    mirror.catalog.note_sent(SUB, [sent(100, schema(1, "orders", "abc", node=2))])
    subscription = mirror.catalog.subscription(SUB)
    assert subscription is not None
    mirror.follower.refresh(subscription)
    due = mirror.follower.due(mirror.catalog.rels(SUB), Lsn(1000))
    assert due is not None
    mirror.catalog.pause_table(SUB, ORDERS, Lsn(95), 2)
    mirror.follower.adopt(subscription, due, table("ab"))
    assert len(mirror.altering.made) == 1
    rel = mirror.rel(ORDERS)
    assert (rel.state, rel.paused, rel.epoch) == (SyncState.FINISHEDCOPY, True, 7)
    # When it comes back its columns are there, and the copy is asked for.
    mirror.catalog.resume_table(SUB, ORDERS)
    assert mirror.follow(table("abc"))
    assert len(mirror.altering.made) == 1
    assert mirror.rel(ORDERS).state is SyncState.INIT


def test_a_table_of_two_subscriptions_is_not_copied_anew(mirror: Mirror) -> None:
    """It waited for a copy that was refused for ever."""
    other = Oid(20001)
    mirror.catalog.create_subscription(
        Subscription(other, "o", Oid(10), True, "host=p", "o", ("p",)),
        [SubscriptionRel(other, ORDERS, "public", "t", SyncState.READY, Lsn(5), 9)],
        {int(ORDERS): 1},
    )
    mirror.catalog.create_table(table("ab"))
    mirror.catalog.note_sent(SUB, [sent(100, schema(1, "orders", "abc", node=2))])
    with pytest.raises(UsageError, match="another subscription fills") as refused:
        mirror.follow(table("ab"))
    assert refused.value.sqlstate == "55000"
    assert "written all rows anew" in str(refused.value.detail)
    assert (mirror.altering.made, mirror.rel(ORDERS).state) == ([], SyncState.READY)
    # Where no copy is needed both may follow.
    mirror.catalog.note_sent(SUB, [sent(100, schema(1, "orders", "abc"))])
    assert mirror.follow(table("ab"))


def renames(at: int, relid: int, number: int = 1) -> dict[str, str]:
    rename = LabelRename(
        Lsn(at), "public.mood", "sad", "blue", frozenset({(Oid(relid), number)})
    )
    return {ENUM_LABELS: KnownLabels({}, (rename,)).as_json()}


def test_a_renamed_label_has_its_tables_copied_anew_once(mirror: Mirror) -> None:
    # Below the copy, of a column that is not published, of another table.
    for options in (renames(4, 1), renames(50, 1, number=3), renames(50, 3)):
        mirror.catalog.set_options(SUB, options)
        assert not mirror.follow(table("ab"))
    mirror.catalog.set_options(SUB, renames(50, 1))
    assert mirror.follow(table("ab"))
    assert mirror.rel(ORDERS).state is SyncState.INIT
    assert mirror.rel(NEXT).state is SyncState.READY
    # The copy is of a snapshot above it.
    mirror.catalog.start_following(SUB, {ORDERS: schema(1, "orders", "ab")}, Lsn(51))
    assert not mirror.follow(table("ab"))
    said = [(one.change, one.outcome) for one in mirror.catalog.schema_history()]
    words = "ALTER TYPE public.mood RENAME VALUE 'sad' TO 'blue'"
    assert said == [(words, "the table is copied anew")]


def test_a_renamed_label_is_left_out_where_two_subscriptions_fill_a_table(
    mirror: Mirror,
) -> None:
    other = Oid(20001)
    mirror.catalog.create_subscription(
        Subscription(other, "o", Oid(10), True, "host=p", "o", ("p",)),
        [SubscriptionRel(other, ORDERS, "public", "t", SyncState.READY, Lsn(5), 9)],
        {int(ORDERS): 1},
    )
    mirror.catalog.create_table(table("ab"))
    mirror.catalog.note_sent(SUB, [sent(40, schema(1, "orders", "abc"))])
    mirror.catalog.set_options(SUB, renames(50, 1))
    assert mirror.follow(table("ab"))
    (noted,) = mirror.catalog.schema_history()
    assert noted.outcome == "left out: another subscription fills the table, too"
    assert mirror.rel(ORDERS).state is SyncState.READY
    # What was sent before it was noticed is still followed, and then nothing is due.
    assert mirror.follow(table("ab"))
    assert len(mirror.altering.made) == 1
    assert not mirror.follow(table("abc"))


def test_names_that_are_changed_and_changed_back_in_one_backlog() -> None:
    """The server is where it was: what it said meanwhile looks like a rename that others do not
    see yet. Rows go under the right names, and are copied anew to be sure."""
    before, now = schema(1, "orders", "abc"), schema(1, "orders", "abc")
    for columns, renames in (
        ("axc", [Renamed("b", "x")]),
        ("acb", [Renamed("b", "b_"), Renamed("c", "b"), Renamed("b_", "c")]),
    ):
        first = sent(100, schema(1, "orders", columns))
        found = difference(before, replace(first, schema=now))
        assert list(found.steps) == renames
        assert [a.number for a in found.after.attributes] == [1, 2, 3]
        assert found.unknown is not None
        back = difference(found.after, sent(200, now))
        assert sum(isinstance(one, Renamed) for one in back.steps) == len(renames)
        assert back.after == now
        assert back.unknown is None
        # One who looked in time knows.
        assert difference(before, first).unknown is None
