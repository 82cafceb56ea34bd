"""The demo's shop: three tables on a real PostgreSQL, in constant use.

The shop has everything that a copy can get wrong: values too large for a page (TOAST) that updates
leave alone, changes of a key, deletes, transactions over all tables, a large one, numeric,
timestamps, arrays, JSON, nulls. The workload runs in its own thread with its own connection. It
keeps a *ledger* of the number of changes by LSN, so the position of a copy tells which changes it
lacks.

Called by: ``run``.
"""

from __future__ import annotations

import bisect
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from wal2lake.model import Lsn
from wal2lake.pg.client import Client

TABLES: Final = MappingProxyType(
    {
        "customers": ("id",),
        "orders": ("id",),
        "payments": ("order_id", "seq"),
    }
)
"""The tables of schema shop and their keys."""

CUSTOMERS: Final = 10_000
ORDERS: Final = 60_000

_LARGE_EVERY_SECONDS: Final = 10.0
_LARGE_ORDERS: Final = 8_000
_PAUSE_SECONDS: Final = 0.008
"""Pause between two transactions: enough to be a load, but not to starve two cores, which
PostgreSQL, the workload, the node and Spark have to share."""

SCHEMA: Final = f"""
create schema shop;
create table shop.customers (
    id bigint primary key, name text not null, email varchar(80), vip boolean,
    balance numeric(12,2) not null default 0, score double precision,
    profile text, since date, changed_at timestamptz not null default now());
create table shop.orders (
    id bigint primary key, customer_id bigint not null, status text not null,
    amount numeric(12,2), tags text[], placed_at timestamp not null default now(),
    note text);
create table shop.payments (
    order_id bigint, seq integer, amount numeric(12,2) not null, method text,
    details jsonb, paid_at timestamptz not null default now(),
    primary key (order_id, seq));
insert into shop.customers (id, name, email, vip, balance, score, profile, since)
select i, 'customer ' || i, 'c' || i || '@example.org', i % 17 = 0, i / 7.0, ln(i),
    case when i % 20 = 0 then (select string_agg(md5(i::text || k), '')
        from generate_series(1, 200) k) end,
    date '2020-01-01' + (i % 1500)::int
from generate_series(1, {CUSTOMERS}) i;
insert into shop.orders (id, customer_id, status, amount, tags, note)
select i, 1 + i % {CUSTOMERS}, 'new', (i % 5000) / 3.0, array['demo', 'n' || i % 9],
    case when i % 3 = 0 then 'a "quoted", ünïcode note ' || i end
from generate_series(1, {ORDERS}) i;
insert into shop.payments (order_id, seq, amount, method, details)
select i, 1, (i % 5000) / 3.0, 'card', jsonb_build_object('try', i % 4)
from generate_series(1, {ORDERS}) i;
create publication shop for tables in schema shop;
analyze shop.customers, shop.orders, shop.payments;
"""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The numbers of changes at one moment."""

    lsn: Lsn
    noted_at: float
    """Value of time.monotonic()."""
    changes: tuple[int, ...]
    """Numbers of changed rows so far, by table in the order of TABLES."""

    @property
    def total(self) -> int:
        """The number of changed rows in all tables."""
        return sum(self.changes)


class ShopWorkload:
    """Uses the shop until it is stopped."""

    def __init__(self, conninfo: str) -> None:
        """Prepare; ``start`` begins the work."""
        self._conninfo = conninfo
        self._random = random.Random(20)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)
        self._changes = dict.fromkeys(TABLES, 0)
        self._next_order = ORDERS + 1
        self._next_key = 1_000_000
        self._ledger: list[LedgerEntry] = []
        self.transactions = 0
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin in a thread."""
        self._thread.start()

    def stop(self) -> Lsn:
        """End after the current transaction; returns the source's position then.

        Raises the error that has ended the thread, if there is one.
        """
        self.close()
        if self.failure is not None:
            raise self.failure
        return self._ledger[-1].lsn

    def close(self) -> None:
        """End the thread in any case."""
        self._stop.set()
        self._thread.join()

    @property
    def now(self) -> LedgerEntry:
        """The newest entry, which exists once the first transaction is done."""
        return self._ledger[-1]

    @property
    def has_begun(self) -> bool:
        """True once there is an entry, or a failure."""
        return bool(self._ledger) or self.failure is not None

    def at(self, lsn: Lsn) -> LedgerEntry | None:
        """Return the newest entry that a copy at ``lsn`` has; None if it lacks even the first."""
        count = bisect.bisect_right(self._ledger, lsn, key=lambda entry: entry.lsn)
        return self._ledger[count - 1] if count else None

    # ---- the thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            with Client(self._conninfo) as client:
                self._use(client)
        except Exception as error:
            # The waiting thread raises the error.
            self.failure = error

    def _use(self, client: Client) -> None:
        steps = (
            (self._new_orders, 40),
            (self._work_on_orders, 25),
            (self._touch_customer, 15),
            (self._rewrite_profile, 5),
            (self._change_key, 5),
            (self._delete_order, 10),
        )
        choices, weights = zip(*steps, strict=True)
        large_at = time.monotonic() + _LARGE_EVERY_SECONDS / 2
        while not self._stop.is_set():
            if time.monotonic() >= large_at:
                self._large(client)
                large_at = time.monotonic() + _LARGE_EVERY_SECONDS
            step: Callable[[Client], None] = self._random.choices(choices, weights)[0]
            step(client)
            self.transactions += 1
            self._note(client)
            self._stop.wait(_PAUSE_SECONDS)

    def _note(self, client: Client) -> None:
        lsn = client.rows("select pg_current_wal_lsn()")[0][0]
        changes = tuple(self._changes.values())
        self._ledger.append(LedgerEntry(Lsn.parse(str(lsn)), time.monotonic(), changes))

    def _do(self, client: Client, sql: str, **changes: int) -> None:
        client.rows(sql)
        for table, count in changes.items():
            self._changes[table] += count

    def _old_order(self) -> int:
        return self._random.randrange(1, self._next_order)

    def _customer(self) -> int:
        return self._random.randint(1, CUSTOMERS)

    def _new_orders(self, client: Client) -> None:
        count = self._random.randint(1, 12)
        first = self._next_order
        self._next_order += count
        customer = self._customer()
        self._do(
            client,
            f"""begin;
            insert into shop.orders (id, customer_id, status, amount, tags, note)
            select i, {customer}, 'new', i * 0.37, array['live', null, 'x,y "z"'],
                repeat('note ', i::int % 5)
            from generate_series({first}, {first + count - 1}) i;
            insert into shop.payments (order_id, seq, amount, method, details)
            select i, 1, i * 0.37, 'card', '{{"live": true, "n": [1, 2]}}'
            from generate_series({first}, {first + count - 1}) i;
            update shop.customers set balance = balance + {count}, changed_at = now()
            where id = {customer};
            commit""",
            orders=count,
            payments=count,
            customers=1,
        )

    def _work_on_orders(self, client: Client) -> None:
        order = self._old_order()
        status = self._random.choice(("paid", "packed", "sent", "returned"))
        self._do(
            client,
            f"""begin;
            update shop.orders set status = '{status}' where id = {order};
            insert into shop.payments (order_id, seq, amount, method)
            values ({order}, 2, -1.50, 'voucher')
            on conflict (order_id, seq) do update
            set amount = shop.payments.amount - 0.01;
            commit""",
            orders=1,
            payments=1,
        )

    def _touch_customer(self, client: Client) -> None:
        # A large profile is not sent with this update.
        self._do(
            client,
            f"update shop.customers set score = {self._random.random()!r},"
            f" vip = not vip, changed_at = now() where id = {self._customer()}",
            customers=1,
        )

    def _rewrite_profile(self, client: Client) -> None:
        seed = self._random.randrange(1 << 30)
        self._do(
            client,
            "update shop.customers set profile = (select string_agg(md5("
            f"'{seed}' || k), '') from generate_series(1, 300) k)"
            f" where id = {self._customer()}",
            customers=1,
        )

    def _change_key(self, client: Client) -> None:
        key = self._next_key
        self._next_key += 1
        self._do(
            client,
            f"""begin;
            update shop.customers set id = {key} where id = {self._customer()};
            update shop.customers set name = name || '*' where id = {key};
            commit""",
            customers=2,
        )

    def _delete_order(self, client: Client) -> None:
        order = self._old_order()
        self._do(
            client,
            f"""begin;
            delete from shop.payments where order_id = {order};
            delete from shop.orders where id = {order};
            commit""",
            orders=1,
            payments=1,
        )

    def _large(self, client: Client) -> None:
        first = self._next_order
        self._next_order += _LARGE_ORDERS
        half = _LARGE_ORDERS // 2
        self._do(
            client,
            f"""begin;
            insert into shop.orders (id, customer_id, status, amount)
            select i, 1 + i % {CUSTOMERS}, 'bulk', 1
            from generate_series({first}, {self._next_order - 1}) i;
            update shop.orders set amount = amount + 0.5
            where id >= {first} and id < {first + half};
            delete from shop.orders where id >= {first + half + half // 2};
            commit""",
            orders=_LARGE_ORDERS + half + half // 2,
        )
