"""Random SQL for a publisher and for its subscribers, who are then compared.

Comes in: a random.Random. Goes out: transactions for the publisher, and statements that are the
same at every subscriber. Nothing is asked of a server: each statement decides by itself
whether it finds a row or a free key. Rows are of two kinds:

- *calm* rows, which no subscriber writes: any number of changes of them in a transaction;
- *contested* rows (numbers from ``CONTESTED`` on), which subscribers write, too.
  A transaction has one change of them that may stop a subscription at most. So what a failed
  attempt has counted before it failed is the same however far it got. With an even number nothing
  else is in it: it can be skipped.

Equal rows are of the calm kind only, and equal in every bit: PostgreSQL may take any one of
several rows that are equal by their type.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CONTESTED: Final = 1000
CALM_KEYS: Final = 8
CONTESTED_KEYS: Final = 2

IDENTITIES: Final = ("default", "full", "using index sw_other", "nothing")
"""What the table ``sw`` goes through while it streams."""

SOURCE: Final = """
create schema rs;
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
create publication rs for tables in schema rs;
"""
"""The publisher's tables, but for how ``w`` is stored."""

NAMES: Final = ("d", "c", "ix", "fk", "fn", "no", "sw")

OUT_OF_LINE: Final = "; ".join(
    f"alter table rs.{name} alter w set storage external" for name in NAMES
)
"""Long values of ``w`` are sent only if they change."""

TARGETS: Final = (
    "create schema rs",
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
        """Each contested row, in transactions of the publisher."""
        for table in TABLES.values():
            for number in range(CONTESTED, CONTESTED + CONTESTED_KEYS):
                yield self._insert(table, number)

    def transactions(self, count: int) -> Iterator[str]:
        """That many transactions of the publisher, without BEGIN and COMMIT."""
        for _ in range(count):
            yield "; ".join(self._transaction())

    def local(self, count: int) -> Iterator[str]:
        """Two statements about all contested rows of a table, then that many others, or short
        transactions, of every subscriber."""
        changed, emptied = self._rng.sample(list(TABLES.values()), 2)
        for start, table in (
            (f"update {changed.name} set v = 'all mine'", changed),
            (f"delete from {emptied.name}", emptied),
        ):
            yield f"{start} where {table.key.split()[0]} >= {CONTESTED}"
        for _ in range(count):
            kind = self._rng.random()
            if kind < 0.15:
                some = "; ".join(self._local() for _ in range(self._rng.randint(2, 3)))
                yield f"begin; {some}; {self._rng.choice(['commit', 'rollback'])}"
            elif kind < 0.18:
                yield f"truncate {self._rng.choice(list(TABLES.values())).name}"
            else:
                yield self._local()

    # ---- the publisher ----------------------------------------------------------

    def _transaction(self) -> list[str]:
        kind = self._rng.random()
        if kind < 0.06:
            names = self._rng.sample([t.name for t in TABLES.values()], 2)
            before, after = self._calm_changes(2), self._calm_changes(3)
            return [*before, "truncate " + ", ".join(names), *after]
        if kind < 0.14:
            self._identity = self._rng.choice(IDENTITIES)
            changed = f"alter table rs.sw replica identity {self._identity}"
            return [changed, *self._calm_changes(3)]
        if kind < 0.30:
            number = self._contested()
            change = self._stopping(number)
            if number % 2 == 0:
                return [change]
            return [*self._calm_changes(2), change, *self._calm_changes(2)]
        if kind < 0.55:
            return [self._harmless() for _ in range(self._rng.randint(1, 3))]
        return self._calm_changes(self._rng.choice((1, 3, 8)))

    def _calm_changes(self, most: int) -> list[str]:
        found: list[str] = []
        for _ in range(self._rng.randint(1, most)):
            if self._rng.random() < 0.15:
                self._serial += 1
                point = f"s{self._serial}"
                undone = [self._calm() for _ in range(2)]
                end = self._rng.choice(["rollback to", "release"])
                found += [f"savepoint {point}", *undone, f"{end} {point}"]
            found.append(self._calm())
        return found

    def _calm(self) -> str:
        table = self._table()
        a, b = self._rng.sample(range(CALM_KEYS), 2)
        kind = self._rng.random()
        if table.name == "rs.fn":
            return self._calm_keyless(kind, a, b)
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
        where = table.at(a) if kind < 0.95 else f"{table.key.split()[0]} < {CONTESTED}"
        return f"update {table.name} set {self._values()} where {where}"

    def _calm_keyless(self, kind: float, a: int, b: int) -> str:
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

    def _stopping(self, number: int) -> str:
        table = self._table()
        if self._rng.random() < 0.6 or self._inserts_only(table):
            return self._insert(table, number)
        return self._move(table, self._contested(), number)

    def _harmless(self) -> str:
        table = self._table()
        where = table.at(self._contested())
        if self._inserts_only(table):
            return self._calm()
        if self._rng.random() < 0.6:
            return f"update {table.name} set {self._values()} where {where}"
        return f"delete from {table.name} where {where}"

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

    # ---- the subscribers ----------------------------------------------------------

    def _local(self) -> str:
        table, number = self._table(), self._contested()
        kind = self._rng.random()
        self._serial += 1
        mine = f"'mine {self._serial}'"
        if kind < 0.4:
            values = table.insert.format(n=number)
            return f"insert into {table.name} {values}, {mine}, null)"
        if kind < 0.6:
            return f"delete from {table.name} where {table.at(number)}"
        change = self._rng.choice([f"v = {mine}", "v = v", "w = 'short'"])
        if kind > 0.95:
            change = table.move.format(n=self._contested())
            if table.name == "rs.fn":
                change += f", v = {mine}"
        return f"update {table.name} set {change} where {table.at(number)}"

    # ---- values -------------------------------------------------------------------

    def _table(self) -> Table:
        return self._rng.choice(list(TABLES.values()))

    def _contested(self) -> int:
        return CONTESTED + self._rng.randrange(CONTESTED_KEYS)

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
