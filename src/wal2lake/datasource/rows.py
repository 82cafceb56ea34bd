"""The changes of one part of the log, as Arrow batches of the source's schema.

Comes in: a ``LogSlice``, and for a publication the node's catalog. Goes out: record batches, one
row for each row change, in log order for each table. Runs in Spark's Python workers, and needs
nothing of the node but its files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.catalog import Catalog
from wal2lake.datasource.positions import LogSlice
from wal2lake.datasource.values import RowSide, as_json, as_struct
from wal2lake.lake import FieldSpec
from wal2lake.lake.staging import LogSource, LsnRange, read_log_rows
from wal2lake.model import Lsn, Relation
from wal2lake.pgtypes import RemoteTypes, remote_types_from_json
from wal2lake.publish.sending import ClientPublications, Sending, published_rows

_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""

_OPERATIONS: Final = {"I": "insert", "U": "update", "D": "delete", "T": "truncate"}

FACTS: Final = (
    "op string, schema_name string, table_name string, {values},"
    " unchanged array<string>, lsn string, commit_lsn bigint, end_lsn bigint,"
    " ordinal bigint, xid bigint, commit_time timestamp, origin string"
)
"""Spark's schema of the rows, with a place for the values."""


@dataclass(frozen=True, slots=True)
class ChangeFormat:
    """Choice of a stream: the rows, and the form of their values."""

    table: tuple[str, str] | None = None
    """The only table to read; None for all tables, whose values are JSON."""
    fields: tuple[FieldSpec, ...] = ()
    """Columns of that table."""
    null_if_bad: bool = False
    publication: str | None = None
    """Name of the publication; None for a subscription's log."""
    catalog: str | None = None
    """Path of the node's catalog, which has the definitions of the publication."""
    types: str | None = None
    """JSON of the publisher's types that are not built in."""

    def schema(self) -> str:
        """Return the schema as Spark's DDL."""
        if self.table is None:
            return FACTS.format(values="new string, old string")
        columns = ",".join(f"{_quoted(f.name)}:{f.spark_ddl}" for f in self.fields)
        values = f"new struct<{columns}>, old struct<{columns}>"
        return FACTS.format(values=values)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class ChangeReader:
    """Reads slices of one log."""

    def __init__(self, chosen: ChangeFormat) -> None:
        """Read the types; open nothing."""
        self._format = chosen
        self._types: RemoteTypes = (
            remote_types_from_json(chosen.types) if chosen.types else {}
        )

    def read(self, part: LogSlice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice."""
        facts = _Transactions.read(part.transactions)
        if self._format.publication is None:
            yield from self._changes(part, facts, None)
            return
        catalog = Catalog(Path(str(self._format.catalog)))
        try:
            publications = ClientPublications(catalog, lambda warning, lsn: None)
            yield from self._changes(part, facts, publications)
        finally:
            catalog.close()

    def _changes(
        self,
        part: LogSlice,
        facts: _Transactions,
        publications: ClientPublications | None,
    ) -> Iterator[pa.RecordBatch]:
        span = LsnRange(int(part.begin), None if part.end is None else int(part.end))
        for source in part.files:
            for batch in read_log_rows(source, span):
                batch = _without(batch, part.left_out)
                for relation, columns, rows in self._pieces(
                    publications, source, batch
                ):
                    if rows.num_rows and self._wants(relation):
                        yield self._batch(relation, columns, rows, facts)

    def _wants(self, relation: Relation) -> bool:
        table = self._format.table
        return table is None or table == (relation.namespace, relation.name)

    def _pieces(
        self,
        publications: ClientPublications | None,
        source: LogSource,
        batch: pa.RecordBatch,
    ) -> Iterator[tuple[Relation, Sequence[int], pa.RecordBatch]]:
        """Yield the rows with the relation as which they are sent, and its columns. A batch is
        divided where the publication's definitions change."""
        if publications is None:
            yield source.relation, range(len(source.relation.columns)), batch
            return
        name = str(self._format.publication)
        commits = batch.column("commit_lsn").to_numpy()
        begin = 0
        while begin < len(commits):
            sending = self._sending(publications, name, source, commits[begin])
            end = begin + 1
            while (
                end < len(commits)
                and self._sending(publications, name, source, commits[end]) is sending
            ):
                end = _next_commit(commits, end)
            if sending is not None:
                sending.check()
                rows = batch.slice(begin, end - begin)
                relation = source.relation
                columns = [
                    i for i, c in enumerate(relation.columns) if sending.has(c.name)
                ]
                rows = published_rows(sending, relation, rows)
                yield sending.shown(relation), columns, rows
            begin = end

    def _sending(
        self,
        publications: ClientPublications,
        name: str,
        source: LogSource,
        commit: int,
    ) -> Sending | None:
        sendings = publications.sending([name], Lsn(int(commit)))
        return sendings.get(source.relation.relid)

    def _batch(
        self,
        relation: Relation,
        wanted: Sequence[int],
        rows: pa.RecordBatch,
        facts: _Transactions,
    ) -> pa.RecordBatch:
        new = RowSide(rows, relation, self._types, is_old=False)
        old = RowSide(rows, relation, self._types, is_old=True)
        count = rows.num_rows
        if self._format.table is None:
            before: pa.Array = pa.array(as_json(old, wanted), pa.string())
            after: pa.Array = pa.array(as_json(new, wanted), pa.string())
        else:
            fields, null = self._format.fields, self._format.null_if_bad
            before = as_struct(old, fields, null_if_bad=null)
            after = as_struct(new, fields, null_if_bad=null)
        ops = [chr(op) for op in rows.column("op").to_pylist()]
        commits = rows.column("commit_lsn").to_numpy()
        content = {
            "op": pa.array([_OPERATIONS[op] for op in ops], pa.string()),
            "schema_name": pa.repeat(relation.namespace, count),
            "table_name": pa.repeat(relation.name, count),
            "new": after,
            "old": before,
            "unchanged": _unchanged(new, wanted),
            **facts.of(commits),
            "ordinal": rows.column("ordinal"),
        }
        order = [part.split()[0] for part in _names(self._format)]
        return pa.record_batch([content[name] for name in order], names=order)


def _names(chosen: ChangeFormat) -> list[str]:
    before, after = FACTS.split("{values}")
    names = f"{before}new string, old string{after}"
    return [part.strip() for part in names.split(",")]


def _next_commit(commits: Any, place: int) -> int:
    """Return the place of the first row of the next transaction."""
    return int(np.searchsorted(commits, commits[place], side="right"))


def _without(batch: pa.RecordBatch, left_out: frozenset[int]) -> pa.RecordBatch:
    if not left_out:
        return batch
    gone = np.isin(batch.column("commit_lsn").to_numpy(), np.array(list(left_out)))
    return batch.filter(pa.array(~gone))


def _unchanged(side: RowSide, wanted: Sequence[int]) -> pa.Array:
    """Return the names of the columns whose values were not sent, by row."""
    names: list[list[str]] = [[] for _ in range(side.batch.num_rows)]
    for position in wanted:
        for row in np.flatnonzero(side.missing(position)).tolist():
            names[row].append(side.relation.columns[position].name)
    return pa.array(names, pa.list_(pa.string()))


@dataclass(frozen=True, slots=True)
class _Transactions:
    """The facts of a segment's transactions, by commit LSN."""

    table: Any
    commits: Any

    @classmethod
    def read(cls, path: str) -> _Transactions:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read().combine_chunks()
        return cls(table, table.column("commit_lsn").to_numpy())

    def of(self, commits: Any) -> Mapping[str, pa.Array]:
        """Return the facts of each row's transaction."""
        places = pa.array(np.searchsorted(self.commits, commits))
        rows = self.table.take(places).combine_chunks()
        times = rows.column("commit_time").to_numpy() + _EPOCH_US
        return {
            "lsn": pa.array([str(Lsn(int(lsn))) for lsn in commits], pa.string()),
            "commit_lsn": pa.array(commits, pa.int64()),
            "end_lsn": _one(rows.column("end_lsn")),
            "xid": _one(rows.column("xid")),
            "commit_time": pa.array(times, pa.timestamp("us", "UTC")),
            "origin": _one(rows.column("origin")).cast(pa.string()),
        }


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()
