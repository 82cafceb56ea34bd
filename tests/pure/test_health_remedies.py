"""Remedies of the errors that the workers really raise: a changed text must not lose its remedy."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pure.test_apply_relationmap import source
from tests.pure.test_health_problems import ITEMS, STOCK

from wal2lake.apply.failures import row_failure
from wal2lake.apply.relationmap import RelationUse, check_target
from wal2lake.catalog import ColumnDef, TableDef, WorkerKind
from wal2lake.changelog.files import storage_error
from wal2lake.errors import PublisherError, Wal2LakeError, description_of
from wal2lake.health.problem import Concern
from wal2lake.health.rules.remedies import Remedy, failure_of, remedy_of
from wal2lake.lake.staging.layout import RowFailure, Seq
from wal2lake.model import ConflictType, Lsn, Oid
from wal2lake.receive.source.slotcheck import check_slot

ORDERS = replace(ITEMS, namespace="shop", name="orders")
SUBSCRIPTION = replace(STOCK, tables=(ORDERS,))
TABLE = TableDef(
    Oid(2),
    "shop",
    "orders",
    Oid(10),
    (ColumnDef("id", Oid(23)), ColumnDef("v", Oid(1184))),
    ("id",),
    "/x",
)
RECOPY = "SELECT wal2lake.recopy_table('\"shop\".\"orders\"', 'stock');"
ANEW = 'ALTER SUBSCRIPTION "stock" REFRESH PUBLICATION WITH (recopy = true);'


def remedy(error: Wal2LakeError, worker: WorkerKind = WorkerKind.APPLY) -> Remedy:
    failure = failure_of(SUBSCRIPTION, worker.value, error.describe(), error.sqlstate)
    return remedy_of(failure)


def of_row(
    sqlstate: str,
    message: str,
    *,
    column: str | None = None,
    conflict: ConflictType | None = None,
    values: bool = True,
    hint: str | None = None,
    table: TableDef = TABLE,
) -> str | None:
    failure = RowFailure(
        Seq(0x1AB, 1),
        column,
        sqlstate,
        message,
        conflict,
        key=None if conflict is None else "(id)=(7)",
        row="(7, new)",
        local="(7, old)",
        hint=hint,
    )
    error = row_failure(Oid(1), table, failure, 33, values=values).error
    return remedy(error).sql


@pytest.mark.parametrize(
    "kind", [ConflictType.INSERT_EXISTS, ConflictType.UPDATE_EXISTS]
)
def test_a_key_that_is_taken(kind: ConflictType) -> None:
    message = f'conflict detected on relation "shop.orders": conflict={kind.value}'
    assert of_row("23505", message, conflict=kind) == (
        """DELETE FROM "shop"."orders" WHERE "id" = '7';"""
    )
    # Values are not shown to who may not read the table.
    assert of_row("23505", message, conflict=kind, values=False) == RECOPY


def test_a_row_that_is_missing() -> None:
    kind = ConflictType.UPDATE_MISSING
    message = f'conflict detected on relation "shop.orders": conflict={kind.value}'
    assert of_row("40001", message, conflict=kind) == RECOPY


def test_values_that_do_not_fit() -> None:
    assert of_row("23502", "null value", column="v") == (
        'ALTER TABLE "shop"."orders" ALTER COLUMN v DROP NOT NULL;'
    )
    message = 'new row for relation "shop.orders" violates check constraint "c"'
    assert of_row("23514", message) == (
        'ALTER TABLE "shop"."orders" DROP CONSTRAINT "c";'
    )
    assert of_row("22008", "timestamp out of range", column="v") == (
        "ALTER SUBSCRIPTION \"stock\" SET (value_policies = 'shop.orders.v = null');"
    )
    odd = replace(TABLE, columns=(*TABLE.columns, ColumnDef("V v", Oid(1184))))
    assert of_row("22008", "timestamp out of range", column="V v", table=odd) == (
        'ALTER SUBSCRIPTION "stock" SET'
        " (value_policies = 'shop.orders.\"V v\" = null');"
    )


def test_what_can_only_be_left_out() -> None:
    assert of_row("XX000", "no idea") == (
        """ALTER SUBSCRIPTION "stock" SKIP (lsn = '0/1AB');"""
    )


@pytest.mark.parametrize(
    ("table", "sql"),
    [
        (
            replace(TABLE, columns=TABLE.columns[:1]),
            'DROP TABLE "shop"."orders";\n'
            'ALTER SUBSCRIPTION "stock" REFRESH PUBLICATION;',
        ),
        (
            replace(TABLE, key=("v",)),
            'DROP TABLE "shop"."orders";\n'
            'ALTER SUBSCRIPTION "stock" REFRESH PUBLICATION;',
        ),
        (replace(TABLE, key=()), None),
        (None, 'ALTER SUBSCRIPTION "stock" REFRESH PUBLICATION;'),
    ],
)
def test_a_table_that_cannot_take_the_relation(
    table: TableDef | None, sql: str | None
) -> None:
    with pytest.raises(Wal2LakeError) as refused:
        check_target(RelationUse(source(), changes_rows=True), table)
    assert remedy(refused.value).sql == sql


@pytest.mark.parametrize(
    ("slot", "received", "sql"),
    [
        ({}, Lsn(5), ANEW),
        (
            {},
            None,
            "SELECT pg_create_logical_replication_slot('stock', 'pgoutput');",
        ),
        ({"invalidation_reason": "wal_removed"}, Lsn(5), ANEW),
        ({"confirmed_flush_lsn": "0/9"}, Lsn(5), ANEW),
        ({"slot_type": "physical"}, Lsn(5), ANEW),
    ],
)
def test_a_slot_that_cannot_be_used(
    slot: dict[str, str], received: Lsn | None, sql: str
) -> None:
    whole = {
        "slot_type": "logical",
        "database": "app",
        "plugin": "pgoutput",
        "invalidation_reason": None,
        "wal_status": "reserved",
        "confirmed_flush_lsn": "0/1",
        **slot,
    }
    with pytest.raises(Wal2LakeError) as refused:
        check_slot(
            whole if slot else None,
            name="stock",
            database="app",
            received=received,
            same=True,
        )
    assert remedy(refused.value, WorkerKind.RECEIVER).sql == sql


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_the_nodes_own_disk_does_not_concern_the_source(number: int) -> None:
    error = storage_error("write file", Path("/log/journal"), OSError(number, "no"))
    found = remedy(error, WorkerKind.RECEIVER)
    assert (found.concern, found.sql, found.hint) == (
        Concern.OPERATOR,
        None,
        error.hint,
    )
    bug = failure_of(SUBSCRIPTION, "receiver", description_of(KeyError("x")), "XX000")
    assert remedy_of(bug).concern is Concern.OPERATOR
    full = PublisherError(
        "could not extend file: No space left on device",
        sqlstate="53100",
        hint="Check free disk space.",
    )
    assert remedy(full, WorkerKind.RECEIVER).concern is Concern.SOURCE
