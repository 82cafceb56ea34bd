"""Rows of one table that satisfy a row filter, from the table's files.

Takes a COPY's query and a resolver of its table name; returns fields and record batches. Returns
None for any other query, for a condition that no publication can have, and for a table that only
Spark can read. Called by ``lakebackend``; ``answers`` sends the rows.

The same evaluator decides which changes of the table are sent (``pgtypes.expressions``), so a
subscriber's first copy has the rows that the stream would have brought. Spark's expressions are for
queries and don't support all of these conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from wal2lake.commands.publication.filters import analyse
from wal2lake.errors import Wal2LakeError
from wal2lake.lake import FieldSpec, Prefetched, TablePort
from wal2lake.lake.plain import PlainRead
from wal2lake.pgtypes.expressions import StoredFilter
from wal2lake.sql.grammar.copying.filtered import filtered_rows
from wal2lake.sql.query.translate import Resolver, SparkQuery, translate_query


@dataclass(frozen=True, slots=True)
class FilteredRead:
    """The filtered rows of one version of a table."""

    query: SparkQuery
    """The query for all rows."""
    _read: PlainRead
    _filter: StoredFilter

    @classmethod
    def of(
        cls, tables: TablePort, sql: str, resolve: Resolver, zone: str
    ) -> FilteredRead | None:
        """Return the read, or None; ``zone`` is the session's TimeZone.

        After None, the way that executes the query reports its errors."""
        copied = filtered_rows(sql)
        if copied is None:
            return None
        try:
            table = resolve(copied.table.schema, copied.table.name).table
            filter_ = StoredFilter(*analyse(copied.condition, table, zone))
            query = translate_query(copied.unfiltered, resolve, zone=zone)
        except Wal2LakeError:
            return None
        if query.plain is None or not query.plain.is_whole:
            return None
        ref, names = query.tables[0], list(query.plain.columns)
        names += (name for name in filter_.columns if name not in names)
        read = PlainRead.of(tables, ref.table.location, ref.version, names)
        if read is None:
            return None
        return cls(query, read.within(filter_.bounds()), filter_)

    @property
    def fields(self) -> Sequence[FieldSpec]:
        """Return the fields of the selected columns."""
        return self._read.fields[: self._width]

    @property
    def _width(self) -> int:
        assert self.query.plain is not None
        return len(self.query.plain.columns)

    def batches(self) -> Prefetched[pa.RecordBatch]:
        """Return the batches, which the caller has to close."""
        return Prefetched(self._kept(), "filtered read")

    def _kept(self) -> Iterator[pa.RecordBatch]:
        columns = list(range(self._width))
        for batch in self._read.read():
            yield batch.select(columns).filter(self._filter.matches(batch))
