"""Random SQL for a publisher and for its subscribers, who are then compared.

Comes in: a random.Random. Goes out: transactions for the publisher. Nothing is asked of a server:
each statement decides by itself whether it finds a row or a free key, and no subscriber
writes these rows (for that: ``contested_rows``), so none of them is ever in conflict.

Rows without a key are equal in every bit if they are equal at all: PostgreSQL may take any one of
several rows that are equal by their type.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

KEYS: Final = 8

IDENTITIES: Final = ("default", "full", "using index sw_other", "nothing")
"""What the table ``sw`` goes through while it streams."""

SOURCE: Final = """
create table rs.d (id int primary key, v text, w text);
create table rs.c (x int, y text, v text, w text, primary key (y, x));
create table rs.ix (id int not null, y text not null, v text, w text);
create unique index ix_key on rs.ix (y, id);
alter table rs.ix replica identity using index ix_key;
create table rs.fk (id int primary key, v text, w text);
alter table rs.fk replica identity full;
create table rs.fn (id int, v text, w text);
alter table rs.fn replica identity full;
create table rs.no (id int primary key, v text, w text);
alter table rs.no replica identity nothing;
create table rs.sw (id int primary key, other int not null, v text, w text);
create unique index sw_other on rs.sw (other, id);
"""
"""The publisher's tables, but for how ``w`` is stored."""

NAMES: Final = ("d", "c", "ix", "fk", "fn", "no", "sw")

OUT_OF_LINE: Final = "; ".join(
    f"alter table rs.{name} alter w set storage external" for name in NAMES
)
"""Long values of ``w`` are sent only if they change."""

TARGETS: Final = (
    "create table rs.d (w text, id int primary key, note text default 'ours', v text)",
    "create table rs.c (x int, y text, v text, w text, primary key (y, x))",
    "create table rs.ix (id int not null, y text not null, v text, w text,"
    " primary key (y, id))",
    "create table rs.fk (id int primary key, v text, w text)",
    "create table rs.fn (id int, v text, w text)",
    "create table rs.no (id int primary key, v text, w text)",
    "create table rs.sw (id int primary key, other int not null, v text, w text)",
)
"""The subscribers' tables, in SQL that a node understands, too."""


@dataclass(frozen=True, slots=True)
class Table:
    """How a table's rows are named, as SQL with the row's number in it."""

    name: str
    key: str
    """WHERE clause of one row."""
    insert: str
    """The publisher's columns and values, up to ``v`` and ``w``."""
    move: str
    """SET clause that gives a row another number."""

    def at(self, number: int) -> str:
        """WHERE clause of the row of a number."""
        return self.key.format(n=number)


TABLES: Final = {
    table.name: table
    for table in (
        *(
            Table(f"rs.{name}", "id = {n}", "(id, v, w) values ({n}", "id = {n}")
            for name in ("d", "fk", "fn", "no")
        ),
        Table(
            "rs.c",
            "x = {n} and y = 'k{n}'",
            "(x, y, v, w) values ({n}, 'k{n}'",
            "x = {n}, y = 'k{n}'",
        ),
        Table(
            "rs.ix",
            "id = {n} and y = 'é {n}'",
            "(id, y, v, w) values ({n}, 'é {n}'",
            "id = {n}, y = 'é {n}'",
        ),
        Table(
            "rs.sw",
            "id = {n}",
            "(id, other, v, w) values ({n}, {n} + 1",
            "id = {n}, other = {n} + 1",
        ),
    )
}


class RandomChanges:
    """One history. Not thread-safe."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._serial = 0
        self._identity = "default"

    def first(self) -> Iterator[str]:
        """Some rows of every table."""
        for table in TABLES.values():
            yield "; ".join(self._insert(table, number) for number in range(KEYS // 2))

    def transactions(self, count: int) -> Iterator[str]:
        """That many transactions of the publisher, without BEGIN and COMMIT. One of them
        truncates, another changes an identity."""
        special: dict[int, Callable[[], list[str]]] = dict(
            zip(
                self._rng.sample(range(count), 2),
                (self._truncation, self._other_identity),
                strict=True,
            )
        )
        for number in range(count):
            if number in special:
                yield "; ".join(special[number]())
            else:
                yield "; ".join(self.changes(self._rng.choice((1, 3, 8))))

    def _truncation(self) -> list[str]:
        names = self._rng.sample([table.name for table in TABLES.values()], 2)
        refilled = [self._insert(TABLES[name], 0) for name in names]
        truncate = "truncate " + ", ".join(names)
        return [*self.changes(2), truncate, *refilled, *self.changes(3)]

    def _other_identity(self) -> list[str]:
        others = [one for one in IDENTITIES if one != self._identity]
        self._identity = self._rng.choice(others)
        changed = f"alter table rs.sw replica identity {self._identity}"
        return [changed, *self.changes(3)]

    def changes(self, most: int) -> list[str]:
        """Up to that many statements of one transaction, and what it rolls back."""
        found: list[str] = []
        for _ in range(self._rng.randint(1, most)):
            if self._rng.random() < 0.15:
                self._serial += 1
                point = f"s{self._serial}"
                undone = [self._change() for _ in range(2)]
                end = self._rng.choice(["rollback to", "release"])
                found += [f"savepoint {point}", *undone, f"{end} {point}"]
            found.append(self._change())
        return found

    def _change(self) -> str:
        table = self._table()
        a, b = self._rng.sample(range(KEYS), 2)
        kind = self._rng.random()
        if table.name == "rs.fn":
            return self._keyless(kind, a, b)
        if kind < 0.3 or self._inserts_only(table):
            return self._insert(table, a)
        if kind < 0.4:
            third = -self._rng.randint(1, 9)
            return "; ".join(
                self._move(table, *pair) for pair in ((a, third), (b, a), (third, b))
            )
        if kind < 0.5:
            return self._move(table, a, b)
        if kind < 0.55:
            # A row that comes again.
            return f"delete from {table.name} where {table.at(a)}; " + self._insert(
                table, a
            )
        if kind < 0.7:
            return f"delete from {table.name} where {table.at(a)}"
        where = table.at(a) if kind < 0.95 else "true"
        return f"update {table.name} set {self._values()} where {where}"

    def _keyless(self, kind: float, a: int, b: int) -> str:
        number = str(a) if self._rng.random() < 0.85 else "null"
        same = f"id is not distinct from {number}"
        one = f"ctid = (select min(ctid) from rs.fn where {same})"
        where = one if self._rng.random() < 0.6 else same
        if kind < 0.4:
            text = self._rng.choice(["null", "'same'", "''"])
            return (
                f"insert into rs.fn select {number}, {text}, {text}"
                f" from generate_series(1, {self._rng.randint(1, 3)})"
            )
        if kind < 0.6:
            return f"delete from rs.fn where {where}"
        change = self._rng.choice(["v = 'same'", "v = null", f"id = {b}"])
        if self._rng.random() < 0.3:
            change = self._values()
        return f"update rs.fn set {change} where {where}"

    def _insert(self, table: Table, number: int) -> str:
        columns, values = table.insert.format(n=number).split(" values (")
        return (
            f"insert into {table.name} {columns} select {values}, {self._text()},"
            f" {self._text()} where not exists"
            f" (select 1 from {table.name} where {table.at(number)})"
        )

    def _move(self, table: Table, old: int, new: int) -> str:
        more = self._rng.choice(["", f", v = {self._text()}", f", {self._values()}"])
        return (
            f"update {table.name} set {table.move.format(n=new)}{more}"
            f" where {table.at(old)} and not exists"
            f" (select 1 from {table.name} where {table.at(new)})"
        )

    def _inserts_only(self, table: Table) -> bool:
        nothing = table.name == "rs.sw" and self._identity == "nothing"
        return nothing or table.name == "rs.no"

    # ---- values -------------------------------------------------------------------

    def _table(self) -> Table:
        return self._rng.choice(list(TABLES.values()))

    def _values(self) -> str:
        return self._rng.choice(
            [
                f"v = {self._text()}",
                f"w = {self._text()}",
                f"v = {self._text()}, w = {self._text()}",
            ]
        )

    def _text(self) -> str:
        self._serial += 1
        kind = self._rng.random()
        if kind < 0.1:
            return "null"
        if kind < 0.35:
            return f"repeat('long {self._serial} ', 400)"
        return f"'v{self._serial}'"
