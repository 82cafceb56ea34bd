"""A query's rows, from Spark or from the files of the table that the query names.

Takes a translated query whose privileges have been checked; returns fields and batches in the
requested formats. Called by ``lakebackend``.

A COPY of a table's columns is read from the table's files if that is possible
(``lake.plain.read``), also with the condition of a row filter (``filtered``). Simple queries of
small tables are read from files, too (``plainanswers``). Spark executes all other queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from wal2lake.engine.rows.filtered import FilteredRead
from wal2lake.engine.rows.plainanswers import plain_answer
from wal2lake.lake import FieldSpec
from wal2lake.lake.plain import PlainRead
from wal2lake.local.ports import HasQueries
from wal2lake.pg import Check
from wal2lake.sql.backend import Outcome, ResultBatch
from wal2lake.sql.grammar.copying import CopyFormat
from wal2lake.sql.query.results import Rendering, columns_in, fields_of
from wal2lake.sql.query.translate import SparkQuery
from wal2lake.wire.frontback import Format


@dataclass(frozen=True, slots=True)
class ValueFormats:
    """The requested formats of a query's values."""

    formats: Sequence[Format] = ()
    """Format of each column, text by default."""
    copied: CopyFormat | None = None
    """The format of a COPY, which is the same for all columns."""

    def of(self, columns: int) -> Sequence[Format]:
        """Return the format of each column."""
        if self.copied is None:
            return self.formats
        binary = self.copied is CopyFormat.BINARY
        return (Format.BINARY if binary else Format.TEXT,) * columns


class Answer:
    """A query's rows, with the resources behind them.

    The resources are released after the last row, after an error, and by ``close``."""

    def __init__(self, rows: Iterator[ResultBatch], held: ExitStack) -> None:
        """``held``: the resources behind the rows."""
        self._rows = rows
        self._held = held

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> ResultBatch:
        try:
            return next(self._rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the resources, even if rows are left."""
        self._held.close()


def answered(
    node: HasQueries,
    source: SparkQuery | FilteredRead,
    value_formats: ValueFormats,
    rendering: Rendering,
    job_group: str,
    held: ExitStack,
    check: Check,
) -> Outcome:
    """Run the query. ``held``: released with the answer; ``check`` raises to end the query."""
    specs: Sequence[FieldSpec]
    batches: Iterable[pa.RecordBatch]
    if isinstance(source, FilteredRead):
        query, specs = source.query, source.fields
        batches = _checked(held.enter_context(source.batches()), check)
    else:
        query = source
        specs, batches = _rows(node, query, value_formats, job_group, held, check)
    fields = fields_of(specs, query)
    formats, arrow = (
        value_formats.of(len(fields)),
        value_formats.copied is CopyFormat.TEXT,
    )
    rows = (
        columns_in(batch, fields, formats, rendering, arrow=arrow)
        for batch in batches
        if batch.num_rows
    )
    return Outcome("SELECT", fields, Answer(rows, held.pop_all()))


def _rows(
    node: HasQueries,
    query: SparkQuery,
    value_formats: ValueFormats,
    job_group: str,
    held: ExitStack,
    check: Check,
) -> tuple[Sequence[FieldSpec], Iterable[pa.RecordBatch]]:
    plain = query.plain
    if value_formats.copied is not None and plain is not None and plain.is_whole:
        ref, names = query.tables[0], plain.columns
        plain_read = PlainRead.of(node.tables, ref.table.location, ref.version, names)
        if plain_read is not None:
            batches = held.enter_context(plain_read.batches())
            return plain_read.fields, _checked(batches, check)
    elif plain is not None:
        rows = plain_answer(node.tables, query, plain, check)
        if rows is not None:
            return rows
    result = node.queries.run(query.sql, job_group=job_group)
    return result.fields, held.enter_context(result.batches)


def _checked(
    batches: Iterable[pa.RecordBatch], check: Check
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        check()
        yield batch
