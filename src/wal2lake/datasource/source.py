"""The Spark side: the options, schema and readers of the format ``wal2lake``.

Comes in: options of a query. Goes out: for Spark, offsets, partitions and Arrow batches. The rooms
beside this module do the work; this one imports PySpark.

Source: pyspark.sql.datasource (Spark 4.1). Spark tells a restarted query's position by
calling ``partitions`` with an empty range before anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from wal2lake.changelog import LogReader
from wal2lake.datasource.node import NodeQuestions, StreamLog
from wal2lake.datasource.positions import (
    EARLIEST,
    LATEST,
    LogPosition,
    LogSlice,
    advanced,
    ending_position,
    held_position,
    slices,
    starting_position,
)
from wal2lake.datasource.rows import ChangeFormat, ChangeReader
from wal2lake.errors import UsageError

OPTIONS: Final = (
    "conninfo",
    "subscription",
    "publication",
    "slot",
    "table",
    "startingLsn",
    "endingLsn",
    "maxRowsPerTrigger",
    "badValues",
)
"""All options. Spark compares their names without regard to case."""


class Wal2LakeDataSource(DataSource):  # type: ignore[misc]
    """Changes from a node's durable log: ``spark.dataSource.register(Wal2LakeDataSource)``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "wal2lake"

    def schema(self) -> str:
        """Return the schema; asks the node for the columns of a single table."""
        return StreamOptions.read(self.options).resolve()[1].schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        options = StreamOptions.read(self.options)
        if options.ending != LATEST:
            raise UsageError(
                'option "endingLsn" is for batch reads only', sqlstate="22023"
            )
        return ChangeStreamReader(options, *options.resolve())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = StreamOptions.read(self.options)
        return ChangeBatchReader(options, *options.resolve())


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one query."""

    conninfo: str
    subscription: str | None
    publication: str | None
    slot: str | None
    """Slot of the publisher half that holds the log and is advanced; None for none."""
    table: tuple[str, str] | None
    starting: str | None
    """None for the slot's position, or else the beginning of the log."""
    ending: str
    rows: int | None
    """Row changes of a micro-batch; None for no bound."""
    null_if_bad: bool

    @classmethod
    def read(cls, spark_options: Mapping[str, str]) -> StreamOptions:
        """Check the options. UsageError (22023, 42601) names the option."""
        options = {str(name).lower(): value for name, value in spark_options.items()}
        unknown = set(options) - {name.lower() for name in OPTIONS} - {"path"}
        if unknown:
            raise UsageError(
                f'unrecognized option "{min(unknown)}"',
                sqlstate="42601",
                hint=f"Options are: {', '.join(OPTIONS)}.",
            )
        subscription = options.get("subscription")
        publication = options.get("publication")
        if (subscription is None) == (publication is None):
            raise UsageError(
                'one of the options "subscription" and "publication" is needed',
                sqlstate="42601",
            )
        if subscription is not None and "slot" in options:
            raise UsageError(
                'option "slot" needs the option "publication"', sqlstate="42601"
            )
        if not options.get("conninfo"):
            raise UsageError(
                'option "conninfo" is needed',
                sqlstate="42601",
                hint="It is the node's connection string:"
                ' "host=localhost port=5480 dbname=lake user=...".',
            )
        return cls(
            options["conninfo"],
            subscription,
            publication,
            options.get("slot"),
            _table(options.get("table")),
            options.get("startinglsn"),
            options.get("endinglsn", LATEST),
            _positive("maxRowsPerTrigger", options.get("maxrowspertrigger")),
            _null_if_bad(options.get("badvalues", "error")),
        )

    def start(self, reader: LogReader) -> LogPosition:
        """Return the position at which a new query begins."""
        if self.starting is not None or self.slot is None:
            return starting_position(reader, self.starting or EARLIEST)
        confirmed = NodeQuestions(self.conninfo).slot_position(self.slot)
        return held_position(reader, confirmed)

    def resolve(self) -> tuple[StreamLog, ChangeFormat]:
        """Ask the node for the log, and for the columns of the table."""
        node = NodeQuestions(self.conninfo)
        if self.subscription is not None:
            log = node.subscription_log(self.subscription)
        else:
            log = node.publication_log(str(self.publication))
        chosen = ChangeFormat(
            null_if_bad=self.null_if_bad,
            publication=log.publication,
            catalog=None if log.catalog is None else str(log.catalog),
            types=log.types,
        )
        if self.table is None:
            return log, chosen
        return log, replace(chosen, table=self.table, fields=node.fields(*self.table))


def _table(name: str | None) -> tuple[str, str] | None:
    if name is None:
        return None
    schema, dot, table = name.rpartition(".")
    return (schema if dot else "public", table)


def _positive(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise UsageError(
            f'invalid value for option "{name}": "{value}"',
            sqlstate="22023",
            hint="Give a number of row changes above 0.",
        )
    return int(value)


def _null_if_bad(value: str) -> bool:
    if value.lower() not in ("error", "null"):
        raise UsageError(
            f'invalid value for option "badValues": "{value}"',
            sqlstate="22023",
            hint='Valid values are "error" and "null".',
        )
    return value.lower() == "null"


class ChangePartition(InputPartition):  # type: ignore[misc]
    """A part of the log for one task."""

    def __init__(self, part: LogSlice) -> None:
        """Keep the part; it is pickled."""
        super().__init__(part.number)
        self.part = part


class ChangeStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Plans micro-batches: whole transactions between two positions."""

    def __init__(
        self, options: StreamOptions, log: StreamLog, chosen: ChangeFormat
    ) -> None:
        """Read nothing yet."""
        self._options = options
        self._directory = log.directory
        self._format = chosen
        self._position: LogPosition | None = None
        """End of the last planned micro-batch."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the position of the option ``startingLsn``."""
        position = self._options.start(self._reader)
        self._position = position
        return position.to_json()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch."""
        if self._position is None:
            self.initialOffset()
        start = self._position or LogPosition()
        self._position = advanced(self._reader, start, self._options.rows)
        return self._position.to_json()

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the parts of the log between two offsets, one for each segment."""
        first, last = LogPosition.from_json(start), LogPosition.from_json(end)
        if self._position is None or self._position.lsn < last.lsn:
            self._position = last
        return [ChangePartition(part) for part in slices(self._reader, first, last)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a part, in a task. Spark reads None if there are no parts."""
        if isinstance(partition, ChangePartition):
            yield from ChangeReader(self._format).read(partition.part)

    def commit(self, end: dict[str, Any]) -> None:
        """Advance the slot: Spark has recorded that everything below an offset is done."""
        if self._options.slot is not None:
            position = LogPosition.from_json(end)
            node = NodeQuestions(self._options.conninfo)
            node.advance_slot(self._options.slot, position.lsn)

    @property
    def _reader(self) -> LogReader:
        return LogReader(Path(self._directory))


class ChangeBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads the changes between two positions once."""

    def __init__(
        self, options: StreamOptions, log: StreamLog, chosen: ChangeFormat
    ) -> None:
        """Read nothing yet."""
        self._options = options
        self._directory = log.directory
        self._format = chosen

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the log, one for each segment."""
        reader = LogReader(self._directory)
        start = self._options.start(reader)
        end = ending_position(reader, self._options.ending)
        return [ChangePartition(part) for part in slices(reader, start, end)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a part, in a task. Spark reads None if there are no parts."""
        if isinstance(partition, ChangePartition):
            yield from ChangeReader(self._format).read(partition.part)
