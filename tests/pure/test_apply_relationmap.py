"""Which target can take a relation, in PostgreSQL's words (apply/relationmap.py)."""

from __future__ import annotations

import pytest

from wal2lake.apply.relationmap import RelationUse, check_target, error_context
from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import ApplyError
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity

INT, TEXT = Oid(23), Oid(25)


def source(
    columns: str = "id v",
    key: str = "id",
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
) -> Relation:
    return Relation(
        Oid(1),
        "shop",
        "orders",
        identity,
        tuple(Column(c, TEXT, -1, c in key.split()) for c in columns.split()),
    )


def target(columns: str = "id v", key: str = "id") -> TableDef:
    return TableDef(
        Oid(2),
        "shop",
        "orders",
        Oid(10),
        tuple(ColumnDef(c, TEXT) for c in columns.split()),
        tuple(key.split()),
        "/x",
    )


FULL, NOTHING, INDEX = (
    ReplicaIdentity.FULL,
    ReplicaIdentity.NOTHING,
    ReplicaIdentity.INDEX,
)


@pytest.mark.parametrize(
    ("relation", "table", "changes_rows"),
    [
        (source(), target(), True),
        # Columns go by name, in any order; the target may have more.
        (source("v id"), target("id extra v"), True),
        # Inserts and truncates need no key.
        (source(key=""), target(key=""), False),
        (source(key="", identity=NOTHING), target(), False),
        # The key may be another index's columns, or part of what is sent.
        (source("a b c", "b a", INDEX), target("a b c", "a b"), True),
        (source("a b c", "a b", INDEX), target("a b c", "a"), True),
        (source("id v", "id v", FULL), target(), True),
    ],
)
def test_these_fit(relation: Relation, table: TableDef, changes_rows: bool) -> None:
    check_target(RelationUse(relation, changes_rows), table)


@pytest.mark.parametrize(
    ("relation", "table", "sqlstate", "message"),
    [
        (
            source(),
            None,
            "55000",
            'logical replication target relation "shop.orders" does not exist',
        ),
        (
            source("id v w"),
            target("id v"),
            "55000",
            'logical replication target relation "shop.orders" is missing replicated'
            ' column: "w"',
        ),
        (
            source("id v w x"),
            target("id"),
            "55000",
            'logical replication target relation "shop.orders" is missing replicated'
            ' columns: "v", "w", "x"',
        ),
        # Names are compared exactly.
        (
            source("id V"),
            target("id v"),
            "55000",
            'logical replication target relation "shop.orders" is missing replicated'
            ' column: "V"',
        ),
        (
            source(key=""),
            target(key=""),
            "55000",
            'logical replication target relation "shop.orders" has neither REPLICA'
            " IDENTITY index nor PRIMARY KEY and published relation does not have REPLICA"
            " IDENTITY FULL",
        ),
        (
            source("id v", "v", INDEX),
            target(),
            "55000",
            "publisher did not send replica identity column expected by the logical"
            ' replication target relation "shop.orders"',
        ),
    ],
)
def test_these_do_not_and_say_why(
    relation: Relation, table: TableDef | None, sqlstate: str, message: str
) -> None:
    with pytest.raises(ApplyError) as caught:
        check_target(RelationUse(relation, changes_rows=True), table)
    assert (caught.value.message, caught.value.sqlstate) == (message, sqlstate)
    assert caught.value.hint


def test_the_context_says_as_much_as_is_known_as_postgresql_does() -> None:
    origin = 'processing remote data for replication origin "pg_16394"'
    assert error_context(origin="pg_16394") == origin
    assert (
        error_context(
            origin="pg_16394",
            relation="public.t",
            column="v",
            xid=741,
            finish_lsn=Lsn.parse("0/14C0378"),
        )
        == f'{origin} for replication target relation "public.t" column "v"'
        " in transaction 741, finished at 0/14C0378"
    )
    assert (
        error_context(origin="pg_16394", relation="public.t", finish_lsn=Lsn(16))
        == f'{origin} for replication target relation "public.t", finished at 0/10'
    )
