"""Handles the extended query protocol: Parse, Bind, Describe, Execute, Close, Flush.

Comes in: one message at a time. Goes out: its answer, or an exception. ``main`` reports the
exception and skips messages up to Sync. A portal's rows are produced when it is executed. If a
row limit is reached, the rest of the rows stays in the portal until the transaction ends.

Source: src/backend/tcop/postgres.c (exec_parse_message ... exec_describe_portal_message);
PostgreSQL manual, section 54.2.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wal2lake.door.client.conversation import ClientConversation
from wal2lake.door.session.copying import receive_copy, send_copy
from wal2lake.door.session.executor import Executor
from wal2lake.door.session.interrupts import Interrupts
from wal2lake.door.session.prepared import (
    Portal,
    PreparedStatement,
    StatementTable,
)
from wal2lake.door.session.results import RowStream, completion_tag
from wal2lake.door.session.transaction import SessionTransaction
from wal2lake.errors import (
    FeatureNotSupportedError,
    ProtocolViolation,
    UsageError,
)
from wal2lake.sql.backend import Notice, Outcome, Parameter, TransactionKind
from wal2lake.sql.parameters import (
    Parameters,
    decode_text,
    is_utf8,
)
from wal2lake.wire.frontback import (
    Bind,
    Close,
    CommandComplete,
    Describe,
    DescribeTarget,
    Execute,
    FieldDescription,
    Flush,
    Format,
    FrontendMessage,
    ParameterDescription,
    Parse,
    RowDescription,
    Signal,
)


class ExtendedQuery:
    """Handles the extended query messages of one session."""

    __slots__ = (
        "_conversation",
        "_executor",
        "_interrupts",
        "_notice",
        "_parameters",
        "_running",
        "_table",
        "_transaction",
    )

    def __init__(
        self,
        *,
        conversation: ClientConversation,
        executor: Executor,
        parameters: Parameters,
        transaction: SessionTransaction,
        table: StatementTable,
        interrupts: Interrupts,
        notice: Callable[[Notice], None],
        running: Callable[[str], None],
    ) -> None:
        """``running`` gets the text of the statement that is handled."""
        self._conversation = conversation
        self._executor = executor
        self._parameters = parameters
        self._transaction = transaction
        self._table = table
        self._interrupts = interrupts
        self._notice = notice
        self._running = running

    def handle(self, message: FrontendMessage) -> None:
        """Answer one message."""
        match message:
            case Parse():
                self._parse(message)
            case Bind():
                self._bind(message)
            case Describe(DescribeTarget.STATEMENT, name):
                self._describe_statement(self._text(name))
            case Describe(DescribeTarget.PORTAL, name):
                self._describe_portal(self._text(name))
            case Execute(portal, max_rows):
                self._execute(self._text(portal), max_rows)
            case Close(target, name):
                self._close(target, self._text(name))
            case Flush():
                self._conversation.transport.flush()
            case _:
                raise ProtocolViolation("unexpected message in a query")

    def _text(self, data: bytes) -> str:
        return decode_text(data, self._parameters.raw("client_encoding"))

    def _parse(self, message: Parse) -> None:
        name = self._text(message.name)
        self._table.check_free(name)
        # The old unnamed statement is dropped even if the new one has an error.
        if not name:
            self._table.deallocate(name)
        text = self._text(message.sql)
        self._running(text)
        statement = self._executor.prepare_string(text, message.param_oids)
        self._table.store(name, statement)
        self._conversation.send(Signal.PARSE_COMPLETE)

    def _bind(self, message: Bind) -> None:
        statement_name = self._text(message.statement)
        statement = self._table.statement(statement_name)
        self._running(statement.sql)
        if not (statement.is_transaction_exit or statement.is_empty):
            self._transaction.check_usable()
        parameters = self._bind_parameters(message, statement, statement_name)
        fields = statement.fields
        formats = _result_formats(message.result_formats, fields)
        portal = Portal(statement, parameters, formats, fields)
        self._table.open(self._text(message.portal), portal)
        self._conversation.send(Signal.BIND_COMPLETE)

    def _bind_parameters(
        self, message: Bind, statement: PreparedStatement, name: str
    ) -> tuple[Parameter, ...]:
        count, expected = len(message.params), len(statement.param_oids)
        codes = message.param_formats
        if len(codes) > 1 and len(codes) != count:
            raise ProtocolViolation(
                f"bind message has {len(codes)} parameter formats but {count} parameters"
            )
        if count != expected:
            raise ProtocolViolation(
                f"bind message supplies {count} parameters, but prepared statement "
                f'"{name}" requires {expected}'
            )
        formats = _expanded(codes, count)
        encoding = self._parameters.raw("client_encoding")
        if is_utf8(encoding):
            values: Sequence[bytes | None] = message.params
        else:
            values = [
                _recoded(value, encoding) if code is Format.TEXT else value
                for value, code in zip(message.params, formats, strict=True)
            ]
        return tuple(map(Parameter, values, formats))

    def _describe_statement(self, name: str) -> None:
        statement = self._table.statement(name)
        if not (statement.is_transaction_exit or statement.is_empty):
            self._transaction.check_usable()
        # Compute the fields before sending anything: an error must not follow half an answer.
        fields = statement.fields
        oids = tuple(statement.param_oids)
        self._conversation.send(ParameterDescription(oids))
        self._send_fields(fields, (Format.TEXT,) * len(fields or ()))

    def _describe_portal(self, name: str) -> None:
        portal = self._table.portal(name)
        self._send_fields(portal.fields, portal.formats)

    def _send_fields(
        self, fields: tuple[FieldDescription, ...] | None, formats: tuple[Format, ...]
    ) -> None:
        if fields is None:
            self._conversation.send(Signal.NO_DATA)
        else:
            self._conversation.send(RowDescription(fields, formats))

    def _execute(self, name: str, max_rows: int) -> None:
        portal = self._table.portal(name)
        self._running(portal.statement.sql)
        if portal.statement.is_empty:
            self._conversation.send(Signal.EMPTY_QUERY)
            return
        if portal.finished:
            self._execute_finished(portal, name)
            return
        if portal.cursor is not None:
            raise FeatureNotSupportedError(
                f'cursor "{name}" can only be read by FETCH',
            )
        if portal.stream is None:
            outcome = self._start(portal)
            if outcome.fields is None or outcome.copy is not None:
                portal.finished = True
                self._conversation.send(CommandComplete(self._completed(outcome)))
                return
            try:
                _check_unchanged(portal.fields, outcome.fields)
            except FeatureNotSupportedError:
                outcome.close()
                raise
            portal.stream = RowStream(outcome, portal.formats)
        rows, is_limited = portal.stream.send(
            self._conversation.transport,
            max_rows,
            encoding=self._parameters.raw("client_encoding"),
            check=self._interrupts.check,
        )
        if is_limited:
            self._conversation.send(Signal.PORTAL_SUSPENDED)
            return
        tag = completion_tag(portal.stream.outcome, rows)
        portal.close()
        self._conversation.send(CommandComplete(tag))

    def _completed(self, outcome: Outcome) -> str:
        """Finish a statement that a row limit does not apply to: a COPY, or one without rows."""
        if outcome.input is not None:
            rows = receive_copy(
                outcome.input, self._conversation, check=self._interrupts.check
            )
            return f"{outcome.tag} {rows}"
        if outcome.copy is None:
            return outcome.tag
        rows = send_copy(
            outcome,
            self._conversation.transport,
            encoding=self._parameters.raw("client_encoding"),
            check=self._interrupts.check,
        )
        return f"{outcome.tag} {rows}"

    def _start(self, portal: Portal) -> Outcome:
        self._transaction.executing(is_last=self._conversation.ends_here)
        outcome = self._executor.run(
            portal.statement,
            portal.parameters,
            portal.formats,
            TransactionKind.PIPELINE,
        )
        for notice in outcome.notices:
            self._notice(notice)
        return outcome

    def _execute_finished(self, portal: Portal, name: str) -> None:
        """Execute a finished portal: a query gives no rows; other statements must not run twice."""
        if portal.fields is None or portal.statement.command is not None:
            raise UsageError(f'portal "{name}" cannot be run', sqlstate="55000")
        self._conversation.send(CommandComplete("SELECT 0"))

    def _close(self, target: DescribeTarget, name: str) -> None:
        if target is DescribeTarget.STATEMENT:
            self._table.deallocate(name)
        else:
            self._table.close_portal(name)
        self._conversation.send(Signal.CLOSE_COMPLETE)


def _format(code: int) -> Format:
    try:
        return Format(code)
    except ValueError:
        raise UsageError(f"unsupported format code: {code}") from None


def _expanded(codes: tuple[int, ...], count: int) -> tuple[Format, ...]:
    """One format for each value: no code means text; a single code is for all values."""
    if not codes:
        return (Format.TEXT,) * count
    if len(codes) == 1:
        return (_format(codes[0]),) * count
    return tuple(map(_format, codes))


def _result_formats(
    codes: tuple[int, ...], fields: tuple[FieldDescription, ...] | None
) -> tuple[Format, ...]:
    # PostgreSQL checks the formats only of a portal that returns rows.
    if fields is None:
        return ()
    if len(codes) > 1 and len(codes) != len(fields):
        raise ProtocolViolation(
            f"bind message has {len(codes)} result formats but query has "
            f"{len(fields)} columns"
        )
    return _expanded(codes, len(fields))


def _recoded(value: bytes | None, encoding: str) -> bytes | None:
    return None if value is None else decode_text(value, encoding).encode("utf-8")


def _check_unchanged(
    described: tuple[FieldDescription, ...] | None,
    current: tuple[FieldDescription, ...],
) -> None:
    """Raise 0A000 if the columns have other types than Describe has told the client."""
    types = None if described is None else [(f.type_oid, f.typmod) for f in described]
    if types != [(f.type_oid, f.typmod) for f in current]:
        raise FeatureNotSupportedError("cached plan must not change result type")
