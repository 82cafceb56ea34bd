"""Ranges of tables' copies, as they are read in one Spark task over one connection.

Comes in: ``CopyTask`` values (picklable; nothing of the driver's process). Goes out: for each a
``CopyResult`` with the finished Parquet files, already in the table's directory and
fsynced, but not part of the table until somebody commits them; or its error, which is
nobody else's: the next one has a connection of its own then.

COPY's CSV is parsed by Arrow in blocks of whole rows, its binary format by ``wire/columnar``;
both are converted by the same kernels that convert
changes, and written a row group at a time, so memory does not grow with the range.

Source: PostgreSQL manual, COPY (CSV format); 54.2.6 (a CopyData message of the server is one
row); 9.28.5 (snapshot synchronisation).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from wal2lake.errors import ApplyError, PublisherError, StorageError, UsageError
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.port import FieldSpec, PhysicalField
from wal2lake.lake.staging.convert import (
    NO_RULES,
    BadValue,
    ConversionRules,
    SentColumn,
    mapping_of,
)
from wal2lake.lake.staging.defaults import Fills, behind
from wal2lake.lake.staging.wholerows import convert_columns
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.model import INVALID_LSN, INVALID_OID, Coercion, Lsn, Oid, merged
from wal2lake.pg import Publisher, Session, connect
from wal2lake.pg.quoting import quote_literal
from wal2lake.pgtypes import CHECKED_HERE, RemoteTypes, remedy
from wal2lake.pgtypes.choices.coerce import NO_POLICY, example_of
from wal2lake.pgtypes.choices.policies import ValuePolicy
from wal2lake.pgtypes.mapping import ConversionKind
from wal2lake.tablesync.unaltered import (
    PlannedTable,
    check_files,
    lock_unaltered,
)
from wal2lake.wire.columnar.copybinary import BinaryCopy

LOCK_TIMEOUT_MS: Final = 10_000
"""Longest wait for a lock of the table if copies never give way. A DROP or ALTER that waits for
the snapshot keeper's lock is before the reader in the queue, and the keeper waits for the
reader: no server could see that."""

_BLOCK_BYTES: Final = 8 << 20
"""CSV parsed at a time: large enough that Arrow's per-block cost does not show."""


_NO_MATTER_OF_TYPE: Final = NO_POLICY | {"23502", "54000", "22021"}
"""Errors that a text column has, too: besides those of no policy NULL where it may not be, a value
that is too long, and text that is not valid."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """All that a reader of one range needs."""

    conninfo: str
    application_name: str
    snapshot: str
    statement: str
    columns: tuple[str, ...]
    """Names in the order of the statement."""
    location: str
    """The table's directory."""
    fields: tuple[FieldSpec, ...]
    """The target's columns; one that is not copied has its default."""
    physical_fields: tuple[PhysicalField, ...]
    row_group_bytes: int
    """Arrow bytes gathered before a Parquet row group is written."""
    table: str
    """The target's bare name, for messages."""
    key: tuple[str, ...]
    """The primary key, whose columns must not be null."""
    binary_types: tuple[Oid, ...] | None = None
    """The columns' types if the statement asks for binary format; None: it is CSV."""
    types: RemoteTypes = field(default_factory=dict)
    """The publisher's types that are not built in."""
    namespace: str = ""
    """The table's schema at the publisher."""
    column_types: tuple[tuple[Oid, int], ...] = ()
    """Type and typmod of each column at the publisher; empty: not known."""
    lsn: Lsn = INVALID_LSN
    """The snapshot's consistent point."""
    rules: ConversionRules = NO_RULES
    must_use_password: bool = False
    """The publisher must ask for the password of ``conninfo``."""
    fills: Fills = field(default_factory=dict)
    """Defaults of columns that are not copied."""
    counting: str = ""
    """A query for how many rows the statement gives."""
    source: PlannedTable | None = None
    """The table, to be compared with what the snapshot has; None: it is not compared."""
    mark: str = ""
    """Mark by which the snapshot keeper knows the sessions of readers."""
    max_lock_wait_ms: int = 0
    """subscription.max_lock_wait_ms."""
    shows_rows: bool = False
    """Errors may tell the values of a row."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Values that do not fit columns which may become text (``value_policies``, widen)."""

    error: ApplyError
    """Error to raise if null is refused after all."""
    widened: tuple[Coercion, ...]
    """The first such value of each column."""


class _MisfitError(Exception):
    """Ends the range in which it is."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__()
        self.misfit = misfit


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Result of one range."""

    rows: int
    files: tuple[AddedFile, ...]
    coercions: tuple[Coercion, ...] = ()


Copied = CopyResult | Misfit | PublisherError | ApplyError | StorageError
"""Outcome of a range."""


def copy_ranges(tasks: tuple[CopyTask, ...]) -> list[Copied]:
    """Read, convert and write each range; all are of one snapshot of one publisher.

    What failed has left no file. A publisher that cannot be reached is not asked again.
    """
    results: list[Copied] = []
    session: Session | None = None
    try:
        for task in tasks:
            if session is None:
                try:
                    session = _open(task)
                except PublisherError as error:
                    results += [error] * (len(tasks) - len(results))
                    break
            try:
                results.append(_copy_range(task, session))
            except (PublisherError, ApplyError, StorageError) as error:
                results.append(error)
                session.close()
                session = None
            except _MisfitError as found:
                results.append(found.misfit)
                session.close()
                session = None
    finally:
        if session is not None:
            session.close()
    return results


def count_ranges(tasks: tuple[CopyTask, ...]) -> list[int | PublisherError]:
    """How many rows each will have, in the same snapshot."""
    results: list[int | PublisherError] = []
    try:
        with _open(tasks[0]) as session:
            for task in tasks:
                with _snapshot(session, task):
                    results.append(int(session.value(task.counting) or 0))
    except PublisherError as error:
        results += [error] * (len(tasks) - len(results))
    return results


def _open(task: CopyTask) -> Session:
    """A session that gives way to others."""
    try:
        session = connect(
            task.conninfo,
            application_name=task.application_name,
            must_use_password=task.must_use_password,
        )
    except UsageError as error:
        # What the commands have accepted, the publisher no longer does.
        raise PublisherError(
            error.message,
            sqlstate=error.sqlstate,
            detail=error.detail,
            hint=error.hint,
        ) from None
    try:
        wait_ms = task.max_lock_wait_ms or LOCK_TIMEOUT_MS
        session.execute(f"SET lock_timeout = {wait_ms}")
    except BaseException:
        session.close()
        raise
    return session


@contextmanager
def _snapshot(session: Session, task: CopyTask) -> Iterator[None]:
    """A transaction that sees the snapshot, with the task's table and no other locked. Left by
    an error it stays open: the session is closed then."""
    session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    session.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(task.snapshot)}")
    if task.max_lock_wait_ms:
        Publisher(session).mark_transaction(task.mark)
    source = task.source
    if source is not None:
        lock_unaltered(session, source)
    yield
    if source is not None and source.partitioned:
        check_files(session, source)
    session.execute("COMMIT")


def _copy_range(task: CopyTask, session: Session) -> CopyResult:
    with TableWriter(task.location, task.physical_fields) as writer:
        held: list[pa.Table] = []
        held_bytes = 0
        coercions: list[Coercion] = []
        fills = task.fills
        with _snapshot(session, task):
            for columns in _columns(task, session):
                converted = _convert(task, columns, fills, coercions)
                fills = behind(fills, converted.num_rows)
                held.append(converted)
                held_bytes += converted.nbytes
                if held_bytes >= task.row_group_bytes:
                    writer.write(pa.concat_tables(held))
                    held, held_bytes = [], 0
        if held:
            writer.write(pa.concat_tables(held))
        rows = writer.rows
        files = writer.finish()
    return CopyResult(rows, files, merged(coercions))


def _columns(task: CopyTask, session: Session) -> Iterator[dict[str, SentColumn]]:
    """Blocks of rows, by column."""
    sent_types = task.column_types or ((INVALID_OID, -1),) * len(task.columns)
    # Whole rows: the server sends each in a message of its own, so that a block can
    # be as large as its last row makes it.
    if task.binary_types is None:
        blocks = session.copy_out(task.statement, block_bytes=_BLOCK_BYTES)
        for batch in _batches(task, blocks):
            yield {
                name: SentColumn(values, None, oid, typmod, task.types)
                for name, (oid, typmod), values in zip(
                    task.columns, sent_types, batch.columns, strict=True
                )
            }
        return
    messages = session.copy_out_messages(task.statement, block_bytes=_BLOCK_BYTES)
    copy = BinaryCopy(len(task.columns))
    for data, sizes in messages:
        arrays = copy.feed(data, sizes)
        every = np.ones(len(arrays[0]), np.bool_)
        yield {
            name: SentColumn(values, every, oid, typmod, task.types)
            for name, oid, (_, typmod), values in zip(
                task.columns, task.binary_types, sent_types, arrays, strict=True
            )
        }
    copy.finish()


def _batches(task: CopyTask, blocks: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
    names = [f"c{i}" for i in range(len(task.columns))]
    parse = pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.binary()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    for block in blocks:
        read = pacsv.ReadOptions(
            column_names=names, block_size=len(block) + 1, use_threads=False
        )
        table = pacsv.read_csv(pa.BufferReader(block), read, parse, convert)
        yield from table.to_batches()


def _convert(
    task: CopyTask,
    columns: dict[str, SentColumn],
    fills: Fills,
    coercions: list[Coercion],
) -> pa.Table:
    """A block, typed; appends what policies have changed to ``coercions``."""
    table, bad, changes = convert_columns(
        columns,
        task.fields,
        namespace=task.namespace,
        relation=task.table,
        required=task.key,
        rules=task.rules,
        fills=fills,
    )
    if bad:
        lasting = [one for one in bad if not _may_widen(task, columns, one)]
        first = (lasting or bad)[0]
        if not first.column:
            # It is the row that is wrong.
            raise ApplyError(
                first.message,
                sqlstate=first.sqlstate,
                detail=first.detail if task.shows_rows else None,
                context=f"COPY {task.table}, snapshot at {task.lsn}",
                hint=first.hint or CHECKED_HERE,
            )
        error = ApplyError(
            first.message,
            sqlstate=first.sqlstate,
            context=f"COPY {task.table}, column {first.column}, snapshot at {task.lsn}",
            hint=remedy(
                first.sqlstate,
                (task.namespace, task.table, first.column),
                nullable=first.column not in task.rules.required,
                in_key=first.column in task.key,
            ),
        )
        if lasting:
            raise error
        raise _MisfitError(Misfit(error, _widened(task, columns, bad)))
    for column, found in changes.items():
        coercions += [
            Coercion(
                column,
                change.policy.value,
                change.reason,
                len(change.rows),
                task.lsn,
                task.lsn,
                change.example,
            )
            for change in found
        ]
    return table


def _may_widen(task: CopyTask, columns: dict[str, SentColumn], one: BadValue) -> bool:
    """Whether the column could hold the value if it were text."""
    sent = columns.get(one.column)
    if sent is None or one.sqlstate in _NO_MATTER_OF_TYPE:
        return False
    field = next(f for f in task.fields if f.name == one.column)
    if mapping_of(field).kind is ConversionKind.TEXT:
        return False
    return task.rules.widens(task.namespace, task.table, field, sent)


def _widened(
    task: CopyTask, columns: dict[str, SentColumn], bad: Sequence[BadValue]
) -> tuple[Coercion, ...]:
    """For the first bad value of each column."""
    found: dict[str, Coercion] = {}
    for one in bad:
        if one.column not in found:
            text = columns[one.column].text_of(one.row)
            found[one.column] = Coercion(
                one.column,
                ValuePolicy.WIDEN.value,
                one.message,
                1,
                task.lsn,
                task.lsn,
                example_of(text),
            )
    return tuple(found.values())
