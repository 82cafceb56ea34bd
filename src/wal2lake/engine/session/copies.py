"""COPY: the query of a COPY TO and the format of its rows; the table that a COPY FROM fills.

Takes the statement and a function that runs a query, or a transaction that writes; returns an
outcome with COPY's options, or one that takes the client's rows. Called by ``lakebackend``.

Source: DoCopy() in copy.c; BeginCopyTo() in copyto.c; BeginCopyFrom() in copyfrom.c.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from wal2lake.catalog import Catalog, TableDef
from wal2lake.commands.publication.dependents import check_writable
from wal2lake.commands.tables.copying import (
    copied_rows,
    filled_columns,
    forced_columns,
)
from wal2lake.engine.columndefaults import EvaluatedDefaults
from wal2lake.errors import (
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.lake.staging import Fill, Fills
from wal2lake.local.access import check_tables
from wal2lake.local.concurrency.sequencevalues import StatementSequences
from wal2lake.local.concurrency.snapshots import Snapshot
from wal2lake.local.node import Caller, EngineParts, find_table, need_table
from wal2lake.local.transaction.copied import CopiedRows, Leniency
from wal2lake.local.transaction.local import LocalTransaction
from wal2lake.local.transaction.writtenchecks import values_hidden
from wal2lake.sql.backend import CopyRows, Outcome
from wal2lake.sql.grammar.copying import (
    AllColumns,
    CopyFormat,
    CopyFrom,
    CopyOptions,
    CopyTo,
    Header,
    copy_options,
)
from wal2lake.sql.grammar.lexer import parameter_count
from wal2lake.sql.grammar.statements import QualifiedName
from wal2lake.sql.parameters import canonical_encoding, codec_name, is_utf8
from wal2lake.sql.query.changes.stored import SparkWrite
from wal2lake.sql.query.results import Rendering
from wal2lake.sql.sysviews.declarations.relations import system_relation
from wal2lake.wire.copyin import BinaryRows, RowBlock, TextFormat, TextRows


def copy_outcome(
    catalog: Catalog,
    caller: Caller,
    statement: CopyTo,
    run: Callable[[str, CopyOptions], Outcome],
) -> Outcome:
    """Return the outcome of the query, to be sent as CopyData."""
    name, columns, sql = None, None, statement.query
    if statement.table is not None:
        schema, name, columns, generated = _copied_table(
            catalog, caller, statement.table
        )
        sql = copied_rows(statement, schema, name, columns, generated)
    assert sql is not None
    options = copy_options(statement.options, canonical_encoding)
    if parameter_count(sql):
        raise UsageError("there is no parameter $1", sqlstate="42P02")
    try:
        outcome = run(sql, options)
    except SqlSyntaxError as error:
        if error.position:
            error.position += statement.query_start
        raise
    try:
        shown = [field.name for field in outcome.fields or ()]
        forced = forced_columns(options, shown, columns, name)
    except Wal2LakeError:
        outcome.close()
        raise
    return replace(outcome, tag="COPY", copy=CopyRows(options, forced))


def _copied_table(
    catalog: Catalog, caller: Caller, table: QualifiedName
) -> tuple[str, str, tuple[str, ...], set[str]]:
    """Return schema, name, columns, and generated columns of a lake or system table.

    42809 for a system view."""
    relation = find_table(catalog, caller, table.schema, table.name)
    system = None if relation else system_relation(table.schema, table.name)
    if system is None:
        relation = need_table(catalog, caller, table.schema, table.name)
        names = tuple(c.name for c in relation.columns)
        return (
            relation.namespace,
            relation.name,
            names,
            {name for name, _ in relation.generated},
        )
    if system.kind != "r":
        raise UsageError(
            f'cannot copy from view "{system.name}"',
            sqlstate="42809",
            hint="Try the COPY (SELECT ...) TO variant.",
        )
    return system.schema, system.name, tuple(c.name for c in system.columns), set()


# ---- COPY FROM ---------------------------------------------------------------------------


def copied_in(
    node: EngineParts,
    transaction: LocalTransaction,
    snapshot: Snapshot,
    sequences: StatementSequences,
    caller: Caller,
    statement: CopyFrom,
    rendering: Rendering,
    client_encoding: str,
) -> Outcome:
    """Return an outcome that takes the rows of a COPY FROM. ``snapshot``: the statement's."""
    name = statement.table
    table = need_table(node.catalog, caller, name.schema, name.name)
    options = copy_options(statement.options, canonical_encoding, is_from=True)
    check_tables(node.catalog, caller, {table.oid: (table, "a")})
    names = filled_columns(
        statement.columns,
        [column.name for column in table.columns],
        {generated for generated, _ in table.generated},
        table.name,
    )
    forced = tuple(
        _forced(word, forced_names, names, table)
        for word, forced_names in (
            ("FORCE_NOT_NULL", options.force_not_null),
            ("FORCE_NULL", options.force_null),
        )
    )
    check_writable(node, table, "INSERT")
    group = f"copy {caller.pid}"
    (target,) = transaction.targets([table], snapshot, group, brings_keys=True)
    chosen = [column for column in table.columns if column.name in names]
    chosen.sort(key=lambda column: names.index(column.name))
    is_binary = options.format is CopyFormat.BINARY
    rows = CopiedRows(
        node,
        target,
        chosen,
        _Defaults(node, table, names, sequences),
        Leniency(options.skips_errors, options.reject_limit, options.verbosity),
        caller.zone,
        caller.notice,
        is_binary=is_binary,
    )
    reader: BinaryRows | TextRows = BinaryRows(len(names))
    if not is_binary:
        form = TextFormat(
            tuple(names),
            options.delimiter.encode(),
            options.null.encode(),
            options.format is CopyFormat.CSV,
            options.quote.encode(),
            options.escape.encode(),
            *forced,
        )
        header = options.header
        reader = TextRows(
            form, header=header is not Header.NONE, match=header is Header.MATCH
        )
    encoding = options.encoding or client_encoding
    write = SparkWrite(target, "", "INSERT", "a", brings_keys=True)
    return Outcome(
        "COPY",
        input=_TableInput(
            table,
            reader,
            rows,
            lambda: transaction.load(write, rendering, group, rows.commit),
            lambda: values_hidden(node, caller, table),
            None if is_binary or is_utf8(encoding) else encoding,
            columns=len(names),
            is_binary=is_binary,
        ),
    )


def _forced(
    word: str,
    forced: tuple[str, ...] | AllColumns,
    names: Sequence[str],
    table: TableDef,
) -> tuple[bool, ...]:
    """Return FORCE_NULL or FORCE_NOT_NULL for each column; empty if it is for none."""
    if isinstance(forced, AllColumns):
        return (True,) * len(names)
    for name in forced:
        if table.column(name) is None:
            raise UndefinedObjectError(
                f'column "{name}" of relation "{table.name}" does not exist',
                sqlstate="42703",
            )
        if name not in names:
            raise UsageError(
                f'{word} column "{name}" not referenced by COPY', sqlstate="42P10"
            )
    return tuple(name in forced for name in names) if forced else ()


class _Defaults:
    """The defaults of the columns that the client does not send."""

    def __init__(
        self,
        node: EngineParts,
        table: TableDef,
        names: Sequence[str],
        sequences: StatementSequences,
    ) -> None:
        missing = [c for c in table.columns if c.name not in names]
        self._sequences = sequences
        self._numbered = [c for c in missing if c.sequence is not None]
        others = [c.name for c in missing if c.sequence is None]
        self._fills: Fills = {}
        if others:
            evaluated = EvaluatedDefaults(node.catalog, node.queries, node.sequences)
            self._fills = evaluated(table.oid, others)

    def __call__(self, rows: int) -> Fills:
        fills = dict(self._fills)
        for column in self._numbered if rows else ():
            taken = self._sequences(column, rows)
            fills[column.name] = Fill(
                sequence=column.sequence, first=taken.first, step=taken.step
            )
        return fills


class _TableInput:
    """Takes the data of a COPY FROM, as the port ``CopyInput`` says."""

    def __init__(
        self,
        table: TableDef,
        reader: BinaryRows | TextRows,
        rows: CopiedRows,
        load: Callable[[], int],
        hiding: Callable[[], AbstractContextManager[None]],
        encoding: str | None,
        *,
        columns: int,
        is_binary: bool,
    ) -> None:
        self._table = table
        self._reader = reader
        self._rows = rows
        self._load = load
        self._hiding = hiding
        self._is_stored = False
        self.columns = columns
        self.is_binary = is_binary
        self._decoder = None
        if encoding is not None:
            self._decoder = codecs.getincrementaldecoder(codec_name(encoding))()
        self._encoding = encoding

    def write(self, data: bytes) -> None:
        self._add(self._reader.feed(self._utf8(data, is_last=False)))

    def finish(self) -> int:
        rest = self._utf8(b"", is_last=True)
        if rest:
            self._add(self._reader.feed(rest))
        self._add(self._reader.finish())
        try:
            count = self._load()
        except Wal2LakeError as error:
            error.context = error.context or f"COPY {self._table.name}"
            raise
        self._is_stored = True
        return count

    def _add(self, blocks: Iterator[RowBlock]) -> None:
        with self._hiding():
            for block in blocks:
                self._rows.add(block)

    def failed(self, reason: str) -> Wal2LakeError:
        return UsageError(
            f"COPY from stdin failed: {reason}",
            sqlstate="57014",
            context=f"COPY {self._table.name}, line {self._reader.line + 1}",
        )

    def close(self) -> None:
        if not self._is_stored:
            self._rows.discard()

    def _utf8(self, data: bytes, *, is_last: bool) -> bytes:
        if self._decoder is None:
            return data
        try:
            return self._decoder.decode(data, is_last).encode()
        except UnicodeDecodeError as error:
            shown = " ".join(
                f"0x{b:02x}" for b in error.object[error.start : error.end]
            )
            raise UsageError(
                f'invalid byte sequence for encoding "{self._encoding}": {shown}',
                sqlstate="22021",
                context=f"COPY {self._table.name}, line {self._reader.line + 1}",
            ) from None
