"""What a backlog consists of: tables, how they are written, how two copies are compared.

Comes in: the scale. Goes out: one ``Shape`` per workload. Several, so that nobody tunes to one: the
six columns of ``workload``, 64 columns, texts of 1 KB, single-row transactions over 50 tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from benchmarks import workload
from benchmarks.options import Options
from benchmarks.report import Target
from benchmarks.workload import SCHEMA, BacklogSize, marked
from wal2lake.model import Lsn
from wal2lake.pg.client import Client


@dataclass(frozen=True, slots=True)
class Shape:
    """One backlog."""

    name: str
    """Of the workload."""
    tables: Mapping[str, str]
    """Unqualified name to the columns of CREATE TABLE."""
    changes: int
    """Row changes that ``write`` makes."""
    write: Callable[[Client], Lsn]
    """Fill the empty tables; returns the mark of the last transaction."""
    checks: tuple[str, ...]
    """Queries whose answers are the same on equal tables."""
    target: Target | None = None
    """On the speed's ratio."""

    def create(self, client: Client) -> None:
        """The empty tables, on the source or on a native subscriber."""
        client.rows(f"create schema if not exists {SCHEMA}")
        for name, columns in self.tables.items():
            client.rows(f"create table {SCHEMA}.{name} ({columns})")

    def drop(self, client: Client) -> None:
        """And away again."""
        for name in self.tables:
            client.rows(f"drop table {SCHEMA}.{name}")

    @property
    def published(self) -> str:
        """The list of CREATE PUBLICATION."""
        return ", ".join(f"{SCHEMA}.{name}" for name in self.tables)


def backlog(options: Options) -> Shape:
    """1.7 M changes of the six columns."""
    full = BacklogSize()
    size = BacklogSize(
        max(1000, options.scaled(full.inserts)),
        options.scaled(full.updates),
        options.scaled(full.single),
    )
    return Shape(
        "backlog",
        {"changed": workload.COLUMNS},
        size.changes,
        lambda source: workload.write_backlog(source, "changed", size),
        (workload.fingerprint("changed"),),
        Target(ratio_at_least=0.7, aim=1.0),
    )


_WIDE_KINDS: Final = (
    ("int", "(n * {i}) % 1000003"),
    ("numeric(12,2)", "(n * {i} % 900000007) / 100.0"),
    ("text", "left(md5((n + {i})::text), 12)"),
    ("bigint", "n * {i} * 1000003"),
    ("boolean", "(n + {i}) % 3 = 0"),
    ("timestamptz", "timestamptz '2026-01-01 00:00+00' + n * interval '{i} seconds'"),
    ("double precision", "n / {i}.7"),
)


def wide(options: Options) -> Shape:
    """64 columns; inserts, then updates of one column."""
    inserts, updates = options.scaled(200_000), options.scaled(50_000)
    kinds = [_WIDE_KINDS[i % len(_WIDE_KINDS)] for i in range(63)]
    columns = ["id bigint primary key"]
    columns += [f"c{i} {kind}" for i, (kind, _) in enumerate(kinds, 1)]
    values = ", ".join(sql.format(i=i) for i, (_, sql) in enumerate(kinds, 1))
    insert = (
        f"insert into {SCHEMA}.wide select n, {values}"
        f" from generate_series(i * 1000::bigint + 1, least(i * 1000 + 1000, {inserts})) n"
    )

    def write(source: Client) -> Lsn:
        _in_parts(source, inserts, insert)
        source.rows(f"update {SCHEMA}.wide set c1 = c1 + 1 where id < {updates}")
        return marked(source, f"update {SCHEMA}.wide set c1 = 0 where id = 1")

    return Shape(
        "wide",
        {"wide": ", ".join(columns)},
        inserts + updates,
        write,
        (
            f"select count(*), sum(id), sum(c1), sum(c2), min(c3), max(c10), sum(c4),"
            f" max(c6), sum(c58), max(c62) from {SCHEMA}.wide",
        ),
    )


def texts(options: Options) -> Shape:
    """Texts of 1 KB; inserts, then updates that leave the text as it is."""
    inserts, updates = options.scaled(200_000), options.scaled(50_000)
    text = " || ".join(f"md5((n + {i})::text)" for i in range(32))
    insert = (
        f"insert into {SCHEMA}.texts select n, 0, {text}"
        f" from generate_series(i * 1000::bigint + 1, least(i * 1000 + 1000, {inserts})) n"
    )

    def write(source: Client) -> Lsn:
        _in_parts(source, inserts, insert)
        source.rows(f"update {SCHEMA}.texts set seen = id where id < {updates}")
        return marked(source, f"update {SCHEMA}.texts set seen = 1 where id = 1")

    return Shape(
        "texts",
        {"texts": "id bigint primary key, seen bigint not null, body text not null"},
        inserts + updates,
        write,
        (
            f"select count(*), sum(id), sum(seen), min(body), max(body),"
            f" sum(length(body)) from {SCHEMA}.texts",
        ),
    )


def many(options: Options) -> Shape:
    """Single-row transactions over 50 tables in turn."""
    count = options.scaled(200_000)
    names = [f"many{i}" for i in range(50)]
    insert = (
        f"execute 'insert into {SCHEMA}.many' || (i % 50) || ' select n, (n * 37) %"
        " 1000003, (n % 900000007) / 100.0, now(), md5(n::text), true"
        " from generate_series($1, $1) n' using i"
    )

    def write(source: Client) -> Lsn:
        source.rows("set synchronous_commit = off")
        source.rows(
            f"do $$ begin for i in 1 .. {count - 1} loop {insert}; commit; end loop; end $$"
        )
        source.rows("set synchronous_commit = on")
        return marked(source, workload.insert_rows("many0", 0, 0))

    return Shape(
        "many",
        dict.fromkeys(names, workload.COLUMNS),
        count,
        write,
        tuple(workload.fingerprint(name) for name in names),
    )


SHAPES: Final[Mapping[str, Callable[[Options], Shape]]] = MappingProxyType(
    {"backlog": backlog, "wide": wide, "texts": texts, "many": many}
)


def _in_parts(source: Client, inserts: int, insert: str) -> None:
    """1,000 rows a transaction."""
    source.rows("set synchronous_commit = off")
    last = (inserts - 1) // 1000
    source.rows(
        f"do $$ begin for i in 0 .. {last} loop {insert}; commit; end loop; end $$"
    )
    source.rows("set synchronous_commit = on")
