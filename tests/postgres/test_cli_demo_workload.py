"""The demo's workload does what the demo says, and its ledger is true."""

from __future__ import annotations

from wal2lake.cli.demo.compare import compare_tables
from wal2lake.cli.demo.workload import CUSTOMERS, SCHEMA, TABLES, ShopWorkload
from wal2lake.model import Lsn
from wal2lake.pg.client import Client
from wal2lake.testing.waits import wait_until


def test_the_shop_sees_every_kind_of_change_and_the_ledger_knows_when(pg18):
    pg18.psql(SCHEMA)
    assert pg18.psql(
        "select count(*) from pg_publication_tables where pubname = 'shop'"
    ) == str(len(TABLES))
    workload = ShopWorkload(pg18.conninfo())
    workload.start()
    # The large transaction is the last kind to come.
    wait_until(
        lambda: (
            workload.failure or sum(workload.now.changes) > 12_000
            if workload.has_begun
            else None
        )
    )
    end = workload.stop()
    assert workload.failure is None
    assert workload.at(end) == workload.now
    assert workload.at(Lsn(0)) is None
    half = workload.at(Lsn(end - 1))
    assert half is not None and half.total <= workload.now.total
    kinds = pg18.psql(
        "select (select count(*) > 0 from shop.customers where id >= 1000000),"
        " (select max(length(profile)) > 8000 from shop.customers),"
        " (select count(*) > 0 from shop.payments where seq = 2),"
        " (select count(*) > 1000 from shop.orders where status = 'bulk'),"
        f" (select count(*) = {CUSTOMERS} from shop.customers)"
    )
    assert kinds == "t|t|t|t|t"
    with Client(pg18.conninfo()) as one, Client(pg18.conninfo()) as two:
        found = compare_tables(one, two, "shop", TABLES)
        assert all(d.is_equal for d in found)
        # What one of them does not see yet is found.
        two.rows("begin isolation level repeatable read; select 1")
        pg18.psql(
            "update shop.customers set profile = 'x'"
            " where id = (select min(id) from shop.customers)"
        )
        pg18.psql(
            "update shop.payments set details = '{}'"
            " where order_id = (select min(order_id) from shop.payments)"
        )
        found = compare_tables(one, two, "shop", TABLES)
    assert {d.table for d in found if not d.is_equal} == {"customers", "payments"}
