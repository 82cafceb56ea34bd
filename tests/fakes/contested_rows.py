"""One scene per conflict type, in SQL for a publisher and for all of its subscribers.

Comes in: a random.Random. Goes out: ``Scene``s, each about rows with numbers of its own, in tables
that nobody truncates: what one scene meets does not depend on any other. The types are the ones
that PostgreSQL counts; a table of a node has one unique key at most, so
multiple_unique_conflicts has no scene.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from tests.fakes.random_changes import Table

SOURCE: Final = """
create table rs.kd (id int primary key, v text, w text);
create table rs.kc (x int, y text, v text, w text, primary key (y, x));
create table rs.ki (id int not null, v text, w text);
create unique index ki_key on rs.ki (id);
alter table rs.ki replica identity using index ki_key;
create table rs.kf (id int primary key, v text, w text);
alter table rs.kf replica identity full;
create table rs.kn (id int, v text, w text);
alter table rs.kn replica identity full;
"""
"""The publisher's tables."""

TARGETS: Final = (
    "create table rs.kd (id int primary key, v text, w text)",
    "create table rs.kc (x int, y text, v text, w text, primary key (y, x))",
    "create table rs.ki (w text, v text, id int primary key)",
    "create table rs.kf (id int primary key, v text, w text)",
    "create table rs.kn (id int, v text, w text)",
)
"""The subscribers' tables, in SQL that a node understands, too."""

NAMES: Final = ("kd", "kc", "ki", "kf", "kn")

KEYED: Final = (
    *(
        Table(f"rs.{name}", "id = {n}", "(id, v, w) values ({n}", "id = {n}")
        for name in ("kd", "ki", "kf")
    ),
    Table(
        "rs.kc",
        "x = {n} and y = 'k{n}'",
        "(x, y, v, w) values ({n}, 'k{n}'",
        "x = {n}, y = 'k{n}'",
    ),
)

KEYLESS: Final = replace(KEYED[0], name="rs.kn")
"""A row that has been changed locally is missing there: nothing else names it."""

STOPPING: Final = ("insert_exists", "update_exists")
"""Types that are errors."""

PASSING: Final = (
    "update_origin_differs",
    "delete_origin_differs",
    "update_missing",
    "delete_missing",
)
"""Types that are reported, no more."""


@dataclass(frozen=True, slots=True)
class Scene:
    """How one conflict comes about."""

    conflict: str
    """Its type."""
    table: str
    before: str
    """At the publisher, for all subscribers to have it."""
    local: str
    """At each subscriber; it changes a row."""
    change: str
    """At the publisher, then."""
    remove: str
    """At each subscriber: what is in the way of ``change`` goes."""


class ContestedRows:
    """Scenes without end. Not thread-safe."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._number = 0

    def scenes(self) -> list[Scene]:
        """One of each type and two more that do not stop, in any order."""
        types = [*STOPPING, *PASSING, *self._rng.choices(PASSING, k=2)]
        self._rng.shuffle(types)
        return [self._scene(conflict) for conflict in types]

    def _scene(self, conflict: str) -> Scene:
        missing = conflict.endswith("_missing")
        table = self._rng.choice([*KEYED, KEYLESS] if missing else KEYED)
        row, free = self._number, self._number + 1
        self._number += 2
        here, name = table.at(row), table.name
        update = f"update {name} set {self._values()} where {here}"
        delete = f"delete from {name} where {here}"
        before = self._insert(table, row)
        if conflict == "insert_exists":
            before, change, remove = "", self._insert(table, row), delete
            local = self._insert(table, row)
        elif conflict == "update_exists":
            moved = table.move.format(n=free)
            if self._rng.random() < 0.5:
                moved += f", {self._values()}"
            change = f"update {name} set {moved} where {here}"
            local = self._insert(table, free)
            remove = f"delete from {name} where {table.at(free)}"
        else:
            change = update if conflict.startswith("update") else delete
            local, remove = delete, ""
            if not missing or (table is KEYLESS and self._rng.random() < 0.5):
                local = f"update {name} set {self._values()} where {here}"
        return Scene(conflict, name, before, local, change, remove)

    def _insert(self, table: Table, number: int) -> str:
        values = table.insert.format(n=number)
        text = self._rng.choice([self._text(), "null"])
        return f"insert into {table.name} {values}, {self._text()}, {text})"

    def _values(self) -> str:
        both = f"v = {self._text()}, w = {self._text()}"
        return self._rng.choice([f"v = {self._text()}", both])

    def _text(self) -> str:
        word = f"é{self._rng.randrange(10**9)}"
        return f"repeat('{word} ', 300)" if self._rng.random() < 0.2 else f"'{word}'"
