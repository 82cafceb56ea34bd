"""Which target can take a relation, in PostgreSQL's words (apply/relationmap.py)."""

from __future__ import annotations

import pytest

from wal2lake.apply.relationmap import (
    RelationUse,
    check_target,
    error_context,
    has_unique_key,
)
from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import ApplyError
from wal2lake.model import Column, Domain, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.pgtypes.registry.pg_type import numeric_typmod

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


def refusal(use: RelationUse, table: TableDef) -> str | None:
    try:
        check_target(use, table)
    except ApplyError as error:
        return error.message
    return None


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
    assert refusal(RelationUse(relation, changes_rows), table) is None


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


@pytest.mark.parametrize(
    ("relation", "table", "unique"),
    [
        (source(), target(), True),
        (source("a b", "a"), target("a b", "a b"), True),
        (source("a b", "a b"), target("a b", "a"), False),
        (source(key=""), target(), False),
        (source("id v", "id v", FULL), target(), False),
        (source(key="", identity=NOTHING), target(), False),
        (source("id v", "id", INDEX), target(), True),
    ],
)
def test_a_replica_identity_within_the_key_makes_it_unique(
    relation: Relation, table: TableDef, unique: bool
) -> None:
    assert has_unique_key(relation, table) is unique


INT8, NUMERIC, VARCHAR, TIMESTAMP, FLOAT8 = map(Oid, (20, 1700, 1043, 1114, 701))
UUID, CHAR, FOREIGN = map(Oid, (2950, 1042, 20000))


@pytest.mark.parametrize(
    ("sent", "column", "apart"),
    [
        ((INT, -1), ColumnDef("id", INT), True),
        ((INT, -1), ColumnDef("id", INT8), True),
        ((INT8, -1), ColumnDef("id", INT), False),
        ((INT, -1), ColumnDef("id", NUMERIC), True),
        ((INT, -1), ColumnDef("id", NUMERIC, numeric_typmod(9, -2)), False),
        ((TEXT, -1), ColumnDef("id", NUMERIC), False),
        ((TEXT, -1), ColumnDef("id", CHAR), False),
        ((TEXT, -1), ColumnDef("id", VARCHAR, 14), False),
        ((TEXT, -1), ColumnDef("id", VARCHAR), True),
        ((VARCHAR, 9), ColumnDef("id", VARCHAR, 9), True),
        ((NUMERIC, -1), ColumnDef("id", TEXT), True),
        ((UUID, -1), ColumnDef("id", TEXT), True),
        ((NUMERIC, numeric_typmod(5, 2)), ColumnDef("id", NUMERIC), True),
        (
            (NUMERIC, numeric_typmod(5, 2)),
            ColumnDef("id", NUMERIC, numeric_typmod(9, 2)),
            True,
        ),
        (
            (NUMERIC, numeric_typmod(5, 2)),
            ColumnDef("id", NUMERIC, numeric_typmod(9, 1)),
            False,
        ),
        ((NUMERIC, -1), ColumnDef("id", NUMERIC, numeric_typmod(9, 1)), False),
        ((TIMESTAMP, -1), ColumnDef("id", TIMESTAMP), True),
        ((TIMESTAMP, -1), ColumnDef("id", TIMESTAMP, 0), False),
        ((FLOAT8, -1), ColumnDef("id", INT), False),
        # An enum; a citext of ours, which finds more texts equal.
        ((FOREIGN, -1), ColumnDef("id", TEXT), True),
        ((FOREIGN, -1), ColumnDef("id", TEXT, type_name="public.citext"), True),
        ((TEXT, -1), ColumnDef("id", TEXT, type_name="public.citext"), False),
        # A domain; of one that nobody has described nothing is known.
        ((FOREIGN, -1), ColumnDef("id", INT, domain=Domain("public.d", INT)), True),
        ((FOREIGN, -1), ColumnDef("id", INT8, domain=Domain("public.d", INT)), True),
        ((FOREIGN, -1), ColumnDef("id", INT, domain=Domain("public.d", INT8)), False),
        ((FOREIGN, -1), ColumnDef("id", INT), False),
    ],
)
def test_values_that_our_type_may_find_equal_make_no_unique_key(
    sent: tuple[Oid, int], column: ColumnDef, apart: bool
) -> None:
    relation = Relation(
        Oid(1),
        "shop",
        "orders",
        ReplicaIdentity.DEFAULT,
        (Column("id", *sent, is_key=True),),
    )
    table = TableDef(Oid(2), "shop", "orders", Oid(10), (column,), ("id",), "/x")
    assert has_unique_key(relation, table) is apart


@pytest.mark.parametrize(
    ("sent", "here", "adds"),
    [("id v w", "id v", True), ("id v V", "id v", False), ("id w W", "id", False)],
)
def test_a_column_is_only_to_be_added_where_delta_can_store_it(
    sent: str, here: str, adds: bool
) -> None:
    with pytest.raises(ApplyError) as caught:
        check_target(RelationUse(source(sent), False), target(here))
    hint = str(caught.value.hint)
    assert ("ADD COLUMN on the target" in hint) is adds
    assert ("leave one of them out with a column list" in hint) is not adds
    assert "drop the table here and run ALTER SUBSCRIPTION" in hint
