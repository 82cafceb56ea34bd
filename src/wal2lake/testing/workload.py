"""A random workload of all kinds of row changes, in random transactions.

There are three tables: a plain one, one with a composite key that changes, and one with TOASTed
text that most updates do not change. Equal seeds make equal statements. Each transaction changes
several tables and keeps an invariant that a torn read would break: ``sum(balance)`` over orders
and parts is always zero.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

TABLES: Final = ("public.orders", "public.parts", "public.notes")

SCHEMA: Final = """
create table public.orders (
    id int primary key, customer text, amount numeric(12,2), balance bigint not null,
    placed timestamptz default now(), paid bool);
create table public.parts (
    order_id int, line int, sku text, balance bigint not null, qty smallint,
    price double precision, primary key (order_id, line));
create table public.notes (
    id int primary key, body text, tag text, raw bytea, flags int[]);
alter table public.notes alter body set storage external;
"""

BALANCE: Final = (
    "select (select coalesce(sum(balance), 0) from public.orders)"
    " + (select coalesce(sum(balance), 0) from public.parts)"
)
"""Zero in every consistent state."""


class Workload:
    """Makes transactions; remembers which keys it has used."""

    def __init__(self, seed: int) -> None:
        """Equal seeds make equal workloads."""
        self._random = random.Random(seed)
        self._next = 1

    def initial(self, rows: int) -> Iterator[str]:
        """Yield statements that fill the tables before the subscription is created."""
        yield (
            "insert into public.orders select i, 'customer ' || i, i * 1.25, i,"
            f" timestamptz '2020-01-01 00:00+00' + i * interval '1 s', i % 2 = 0"
            f" from generate_series(1, {rows}) i"
        )
        yield (
            "insert into public.parts select i, 1, 'sku' || i, -i, i % 100, i / 3.0"
            f" from generate_series(1, {rows}) i"
        )
        yield (
            "insert into public.notes select i, repeat(md5(i::text), 200), 't',"
            " decode(md5(i::text), 'hex'), array[i, null, -i]"
            f" from generate_series(1, {max(1, rows // 50)}) i"
        )
        self._next = rows + 1

    def transaction(self) -> str:
        """Return one transaction's statements, to be run between BEGIN and COMMIT."""
        steps = self._random.randint(1, 6)
        return "; ".join(self._step() for _ in range(steps))

    def _step(self) -> str:
        pick = self._random
        key = pick.randint(1, max(2, self._next))
        match pick.randint(0, 11):
            case 0 | 1 | 2:
                new = self._next
                self._next += 1
                value = pick.randint(-1000, 1000)
                return (
                    f"insert into public.orders values ({new}, 'c\u00e9{new}',"
                    f" {value}.5, {value}, now(), null);"
                    f" insert into public.parts values ({new}, {pick.randint(1, 3)},"
                    f" 'it''s', {-value}, null, 'NaN')"
                )
            case 3:
                value = pick.randint(-9, 9)
                return (
                    f"update public.orders set balance = balance + {value}"
                    f" where id = (select order_id from public.parts"
                    f" where order_id = {key} order by line limit 1);"
                    f" update public.parts set balance = balance - {value}"
                    f" where (order_id, line) = (select p.order_id, p.line"
                    f" from public.parts p join public.orders o on o.id = p.order_id"
                    f" where p.order_id = {key} order by p.line limit 1)"
                )
            case 4:
                return (
                    f"update public.orders set customer = customer || '!', paid = true"
                    f" where id between {key} and {key + 20}"
                )
            case 5:
                return (
                    "with gone as (delete from public.orders"
                    f" where id = {key} returning balance)"
                    " insert into public.parts select"
                    f" {self._fresh()}, 0, 'gone', balance, 0, 0 from gone"
                )
            case 6:
                return (
                    f"update public.parts set line = line + 10 where order_id = {key}"
                )
            case 7:
                low = self._fresh()
                return (
                    "insert into public.notes select i, repeat(md5(i::text), 150),"
                    " null, '\\x00ff', '{}' from"
                    f" generate_series({low}, {low + 3}) i on conflict do nothing"
                )
            case 8:
                return (
                    f"update public.notes set tag = 'x{key}' where id % 7 = {key % 7}"
                )
            case 9:
                return f"update public.notes set id = -id, tag = null where id = {key}"
            case 10:
                return f"delete from public.notes where id = {key}"
            case _:
                return f"update public.notes set body = body || 'z' where id = {key}"

    def _fresh(self) -> int:
        self._next += 4
        return self._next - 4
