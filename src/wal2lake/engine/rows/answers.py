"""A query's rows on their way out: from Spark, or from the files of the table that it names.

Comes in: a translated query whose privileges have been looked at. Goes out: fields and batches in
the formats that were asked for. Called by ``lakebackend``.

A COPY of columns of one table asks nothing of Spark that the table's files do not say: where they
can be read plainly (``lake.plain.read``), they are, also with the condition of a row filter
(``filtered``), and so are small tables by simple queries (``plainanswers``). Other queries are
Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from wal2lake.engine.rows.filtered import FilteredRead
from wal2lake.engine.rows.plainanswers import plain_answer
from wal2lake.lake import FieldSpec
from wal2lake.lake.plain.read import PlainRead
from wal2lake.local.node import EngineParts
from wal2lake.pg import Check
from wal2lake.sql.backend import Outcome, ResultBatch
from wal2lake.sql.grammar.copying import CopyFormat
from wal2lake.sql.query.results import Rendering, columns_in, fields_of
from wal2lake.sql.query.translate import SparkQuery
from wal2lake.wire.frontback import Format


@dataclass(frozen=True, slots=True)
class ValueFormats:
    """How a query's values are to be given."""

    formats: Sequence[Format] = ()
    """Format of each column; columns that are not named are text."""
    copied: CopyFormat | None = None
    """For a COPY, which has one format for all columns."""

    def of(self, columns: int) -> Sequence[Format]:
        """The format of each."""
        if self.copied is None:
            return self.formats
        binary = self.copied is CopyFormat.BINARY
        return (Format.BINARY if binary else Format.TEXT,) * columns


class Answer:
    """A query's rows. What is behind them ends with the last one, with an error, and with
    ``close``, also if no row was ever taken."""

    def __init__(self, rows: Iterator[ResultBatch], held: ExitStack) -> None:
        """``held``: what is behind them."""
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
        """Stop what is unfinished."""
        self._held.close()


def answered(
    node: EngineParts,
    asked: SparkQuery | FilteredRead,
    wanted: ValueFormats,
    rendering: Rendering,
    job_group: str,
    held: ExitStack,
    check: Check,
) -> Outcome:
    """Run it. ``held``: what ends with the answer; ``check`` raises once it is to end."""
    specs: Sequence[FieldSpec]
    batches: Iterable[pa.RecordBatch]
    if isinstance(asked, FilteredRead):
        query, specs = asked.query, asked.fields
        batches = _checked(held.enter_context(asked.batches()), check)
    else:
        query = asked
        specs, batches = _rows(node, query, wanted, job_group, held, check)
    fields = fields_of(specs, query)
    formats, arrow = wanted.of(len(fields)), wanted.copied is CopyFormat.TEXT
    rows = (
        columns_in(batch, fields, formats, rendering, arrow=arrow)
        for batch in batches
        if batch.num_rows
    )
    return Outcome("SELECT", fields, Answer(rows, held.pop_all()))


def _rows(
    node: EngineParts,
    query: SparkQuery,
    wanted: ValueFormats,
    job_group: str,
    held: ExitStack,
    check: Check,
) -> tuple[Sequence[FieldSpec], Iterable[pa.RecordBatch]]:
    asked = query.plain
    if wanted.copied is not None and asked is not None and asked.is_whole:
        ref, names = query.tables[0], asked.columns
        plain = PlainRead.of(node.tables, ref.table.location, ref.version, names)
        if plain is not None:
            batches = held.enter_context(plain.batches())
            return plain.fields, _checked(batches, check)
    elif asked is not None:
        found = plain_answer(node.tables, query, asked, check)
        if found is not None:
            return found
    result = node.queries.run(query.sql, job_group=job_group)
    return result.fields, held.enter_context(result.batches)


def _checked(
    batches: Iterable[pa.RecordBatch], check: Check
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        check()
        yield batch
