"""Compares the rows that a commit has removed and added, in DuckDB, and pairs them.

Comes in: rows as PostgreSQL's text, columns v0, v1, ...; the positions of the key; the key changes
that the commit records. Goes out: tables with ``kind``, g0.. of removed rows and v0.. of added
rows, in an order in which a subscriber with a unique index can apply them:

    DELETE     a removed row
    UPDATE     on both sides with the same key and other values
    MOVE       an UPDATE that the commit records, with another key (``moves``)
    INSERT     an added row

and within each kind in the order in which they are stored. An equal row on both sides was only
rewritten, and is left out, unless the commit has updated all removed rows: PostgreSQL also
publishes an UPDATE that changes no value. Rows without a key are compared as a whole, and equal
ones are distinguished by a number.

Data beyond ``ComparisonMemory`` is on disk. So are large values (``apart``), which short marks
represent. Called by ``changedrows``.
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
from wal2lake.lake.store import storage_error

DELETE, UPDATE, MOVE, INSERT = range(4)

_BATCH_ROWS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ComparisonMemory:
    """Memory and disk that a comparison may use."""

    bytes: int
    directory: Path
    """Directory for data beyond that."""


@dataclass(frozen=True, slots=True)
class RecordedUpdates:
    """A commit's own record of its rows."""

    moved: Sequence[MovedKey] = ()
    """Rows whose key has changed."""
    updated: int = 0
    """Number of rows that it has updated."""


def compare(
    gone: Iterable[pa.Table],
    came: Iterable[pa.Table],
    schema: pa.Schema,
    key: Sequence[int],
    recorded: RecordedUpdates,
    memory: ComparisonMemory,
) -> Iterator[pa.Table]:
    """Compare the rows by the module's rules. ``schema`` is that of the rows. StorageError if
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
                yield from comparison.run(gone, came, recorded)
            except duckdb.Error:
                failure = comparison.failure
                if failure is None:
                    raise
                # DuckDB's error has only the failure's text. Keep the failure's own cause, which
                # identifies a missing file.
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
    """One comparison in a database of its own: tables gone and came, with a number ``n`` from 0
    among rows of equal keys, and their order ``m``."""

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
        """Exception that ended the reading of rows."""
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
        recorded: RecordedUpdates,
    ) -> Iterator[pa.Table]:
        for name, tables in (("gone", gone), ("came", came)):
            source = pa.RecordBatchReader.from_batches(self._schema, self._read(tables))
            self._database.register("source", source)
            numbered = "(select *, row_number() over () as m from source)"
            self._create(name, numbered, 0 if self._key else self._number_expression())
            self._database.unregister("source")
        if self._key:
            self._number_repeated()
        all_updated = self._database.table("gone").shape[0] == recorded.updated
        self._extract_moves(
            [move for move in recorded.moved if self._has_whole_keys(move)]
        )
        by = [f"v{i}" for i in self._by] + ["n"]
        on = " and ".join(f"g.{c} is not distinct from c.{c}" for c in by)
        same = " and ".join(f"g.v{i} is not distinct from c.v{i}" for i in self._all)
        is_change = "true" if all_updated else f"not ({same})"
        pairs = self._database.sql(
            f"select case when c.n is null then {DELETE} when g.n is null then {INSERT}"
            f" else {UPDATE} end as kind, coalesce(g.m, c.m) as place, {self._all_columns()}"
            f" from gone g full join came c on {on}"
            f" where g.n is null or c.n is null or {is_change}"
            " union all select * from moves order by kind, place"
        )
        for batch in pairs.to_arrow_reader(_BATCH_ROWS):
            yield from self._apart.back(batch)

    def _read(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        try:
            for table in tables:
                for batch in table.to_batches():
                    yield self._apart.put(batch)
        except Exception as error:
            self.failure = error
            raise

    def _all_columns(self) -> str:
        old = ", ".join(f"g.v{i} as g{i}" for i in self._all)
        return old + ", " + ", ".join(f"c.v{i} as v{i}" for i in self._all)

    def _create(self, name: str, source: str, number: int | str) -> None:
        self._database.execute(
            f"create or replace table {name} as"
            f" select {self._names}, m, {number} as n from {source}"
        )

    def _number_expression(self) -> str:
        order = f" order by {self._names}" if self._key else ""
        return f"row_number() over (partition by {self._keys}{order}) - 1"

    def _number_repeated(self) -> None:
        """Number the rows of equal keys, if there are any: foreign writers may write a key several
        times."""
        repeated = "select exists (select 1 from {} group by {} having count(*) > 1)"
        for name in ("gone", "came"):
            query = repeated.format(name, self._keys)
            if self._database.execute(query).fetchall() == [(True,)]:
                for side in ("gone", "came"):
                    self._create(side, side, self._number_expression())
                return

    def _has_whole_keys(self, move: MovedKey) -> bool:
        return len(move.old) == len(move.new) == len(self._by)

    def _extract_moves(self, moved: Sequence[MovedKey]) -> None:
        """Move the rows of recorded key changes from both sides to a table of their own."""
        self._register(((move, 0, 0) for move in moved), "recorded")
        pairs = chosen(
            moved,
            self._count_keys("gone", "o", moved),
            self._count_keys("came", "w", moved),
        )
        if self._key:
            # Take one row of each key: only foreign writers write a key several times.
            first = [move for move, old, new in pairs if old == new == 0]
            pairs = [(move, 0, 0) for move in arranged(first)]
        self._register(pairs, "pair")
        self._database.execute(
            f"create table moves as select {MOVE} as kind, p.place, {self._all_columns()}"
            f" from pair p join gone g on {self._join_condition('o', 'g')} and g.n = p.no"
            f" join came c on {self._join_condition('w', 'c')} and c.n = p.nw"
        )
        for name, side in (("gone", "o"), ("came", "w")) if pairs else ():
            self._database.execute(
                f"delete from {name} r using pair p"
                f" where {self._join_condition(side, 'r')} and r.n = p.n{side}"
            )
            if not self._key:
                self._create(name, name, self._number_expression())

    def _join_condition(self, side: str, rows: str) -> str:
        return " and ".join(
            f"p.{side}{place} is not distinct from {rows}.v{i}"
            for place, i in enumerate(self._by)
        )

    def _count_keys(
        self, name: str, side: str, moved: Sequence[MovedKey]
    ) -> dict[Key, int]:
        """Count the rows of the table ``name`` for each of the keys."""
        counts = self._database.execute(
            f"select p.place, count(*) from recorded p join {name} r"
            f" on {self._join_condition(side, 'r')} group by p.place"
        ).fetchall()
        return {moved[i].old if side == "o" else moved[i].new: n for i, n in counts}

    def _register(self, pairs: Iterable[tuple[MovedKey, int, int]], name: str) -> None:
        """Create a table of pairs: place, o0.. and w0.. of the keys, numbers no and nw."""
        listed = list(pairs)
        columns = {
            "place": pa.array(range(len(listed)), pa.int64()),
            "no": pa.array([old for _, old, _ in listed], pa.int64()),
            "nw": pa.array([new for _, _, new in listed], pa.int64()),
        }
        for i in range(len(self._by)):
            for side, which in (("o", 0), ("w", 1)):
                texts = pa.array([move[which][i] for move, _, _ in listed], pa.string())
                columns[f"{side}{i}"] = self._apart.marked(texts.cast(pa.binary()))
        self._database.register("source", pa.table(columns))
        self._database.execute(f"create table {name} as select * from source")
        self._database.unregister("source")
