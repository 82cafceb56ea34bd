"""Reads ranges of copied tables in one Spark task, over one connection.

In: ``CopyTask`` values (picklable, without objects of the driver's process). Out: for each task a
``CopyResult`` with the finished Parquet files, fsynced in the table's directory, but not part of
the table until the worker commits them; or the task's error. An error does not affect the other
tasks: the next one gets a new connection.

Arrow parses COPY's CSV in blocks of whole rows; ``wire/columnar`` parses the binary format. Both
are converted by the kernels that convert changes, and written one row group at a time, so memory
does not grow with the range.

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
from wal2lake.lake import AddedFile, FieldSpec, PhysicalField
from wal2lake.lake.delta import TableWriter
from wal2lake.lake.staging import (
    NO_RULES,
    BadValue,
    ConversionRules,
    Fills,
    SentColumn,
    behind,
    convert_columns,
    mapping_of,
)
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
"""Longest wait for the table's lock if copies never give way. Without a limit there would be a
deadlock that no server can detect: a DROP or ALTER that waits for the snapshot keeper's lock is
before the reader in the queue, and the keeper waits for the reader."""

_BLOCK_BYTES: Final = 8 << 20
"""CSV bytes parsed at a time: large enough to make Arrow's cost per block negligible."""


_NO_MATTER_OF_TYPE: Final = NO_POLICY | {"23502", "54000", "22021"}
"""SQLSTATEs of errors that a text column has, too: errors without a policy, NULL in a NOT NULL
column, a value that is too long, and invalid text."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Everything that the reader of one range needs."""

    conninfo: str
    application_name: str
    snapshot: str
    statement: str
    columns: tuple[str, ...]
    """Column names in the order of the statement."""
    location: str
    """The table's directory."""
    fields: tuple[FieldSpec, ...]
    """The target's columns. A column that is not copied gets its default."""
    physical_fields: tuple[PhysicalField, ...]
    row_group_bytes: int
    """Arrow bytes gathered before a Parquet row group is written."""
    table: str
    """The target's bare name, for messages."""
    key: tuple[str, ...]
    """The primary key, whose columns must not be null."""
    binary_types: tuple[Oid, ...] | None = None
    """Types of the columns if the statement uses binary format. None for CSV."""
    types: RemoteTypes = field(default_factory=dict)
    """The publisher's types that are not built in."""
    namespace: str = ""
    """The table's schema at the publisher."""
    column_types: tuple[tuple[Oid, int], ...] = ()
    """Type and typmod of each column at the publisher; empty if not known."""
    lsn: Lsn = INVALID_LSN
    """The snapshot's consistent point."""
    rules: ConversionRules = NO_RULES
    must_use_password: bool = False
    """Whether the publisher must ask for the password in ``conninfo``."""
    fills: Fills = field(default_factory=dict)
    """Defaults of columns that are not copied."""
    counting: str = ""
    """Query for the number of rows of the statement."""
    source: PlannedTable | None = None
    """The table to compare with the snapshot. None for no comparison."""
    mark: str = ""
    """Mark by which the snapshot keeper recognizes the sessions of readers."""
    max_lock_wait_ms: int = 0
    """subscription.max_lock_wait_ms."""
    shows_rows: bool = False
    """Whether errors may show the values of a row."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Values that do not fit their columns, which may become text (``value_policies``, widen)."""

    error: ApplyError
    """Error to raise if a column must not become text."""
    widened: tuple[Coercion, ...]
    """First such value of each column."""


class _MisfitError(Exception):
    """Raised to end the range that has the value."""

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
    """Read, convert and write each range. All ranges belong to one snapshot of one publisher.

    A failed range leaves no file. If a connection fails, the remaining ranges fail with the same
    error.
    """
    results: list[Copied] = []
    session: Session | None = None
    try:
        for task in tasks:
            if session is None:
                try:
                    session = open_reader(task)
                except PublisherError as error:
                    results += [error] * (len(tasks) - len(results))
                    break
            try:
                results.append(_copy_range(task, session))
            except (PublisherError, ApplyError, StorageError) as error:
                results.append(error)
                session.close()
                session = None
            except _MisfitError as misfit_error:
                results.append(misfit_error.misfit)
                session.close()
                session = None
    finally:
        if session is not None:
            session.close()
    return results


def count_ranges(tasks: tuple[CopyTask, ...]) -> list[int | PublisherError]:
    """Count the rows of each range, in the same snapshot."""
    results: list[int | PublisherError] = []
    try:
        with open_reader(tasks[0]) as session:
            for task in tasks:
                with in_snapshot(session, task):
                    results.append(int(session.value(task.counting) or 0))
    except PublisherError as error:
        results += [error] * (len(tasks) - len(results))
    return results


def open_reader(task: CopyTask) -> Session:
    """Open a session with a limited wait for locks."""
    try:
        session = connect(
            task.conninfo,
            application_name=task.application_name,
            must_use_password=task.must_use_password,
        )
    except UsageError as error:
        # The connection string was valid when the command checked it.
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
def in_snapshot(session: Session, task: CopyTask) -> Iterator[None]:
    """Run a transaction in the snapshot, with only the task's table locked. After an error the
    transaction stays open, and the caller closes the session."""
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
        with in_snapshot(session, task):
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
    """Yield blocks of rows, by column."""
    sent_types = task.column_types or ((INVALID_OID, -1),) * len(task.columns)
    # Blocks have whole rows, because the server sends each row in one message. The last row may
    # make a block larger.
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
    """Convert a block. Appends the values that policies have changed to ``coercions``."""
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
        lasting = [
            bad_value for bad_value in bad if not _may_widen(task, columns, bad_value)
        ]
        first = (lasting or bad)[0]
        if not first.column:
            # The error concerns the row, not a column.
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
    for column, column_changes in changes.items():
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
            for change in column_changes
        ]
    return table


def _may_widen(
    task: CopyTask, columns: dict[str, SentColumn], bad_value: BadValue
) -> bool:
    """Whether the column could hold the value if it were text."""
    sent = columns.get(bad_value.column)
    if sent is None or bad_value.sqlstate in _NO_MATTER_OF_TYPE:
        return False
    field = next(f for f in task.fields if f.name == bad_value.column)
    if mapping_of(field).kind is ConversionKind.TEXT:
        return False
    return task.rules.widens(task.namespace, task.table, field, sent)


def _widened(
    task: CopyTask, columns: dict[str, SentColumn], bad: Sequence[BadValue]
) -> tuple[Coercion, ...]:
    """Build the coercion of the first bad value of each column."""
    coercions: dict[str, Coercion] = {}
    for bad_value in bad:
        if bad_value.column not in coercions:
            text = columns[bad_value.column].text_of(bad_value.row)
            coercions[bad_value.column] = Coercion(
                bad_value.column,
                ValuePolicy.WIDEN.value,
                bad_value.message,
                1,
                task.lsn,
                task.lsn,
                example_of(text),
            )
    return tuple(coercions.values())
