"""Compares the rows that a commit has removed and added, in DuckDB, and pairs them.

Comes in: rows as PostgreSQL's text, columns v0, v1, ...; the positions of the key; what the commit
says of keys that have changed. Goes out: tables with ``kind``, g0.. of what went and v0.. of what
came, in the order in which a subscriber with a unique index takes them:

    DELETE     a row that went
    UPDATE     on both sides with the same key and other values
    MOVE       an UPDATE that the commit knows of: its key is another one (``moves``)
    INSERT     a row that came

and of each kind in that in which they are stored. A row on both sides that is equal was only
written again, and is left out, unless the commit has updated all that went: PostgreSQL tells of an
UPDATE that leaves a row as it was, too. Rows without a key are compared as a whole, equal ones told
apart by their number.

Beyond ``ComparisonMemory`` it is on disk; so are large values (``apart``), for which there are
marks. Called by ``rows``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from wal2lake.errors import StorageError, words_of
from wal2lake.lake.capture.apart import Apart, kept_apart
from wal2lake.lake.capture.moves import Key, MovedKey, arranged, chosen
from wal2lake.lake.delta.datafile import storage_error

DELETE, UPDATE, MOVE, INSERT = range(4)

_BATCH_ROWS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ComparisonMemory:
    """Memory and disk that a comparison may use."""

    bytes: int
    directory: Path
    """For what is more than that."""


@dataclass(frozen=True, slots=True)
class Said:
    """A commit's own words about its rows."""

    moved: Sequence[MovedKey] = ()
    """Rows whose key has changed."""
    updated: int = 0
    """How many it has updated."""


def compare(
    gone: Iterable[pa.Table],
    came: Iterable[pa.Table],
    schema: pa.Schema,
    key: Sequence[int],
    said: Said,
    memory: ComparisonMemory,
) -> Iterator[pa.Table]:
    """Compare the rows; the module has the rules. ``schema`` is that of the rows. StorageError if
    neither memory nor disk suffices."""
    config = {
        "memory_limit": f"{max(memory.bytes, 64 << 20)}B",
        "temp_directory": str(memory.directory),
        "threads": "1",
    }
    try:
        with (
            kept_apart(memory.directory) as apart,
            duckdb.connect(":memory:", config=config) as database,
        ):
            comparison = _Comparison(database, schema, key, apart)
            try:
                yield from comparison.run(gone, came, said)
            except duckdb.Error:
                failure = comparison.failure
                if failure is None:
                    raise
                # DuckDB has only its text. Its own cause stays: it tells a file that is gone.
                raise failure from failure.__cause__
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise StorageError(
            "could not compare rows",
            hint="The server log has the details.",
            original=words_of(error),
        ) from error
    except OSError as error:
        raise storage_error("keep large values in", memory.directory, error) from error


class _Comparison:
    """In a database of its own: tables gone and came, with a number ``n`` from 0 of equal keys,
    and their order ``m``."""

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        schema: pa.Schema,
        key: Sequence[int],
        apart: Apart,
    ) -> None:
        self._database = database
        self._apart = apart
        self.failure: Exception | None = None
        """Exception that has ended the reading of rows."""
        self._schema = schema
        self._all = range(len(schema))
        self._key = key
        self._by = key or self._all
        self._names = ", ".join(f"v{i}" for i in self._all)
        self._keys = ", ".join(f"v{i}" for i in self._by)

    def run(
        self,
        gone: Iterable[pa.Table],
        came: Iterable[pa.Table],
        said: Said,
    ) -> Iterator[pa.Table]:
        for name, tables in (("gone", gone), ("came", came)):
            source = pa.RecordBatchReader.from_batches(self._schema, self._read(tables))
            self._database.register("source", source)
            numbered = "(select *, row_number() over () as m from source)"
            self._create(name, numbered, 0 if self._key else self._number())
            self._database.unregister("source")
        if self._key:
            self._number_repeated()
        all_updated = self._database.table("gone").shape[0] == said.updated
        self._move([one for one in said.moved if self._fits(one)])
        by = [f"v{i}" for i in self._by] + ["n"]
        on = " and ".join(f"g.{c} is not distinct from c.{c}" for c in by)
        same = " and ".join(f"g.v{i} is not distinct from c.v{i}" for i in self._all)
        told = "true" if all_updated else f"not ({same})"
        found = self._database.sql(
            f"select case when c.n is null then {DELETE} when g.n is null then {INSERT}"
            f" else {UPDATE} end as kind, coalesce(g.m, c.m) as place, {self._both()}"
            f" from gone g full join came c on {on}"
            f" where g.n is null or c.n is null or {told}"
            " union all select * from moves order by kind, place"
        )
        for batch in found.to_arrow_reader(_BATCH_ROWS):
            yield from self._apart.back(batch)

    def _read(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        try:
            for table in tables:
                for batch in table.to_batches():
                    yield self._apart.put(batch)
        except Exception as error:
            self.failure = error
            raise

    def _both(self) -> str:
        old = ", ".join(f"g.v{i} as g{i}" for i in self._all)
        return old + ", " + ", ".join(f"c.v{i} as v{i}" for i in self._all)

    def _create(self, name: str, source: str, number: int | str) -> None:
        self._database.execute(
            f"create or replace table {name} as"
            f" select {self._names}, m, {number} as n from {source}"
        )

    def _number(self) -> str:
        order = f" order by {self._names}" if self._key else ""
        return f"row_number() over (partition by {self._keys}{order}) - 1"

    def _number_repeated(self) -> None:
        """Number rows of equal keys: writers from outside may write a key several times."""
        repeated = "select exists (select 1 from {} group by {} having count(*) > 1)"
        for name in ("gone", "came"):
            query = repeated.format(name, self._keys)
            if self._database.execute(query).fetchall() == [(True,)]:
                for one in ("gone", "came"):
                    self._create(one, one, self._number())
                return

    def _fits(self, one: MovedKey) -> bool:
        return len(one.old) == len(one.new) == len(self._by)

    def _move(self, moved: Sequence[MovedKey]) -> None:
        """Take what has moved out of both sides, into a table of its own."""
        self._register(((one, 0, 0) for one in moved), "said")
        pairs = chosen(
            moved, self._counted("gone", "o", moved), self._counted("came", "w", moved)
        )
        if self._key:
            # One row of each key is enough: several of it are a foreign writer's.
            first = [one for one, old, new in pairs if old == new == 0]
            pairs = [(one, 0, 0) for one in arranged(first)]
        self._register(pairs, "pair")
        self._database.execute(
            f"create table moves as select {MOVE} as kind, p.place, {self._both()}"
            f" from pair p join gone g on {self._on('o', 'g')} and g.n = p.no"
            f" join came c on {self._on('w', 'c')} and c.n = p.nw"
        )
        for name, side in (("gone", "o"), ("came", "w")) if pairs else ():
            self._database.execute(
                f"delete from {name} r using pair p"
                f" where {self._on(side, 'r')} and r.n = p.n{side}"
            )
            if not self._key:
                self._create(name, name, self._number())

    def _on(self, side: str, rows: str) -> str:
        return " and ".join(
            f"p.{side}{at} is not distinct from {rows}.v{i}"
            for at, i in enumerate(self._by)
        )

    def _counted(
        self, name: str, side: str, moved: Sequence[MovedKey]
    ) -> dict[Key, int]:
        """How many rows of it have each of the keys."""
        counts = self._database.execute(
            f"select p.place, count(*) from said p join {name} r on {self._on(side, 'r')}"
            " group by p.place"
        ).fetchall()
        return {moved[at].old if side == "o" else moved[at].new: n for at, n in counts}

    def _register(self, pairs: Iterable[tuple[MovedKey, int, int]], name: str) -> None:
        """Register a table of pairs: place, o0.. and w0.. of the keys, numbers no and nw."""
        listed = list(pairs)
        columns = {
            "place": pa.array(range(len(listed)), pa.int64()),
            "no": pa.array([old for _, old, _ in listed], pa.int64()),
            "nw": pa.array([new for _, _, new in listed], pa.int64()),
        }
        for at in range(len(self._by)):
            for side, which in (("o", 0), ("w", 1)):
                texts = pa.array([one[which][at] for one, _, _ in listed], pa.string())
                columns[f"{side}{at}"] = self._apart.marked(texts.cast(pa.binary()))
        self._database.register("source", pa.table(columns))
        self._database.execute(f"create table {name} as select * from source")
        self._database.unregister("source")
