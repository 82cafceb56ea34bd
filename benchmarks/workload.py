"""The rows of all workloads: six columns, about 100 bytes, and how they change.

A ``bigint`` key, an ``int``, a ``numeric(12,2)``, a ``timestamptz``, 50 characters of text
that do not compress, a ``bool``. Everything is written by the source itself (generate_series
and DO blocks), so the writer is never what is measured.

Comes in: a connection to the source. Goes out: tables with rows, changes, and ``mark``: an LSN
inside the last transaction. A position beyond it has that transaction, and one that stops before
the commit record does not, so it says "everything arrived" to every peer alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.model import Lsn
from wal2lake.pg.client import Client, Failure, ResultRows

SCHEMA: Final = "bench"

COLUMNS: Final = (
    "id bigint primary key, customer int not null, amount numeric(12,2) not null,"
    " created timestamptz not null, note text not null, paid boolean not null"
)

_SPREAD: Final = 7919
"""A prime: its multiples visit every key of a table before one comes again."""


def create_table(name: str) -> str:
    """Statements that make an empty table, on the source and on a native subscriber."""
    return f"create schema if not exists {SCHEMA}; create table {SCHEMA}.{name} ({COLUMNS})"


def insert_rows(name: str, first: int | str, last: int | str) -> str:
    """A statement that inserts keys ``first`` to ``last``; both may be SQL expressions."""
    return (
        f"insert into {SCHEMA}.{name}"
        " select n, (n * 37) % 1000003, (n % 900000007) / 100.0,"
        " timestamptz '2026-01-01 00:00:00+00' + n * interval '1001 milliseconds',"
        " md5(n::text) || left(md5((n + 1)::text), 18), n % 3 = 0"
        f" from generate_series(({first})::bigint, ({last})::bigint) n"
    )


def update_rows(name: str, where: str) -> str:
    """A statement that changes three columns of the rows ``where``."""
    return (
        f"update {SCHEMA}.{name} set amount = amount + 1, paid = not paid,"
        f" note = md5(note) || left(note, 18) where {where}"
    )


def fingerprint(name: str) -> str:
    """A query whose answer is the same on two tables with the same rows, and fast."""
    return (
        "select count(*), sum(id), sum(customer), sum(amount), max(created), min(note),"
        " max(note), sum(case when paid then id else 0 end)"
        f" from {SCHEMA}.{name}"
    )


@dataclass(frozen=True, slots=True)
class BacklogSize:
    """How many changes of each kind; the defaults are the issue's."""

    inserts: int = 1_000_000
    """1,000 a transaction."""
    updates: int = 500_000
    """In five transactions."""
    single: int = 200_000
    """Updates of one row, each its own transaction."""

    @property
    def changes(self) -> int:
        """All row changes."""
        return self.inserts + self.updates + self.single


def write_backlog(source: Client, name: str, size: BacklogSize) -> Lsn:
    """Write it into an empty table; returns the mark of its last transaction."""
    source.rows("set synchronous_commit = off")
    _run(
        source,
        f"do $$ begin for i in 0 .. {(size.inserts - 1) // 1000} loop "
        + insert_rows(name, "i * 1000 + 1", f"least(i * 1000 + 1000, {size.inserts})")
        + "; commit; end loop; end $$",
    )
    part = size.updates // 5
    for i in range(5):
        last = size.updates if i == 4 else (i + 1) * part
        _run(source, update_rows(name, f"id between {i * part + 1} and {last}"))
    single = update_rows(name, f"id = 1 + (i::bigint * {_SPREAD}) % {size.inserts}")
    _run(
        source,
        f"do $$ begin for i in 1 .. {size.single - 1} loop {single}; commit;"
        " end loop; end $$",
    )
    # The last one also makes everything before it durable: a walsender sends no more.
    source.rows("set synchronous_commit = on")
    return marked(source, update_rows(name, "id = 1"))


def marked(source: Client, statement: str) -> Lsn:
    """Run a transaction of one statement and return its mark."""
    sql = f"begin; {statement}; select pg_current_wal_insert_lsn(); commit"
    mark: str | None = None
    for outcome in source.run(sql):
        if isinstance(outcome, Failure):
            raise RuntimeError(outcome.message)
        if isinstance(outcome, ResultRows) and outcome.rows:
            mark = outcome.rows[0][0]
    assert mark is not None
    return Lsn.parse(mark)


def _run(source: Client, sql: str) -> Sequence[object]:
    return source.rows(sql)
