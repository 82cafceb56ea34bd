"""Rows of one table for which a row filter is true, from the table's files.

Comes in: the query of a COPY, what its table's name means. Goes out: fields and record batches; or
nothing: it is another query, its condition is none that a publication could have, or only Spark can
read the table. Called by ``lakebackend``; ``answers`` sends the rows.

The same evaluator decides which changes of the table are sent (``pgtypes.expressions``), so a
subscriber's first copy has the rows that the stream would have brought it. Spark's terms are for
queries, and there are conditions that they do not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from wal2lake.commands.publication.filters import analyse
from wal2lake.errors import Wal2LakeError
from wal2lake.lake import FieldSpec, TablePort
from wal2lake.lake.ahead import Ahead
from wal2lake.lake.plain.read import PlainRead
from wal2lake.pgtypes.expressions import StoredFilter
from wal2lake.sql.grammar.copying.filtered import filtered_rows
from wal2lake.sql.query.translate import Resolver, SparkQuery, translate_query


@dataclass(frozen=True, slots=True)
class FilteredRead:
    """Some rows of one version."""

    query: SparkQuery
    """For all rows."""
    _read: PlainRead
    _filter: StoredFilter

    @classmethod
    def of(
        cls, tables: TablePort, sql: str, resolve: Resolver, zone: str
    ) -> FilteredRead | None:
        """``zone``: the session's TimeZone. What is wrong with the query is said by whoever
        answers it then."""
        asked = filtered_rows(sql)
        if asked is None:
            return None
        try:
            table = resolve(asked.table.schema, asked.table.name).table
            filter_ = StoredFilter(*analyse(asked.condition, table, zone))
            query = translate_query(asked.unfiltered, resolve, zone=zone)
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
        """Fields of the columns that go out."""
        return self._read.fields[: self._width]

    @property
    def _width(self) -> int:
        assert self.query.plain is not None
        return len(self.query.plain.columns)

    def batches(self) -> Ahead[pa.RecordBatch]:
        """To be closed."""
        return Ahead(self._kept(), "filtered read")

    def _kept(self) -> Iterator[pa.RecordBatch]:
        wanted = list(range(self._width))
        for batch in self._read.read():
            yield batch.select(wanted).filter(self._filter.matches(batch))
