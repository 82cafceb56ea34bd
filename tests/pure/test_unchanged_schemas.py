"""Schemas that change nothing here are agreed with before a batch, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.altering import never_alter

from wal2lake.apply.schema.follow import SchemaFollower
from wal2lake.catalog import Catalog, FollowedSchema, Subscription, SubscriptionRel
from wal2lake.model import (
    Lsn,
    Oid,
    RemoteAttribute,
    RemoteSchema,
    SentSchema,
    SyncState,
)

pytestmark = pytest.mark.usefixtures("no_fsync")

SUB = Oid(20000)
A, B = Oid(30000), Oid(30001)
END = Lsn(1000)


def rel(relid: Oid) -> SubscriptionRel:
    name = f"t{relid}"
    return SubscriptionRel(
        SUB, relid, "public", name, SyncState.READY, Lsn(5), 7, trusted=True
    )


RELS = [rel(A), rel(B)]


def schema(relid: Oid, columns: int = 1, node: int = 1) -> RemoteSchema:
    """Return what the source says of a table: its number of columns and its file node."""
    attributes = tuple(
        RemoteAttribute(
            n, f"c{n}", Oid(23), -1, Oid(23), -1, "int4", 0, None, False, None, None
        )
        for n in range(1, columns + 1)
    )
    remote = Oid(relid + 100)
    numbers = tuple(range(1, columns + 1))
    xmins = "/".join(f"{n}={n}" for n in numbers)
    storage = (f"{remote}:{node}:{xmins}",)
    return RemoteSchema(
        remote, "public", f"t{relid}", attributes, numbers, columns, storage
    )


def sent(at: int, schema: RemoteSchema) -> SentSchema:
    return SentSchema(Lsn(at), schema.as_relation(), schema, Lsn(at))


class Following:
    """A subscription that follows two tables of a column each, from position 10 on."""

    def __init__(self, path: Path, **options: str) -> None:
        self.catalog = Catalog.create(path / "catalog.sqlite", "me", None)
        self.subscription = Subscription(
            SUB,
            "s",
            Oid(10),
            True,
            "host=p",
            "s",
            ("p",),
            floor=Lsn(10),
            options={"schema_changes": "follow", **options},
        )
        self.catalog.create_subscription(
            self.subscription, RELS, {int(A): 0, int(B): 0}
        )
        self.catalog.start_following(SUB, {A: schema(A), B: schema(B)}, Lsn(10))
        self.follower = SchemaFollower(self.catalog, SUB, never_alter)

    def agree(self, *schemas: SentSchema, end: Lsn = END) -> dict[Oid, FollowedSchema]:
        """Record schemas, agree, and return what a node that starts anew finds."""
        self.catalog.note_sent(SUB, schemas)
        self.follower.refresh(self.subscription)
        self.follower.agree(self.subscription, RELS, end)
        return self.catalog.followed_schemas(SUB)

    def due(self) -> list[tuple[Oid, int]]:
        due = (self.follower.due([rel], END) for rel in RELS)
        return [(d.rel.relid, int(d.lsn)) for d in due if d is not None]


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path)


@contextmanager
def transactions(catalog: Catalog) -> Iterator[list[int]]:
    """Count transactions of the catalog."""
    before = catalog.change_counter
    counted: list[int] = []
    yield counted
    counted.append(catalog.change_counter - before)


def test_the_first_message_and_a_truncate_are_agreed_with_at_once(
    following: Following,
) -> None:
    following.catalog.note_sent(SUB, [sent(20, schema(A)), sent(30, schema(B))])
    emptied = schema(A, node=2)
    with transactions(following.catalog) as counted:
        found = following.agree(sent(40, emptied))
    # One of them records the message that the test sends.
    assert counted == [2]
    assert found == {
        A: FollowedSchema(emptied, Lsn(41)),
        B: FollowedSchema(schema(B), Lsn(31)),
    }
    assert following.due() == []


def test_a_schema_with_another_column_is_due_and_those_behind_it_wait(
    following: Following,
) -> None:
    found = following.agree(
        sent(20, schema(A)),
        sent(30, schema(A, columns=2)),
        sent(40, schema(A, columns=2, node=2)),
    )
    assert found[A] == FollowedSchema(schema(A), Lsn(21))
    assert following.due() == [(A, 30)]


def test_one_at_the_end_of_the_batch_waits(following: Following) -> None:
    found = following.agree(sent(20, schema(A)), end=Lsn(20))
    assert found[A] == FollowedSchema(schema(A), Lsn(10))
    assert following.due() == [(A, 20)]


def test_rows_of_the_transaction_that_altered_the_table_are_still_translated(
    following: Following,
) -> None:
    now = schema(A, columns=2)
    altered = FollowedSchema(now, Lsn(31), previous=schema(A))
    following.catalog.steps_made(SUB, A, altered, (), lsn=Lsn(30))
    found = following.agree(sent(40, replace(now, storage=schema(A, 2, 2).storage)))
    assert found[A].previous == schema(A)
    assert found[A].begins == 41


@pytest.mark.parametrize("why", ["required", "making", "unknown", "soft", "relation"])
def test_what_needs_a_look_is_due_in_its_turn(tmp_path: Path, why: str) -> None:
    options = {"delete_mode": "soft"} if why == "soft" else {}
    following = Following(tmp_path, **options)
    before = FollowedSchema(schema(A), Lsn(10))
    if why == "required":
        before = replace(before, required=(1,), settles=Lsn(500))
    elif why == "making":
        before = replace(before, making="a definition")
    following.catalog.steps_made(SUB, A, before, (), lsn=Lsn(9))
    message = schema(A, node=2)
    if why == "unknown":
        # A new file node, and a column's row in pg_attribute of another transaction.
        message = replace(message, storage=(f"{message.relid}:2:1=9",))
    elif why == "relation":
        # Dropped and made again under the same name.
        message = replace(message, relid=Oid(9))
    found = following.agree(sent(20, message))
    assert found[A] == before
    assert following.due() == [(A, 20)]
