"""Consecutive ADD COLUMNs that are carried out at once, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pure.test_unchanged_schemas import RELS, SUB, A, Following, schema, sent

from wal2lake.apply.schema.additions import additions
from wal2lake.apply.schema.follow import SchemaFollower
from wal2lake.apply.schema.making import definition_text, run_begun
from wal2lake.catalog import (
    AddColumn,
    ColumnChange,
    ColumnDef,
    FollowedSchema,
    Subscription,
    TableDef,
)
from wal2lake.model import Lsn, Oid, RemoteSchema

pytestmark = pytest.mark.usefixtures("no_fsync")

TWO, THREE, FOUR = (schema(A, columns=n) for n in (2, 3, 4))
TABLE = TableDef(
    oid=A,
    namespace="public",
    name="t",
    owner=Oid(10),
    location="/w/t",
    columns=(ColumnDef("c1", Oid(23)),),
    key=("c1",),
)


def last_changed(schema: RemoteSchema, **changes: object) -> RemoteSchema:
    *others, last = schema.attributes
    return replace(schema, attributes=(*others, replace(last, **changes)))  # type: ignore[arg-type]


def run(
    *schemas: RemoteSchema, columns: Sequence[str] = ("c1",), **options: str
) -> list[int]:
    """The transactions of the run that the schemas begin, from 20 on."""
    subscription = Subscription(
        SUB, "s", Oid(10), True, "host=p", "s", ("p",), options=options
    )
    waiting = [sent(20 + n, s) for n, s in enumerate(schemas)]
    found = additions(schema(A), waiting, subscription, columns)
    return [int(entry.sent.commit_lsn) for entry in found]


def test_a_run_is_what_only_adds_columns() -> None:
    assert run(TWO, THREE, FOUR) == [20, 21, 22]
    # A new file node, as after TRUNCATE, adds nothing.
    assert run(TWO, schema(A, 2, 2), schema(A, 4, 2)) == [20, 21, 22]
    renamed = replace(
        THREE,
        attributes=(replace(THREE.attributes[0], name="x"), *THREE.attributes[1:]),
    )
    assert run(TWO, renamed, FOUR) == [20]
    assert run(schema(A), TWO) == [20, 21]


@pytest.mark.parametrize(
    "changes",
    [
        {"not_null": True},
        {"domain": "public.d"},
        # Texts may be too long, numbers NaN, times too late.
        {"type_oid": Oid(25), "declared_oid": Oid(25), "type_name": "text"},
        {"type_oid": Oid(1700), "declared_oid": Oid(1700), "type_name": "numeric"},
        {"type_oid": Oid(1114), "declared_oid": Oid(1114), "type_name": "timestamp"},
    ],
)
def test_a_column_that_may_refuse_a_value_ends_the_run(
    changes: dict[str, object],
) -> None:
    assert run(TWO, last_changed(THREE, **changes), FOUR) == [20]


def test_a_column_that_is_here_or_has_another_type_here_ends_the_run() -> None:
    assert run(TWO, THREE, columns=("c1", "c3")) == [20]
    mapped = {"type_mappings": "public.t" + str(A) + ".c3 = string"}
    assert run(TWO, THREE, FOUR, **mapped) == [20]


# ---- made and recorded -------------------------------------------------------------------


class Altering:
    """Carries out ADD COLUMN in memory."""

    def __init__(self, following: Following) -> None:
        self.catalog = following.catalog
        self.calls: list[list[str]] = []

    def __call__(
        self, relid: Oid, changes: Sequence[ColumnChange], *, replaced: bool
    ) -> None:
        self.calls.append([c.column.name for c in changes if isinstance(c, AddColumn)])

    def is_free(self, relid: Oid) -> bool:
        return True


def test_each_alteration_of_a_run_is_in_the_history(tmp_path: Path) -> None:
    following = Following(tmp_path)
    altering = Altering(following)
    follower = SchemaFollower(following.catalog, SUB, altering)
    following.catalog.note_sent(SUB, [sent(20, TWO), sent(30, THREE), sent(40, FOUR)])
    follower.refresh(following.subscription)
    due = follower.due(RELS, Lsn(100))
    assert due is not None
    follower.adopt(following.subscription, due, TABLE, through=Lsn(30))
    assert altering.calls == [["c2", "c3"]]
    (followed,) = (
        f for relid, f in following.catalog.followed_schemas(SUB).items() if relid == A
    )
    # Rows sent before the first of them are translated to the last.
    assert followed == FollowedSchema(THREE, Lsn(31), previous=schema(A))
    assert [
        (int(entry.lsn), entry.change) for entry in following.catalog.schema_history()
    ] == [(20, 'ADD COLUMN "c2" integer'), (30, 'ADD COLUMN "c3" integer')]
    due = follower.due(RELS, Lsn(100))
    assert due is not None and due.lsn == 40


def test_a_run_that_was_made_before_a_crash_is_recorded_as_it_was_begun(
    tmp_path: Path,
) -> None:
    following = Following(tmp_path)
    altering = Altering(following)
    follower = SchemaFollower(following.catalog, SUB, altering)
    following.catalog.note_sent(SUB, [sent(20, TWO), sent(30, THREE), sent(40, FOUR)])
    following.catalog.begin_steps(SUB, A, definition_text(TABLE, Lsn(30)))
    follower.refresh(following.subscription)
    due = follower.due(RELS, Lsn(100))
    assert due is not None
    added = tuple(ColumnDef(f"c{n}", Oid(23)) for n in (2, 3))
    altered = replace(TABLE, columns=(*TABLE.columns, *added))
    # The worker that goes on may have chosen another batch, so it names no end.
    follower.adopt(following.subscription, due, altered)
    assert altering.calls == []
    assert [
        (int(entry.lsn), entry.outcome) for entry in following.catalog.schema_history()
    ] == [(20, "added"), (30, "added")]
    assert following.catalog.followed_schemas(SUB)[A].begins == 31


def test_a_run_that_was_not_made_before_a_crash_begins_anew() -> None:
    followed = FollowedSchema(
        schema(A), Lsn(10), making=definition_text(TABLE, Lsn(30))
    )
    assert run_begun(followed, TABLE) is None


def test_a_run_whose_columns_may_no_longer_be_added_at_once_is_recorded_one_by_one(
    tmp_path: Path,
) -> None:
    """Options of the subscription were altered between the crash and the next start."""
    following = Following(tmp_path, type_mappings=f"public.t{A}.c2 = string")
    altering = Altering(following)
    follower = SchemaFollower(following.catalog, SUB, altering)
    following.catalog.note_sent(SUB, [sent(20, TWO), sent(30, THREE)])
    following.catalog.begin_steps(SUB, A, definition_text(TABLE, Lsn(30)))
    added = tuple(ColumnDef(f"c{n}", Oid(23)) for n in (2, 3))
    altered = replace(TABLE, columns=(*TABLE.columns, *added))
    follower.refresh(following.subscription)
    for _ in range(2):
        due = follower.due(RELS, Lsn(100))
        assert due is not None
        follower.adopt(following.subscription, due, altered)
    assert altering.calls == []
    assert [
        (int(entry.lsn), entry.outcome) for entry in following.catalog.schema_history()
    ] == [
        (20, "the column is there already"),
        (30, "the column is there already"),
    ]
    assert follower.due(RELS, Lsn(100)) is None


def test_another_table_of_the_name_ends_a_run(tmp_path: Path) -> None:
    following = Following(tmp_path)
    altering = Altering(following)
    follower = SchemaFollower(following.catalog, SUB, altering)
    other = replace(schema(A), relid=Oid(999))
    following.catalog.note_sent(SUB, [sent(20, TWO), sent(30, other), sent(40, THREE)])
    follower.refresh(following.subscription)
    due = follower.due(RELS, Lsn(100))
    assert due is not None
    run = follower.additions(following.subscription, due, TABLE, Lsn(100))
    assert [int(entry.sent.commit_lsn) for entry in run] == [20]
