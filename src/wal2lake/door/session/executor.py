"""Runs one statement: a command of the session here, any other statement in the Backend.

Comes in: prepared statements. Goes out: Outcomes. Called by ``main`` and ``extended``. Both
protocols use this module for the transaction state, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from wal2lake.door.session.commands import (
    Acknowledge,
    CloseCursor,
    Command,
    Deallocate,
    DeclareCursor,
    Discard,
    ExecuteStatement,
    Fetch,
    PrepareStatement,
    Reset,
    SetParameter,
    SetSnapshot,
    SetTransaction,
    ShowParameter,
    TransactionControl,
    TransactionVerb,
    is_unknown,
    parse_command,
)
from wal2lake.door.session.cursors import QueryCursor
from wal2lake.door.session.prepared import (
    Portal,
    PreparedStatement,
    StatementTable,
)
from wal2lake.door.session.results import TEXT_IN_BINARY
from wal2lake.door.session.transaction import SessionTransaction
from wal2lake.errors import (
    FeatureNotSupportedError,
    InternalError,
    SqlSyntaxError,
    UsageError,
)
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.pgtypes.registry.pg_type import BUILT_IN, format_type
from wal2lake.sql.backend import (
    Backend,
    Notice,
    Outcome,
    Parameter,
    ResultBatch,
    TransactionKind,
)
from wal2lake.sql.parameters import Parameters
from wal2lake.wire.frontback import FieldDescription, Format

_TEXT_OID: Final = 25

_STRINGS: Final = "S"
"""pg_type.typcategory of text and its like. An assignment converts them to no other type."""


class Executor:
    """Prepares and runs the statements of one session."""

    __slots__ = (
        "_backend",
        "_parameters",
        "_table",
        "_transaction",
    )

    def __init__(
        self,
        *,
        backend: Backend,
        parameters: Parameters,
        transaction: SessionTransaction,
        table: StatementTable,
    ) -> None:
        self._backend = backend
        self._parameters = parameters
        self._transaction = transaction
        self._table = table

    def prepare_string(self, sql: str, param_oids: Sequence[int]) -> PreparedStatement:
        """Prepare the string of Parse: one statement or none; raises 42601 for more."""
        statements = self._backend.parse_string(sql)
        if len(statements) > 1:
            raise SqlSyntaxError(
                "cannot insert multiple commands into a prepared statement"
            )
        if not statements:
            return PreparedStatement("", None, None)
        with _placed(statements[0].offset):
            return self.prepare(
                statements[0].text, param_oids, TransactionKind.PIPELINE
            )

    def prepare(
        self, sql: str, param_oids: Sequence[int], kind: TransactionKind
    ) -> PreparedStatement:
        """Prepare one statement; opens a transaction if the Backend prepares it."""
        command = parse_command(sql)
        if isinstance(command, DeclareCursor):
            return self._prepare_cursor(sql, command, param_oids, kind)
        if command is not None:
            if not isinstance(command, TransactionControl):
                self._transaction.check_usable()
            return PreparedStatement(sql, command, None, self._fields_of(command))
        self._transaction.enter(kind)
        return PreparedStatement(sql, None, self._backend.prepare(sql, param_oids))

    def run(
        self,
        statement: PreparedStatement,
        parameters: Sequence[Parameter],
        formats: Sequence[Format],
        kind: TransactionKind,
    ) -> Outcome:
        """Execute a statement that is not empty."""
        if isinstance(statement.command, DeclareCursor):
            return self._declare(statement, statement.command, parameters, kind)
        if isinstance(statement.command, Fetch):
            self._transaction.check_usable()
            return self._fetch(statement.command, formats)
        if isinstance(statement.command, ExecuteStatement):
            return self._execute(statement.command, formats)
        if statement.command is not None:
            return self._run_command(statement.command)
        assert statement.prepared is not None
        self._transaction.enter(kind)
        return self._backend.execute(statement.prepared, parameters, formats)

    def _fields_of(self, command: Command) -> tuple[FieldDescription, ...] | None:
        """The columns of EXECUTE, FETCH and SHOW; raises 26000 and 42704, which PostgreSQL also
        does at Parse."""
        if isinstance(command, ExecuteStatement):
            return self._table.statement(command.name).fields
        if isinstance(command, Fetch):
            return None if command.move else self._table.cursor_fields(command.name)
        if not isinstance(command, ShowParameter):
            return None
        if command.name is None:
            return _SHOW_ALL_FIELDS
        return _show_fields(self._parameters.definition(command.name).name)

    def _run_command(self, command: Command) -> Outcome:
        if isinstance(command, TransactionControl):
            self._hold_cursors(command)
            tag, notices = self._transaction.control(command)
            if not self._transaction.in_block or command.chain:
                self._table.close_portals()
            elif command.verb is TransactionVerb.ROLLBACK_TO:
                self._table.close_portals(self._transaction.depth)
            elif command.verb is TransactionVerb.RELEASE:
                self._table.release_savepoint(self._transaction.depth)
            return Outcome(tag, notices=tuple(notices))
        self._transaction.check_usable()
        match command:
            case SetParameter():
                return self._set(command)
            case SetTransaction():
                return self._set_transaction(command)
            case SetSnapshot(name, local):
                return self._set_snapshot(name, local=local)
            case ShowParameter(name):
                return self._show(name)
            case Reset(name):
                self._reset(name)
                return Outcome("RESET")
            case Discard(what):
                self._discard(what)
                return Outcome(f"DISCARD {what}")
            case PrepareStatement():
                return self._prepare_named(command)
            case Deallocate(name):
                return self._deallocate(name)
            case CloseCursor(name):
                self._table.close_cursor(name)
                return Outcome("CLOSE CURSOR ALL" if name is None else "CLOSE CURSOR")
            case Acknowledge(tag):
                return Outcome(tag)
        raise InternalError(f"{command} is no command of its own")

    # ---- prepared statements ----------------------------------------------------------

    def _prepare_named(self, command: PrepareStatement) -> Outcome:
        """PREPARE."""
        self._table.check_free(command.name)
        oids = [self._type_oid(text, offset) for text, offset in command.types]
        with _placed(command.offset):
            statement = self.prepare(command.query, oids, TransactionKind.STRING)
            # The statement is analysed here: an error in it belongs to PREPARE.
            _ = statement.fields
        self._table.store(command.name, statement)
        return Outcome("PREPARE")

    def _type_oid(self, text: str, offset: int) -> int:
        self._transaction.enter(TransactionKind.STRING)
        with _placed(offset - len("select null::")):
            fields = self._backend.prepare(f"select null::{text}", ()).fields
        assert fields is not None
        return fields[0].type_oid

    def _execute(self, command: ExecuteStatement, formats: Sequence[Format]) -> Outcome:
        """EXECUTE."""
        statement = self._table.statement(command.name)
        count, expected = len(command.values), len(statement.param_oids)
        if count != expected:
            raise UsageError(
                f'wrong number of parameters for prepared statement "{command.name}"',
                sqlstate="42601",
                detail=f"Expected {expected} parameters but got {count}.",
            )
        parameters = [
            self._value(number, text, offset, oid)
            for number, ((text, offset), oid) in enumerate(
                zip(command.values, statement.param_oids, strict=True), 1
            )
        ]
        return self.run(statement, parameters, formats, TransactionKind.STRING)

    def _value(self, number: int, text: str, offset: int, oid: int) -> Parameter:
        """Compute a parameter of EXECUTE: an expression, cast to the type of the parameter."""
        self._transaction.enter(TransactionKind.STRING)
        wanted = BUILT_IN[oid]
        if not is_unknown(text) and wanted.category != _STRINGS:
            with _placed(offset - len("select ")):
                fields = self._backend.prepare(f"select {text}", ()).fields
            if fields and BUILT_IN[fields[0].type_oid].category == _STRINGS:
                actual_type = format_type(fields[0].type_oid, -1)
                error = UsageError(
                    f"parameter ${number} of type {actual_type} cannot be coerced to the"
                    f" expected type {format_type(oid, -1)}",
                    sqlstate="42804",
                    hint="You will need to rewrite or cast the expression.",
                )
                error.position = offset + 1
                raise error
        with _placed(offset - len("select cast((")):
            cast = f"select cast(({text}) as {format_type(oid, -1)})"
            outcome = self._backend.execute(self._backend.prepare(cast, ()), (), ())
        try:
            values = [batch.columns[0][0] for batch in outcome.batches if batch.rows]
        finally:
            outcome.close()
        return Parameter(values[0], Format.TEXT)

    # ---- cursors ----------------------------------------------------------------------

    def _prepare_cursor(
        self,
        sql: str,
        command: DeclareCursor,
        param_oids: Sequence[int],
        kind: TransactionKind,
    ) -> PreparedStatement:
        self._transaction.enter(kind)
        with _placed(command.offset):
            query = self._backend.prepare(command.query, param_oids)
            # The query is analysed here: an error in it is found before all others.
            _ = query.fields
        return PreparedStatement(sql, command, query)

    def _declare(
        self,
        statement: PreparedStatement,
        command: DeclareCursor,
        parameters: Sequence[Parameter],
        kind: TransactionKind,
    ) -> Outcome:
        in_block = self._transaction.in_block or kind is TransactionKind.STRING
        if not in_block and not command.hold:
            raise UsageError(
                "DECLARE CURSOR can only be used in transaction blocks",
                sqlstate="25P01",
            )
        assert statement.prepared is not None
        self._transaction.enter(kind)
        outcome = self._backend.execute(statement.prepared, parameters, ())
        fields = outcome.fields or ()
        cursor = QueryCursor(outcome, scroll=command.scroll)
        formats = (Format.TEXT,) * len(fields)
        depth = self._transaction.depth
        portal = Portal(statement, (), formats, fields, cursor=cursor, depth=depth)
        try:
            self._table.open(command.name, portal)
        except BaseException:
            cursor.close()
            raise
        if not in_block:
            self._table.hold_cursors()
        return Outcome("DECLARE CURSOR", notices=outcome.notices)

    def _fetch(self, command: Fetch, formats: Sequence[Format]) -> Outcome:
        cursor = self._table.cursor(command.name)
        if command.move:
            return Outcome(f"MOVE {cursor.move(command)}")
        fields = self._table.cursor_fields(command.name) or ()
        for field, code in zip(fields, formats, strict=False):
            if code is Format.BINARY and field.type_oid not in TEXT_IN_BINARY:
                raise FeatureNotSupportedError(
                    "FETCH cannot return values in binary format"
                )
        return Outcome("FETCH", fields, cursor.fetch(command))

    def _hold_cursors(self, command: TransactionControl) -> None:
        if self._transaction.failed:
            return
        if command.verb is TransactionVerb.COMMIT:
            self._table.hold_cursors()
        elif command.verb is TransactionVerb.PREPARE and self._table.portals_to_hold():
            raise FeatureNotSupportedError(
                "cannot PREPARE a transaction that has created a cursor WITH HOLD"
            )

    # ---- parameters -------------------------------------------------------------------

    def _set(self, command: SetParameter) -> Outcome:
        notices: tuple[Notice, ...] = ()
        if command.local and not self._transaction.in_block:
            notices = (_outside_block("SET LOCAL"),)
        name = command.name.lower().replace(" ", "_")
        if name in ("role", "session_authorization"):
            values = command.values
            self._become(
                name, None if values is None else values[0], local=command.local
            )
        elif command.values is None:
            self._parameters.reset(command.name, local=command.local)
        else:
            value = self._joined(command.name, command.values)
            with self._transaction.setting([name]):
                self._parameters.set(command.name, value, local=command.local)
        return Outcome("SET", notices=notices)

    def _become(self, name: str, value: str | None, *, local: bool) -> None:
        """SET ROLE and SET SESSION AUTHORIZATION; None returns to the session's first role."""
        authorization = name == "session_authorization"
        role = None if value == "none" and not authorization else value
        boss = self._backend.become(role, authorization=authorization)
        parameters = self._parameters
        if authorization:
            parameters.assume("role", None, local=local)
        parameters.assume(name, role, local=local)
        parameters.assume("is_superuser", "on" if boss else "off", local=local)

    def _joined(self, name: str, values: tuple[str, ...]) -> str:
        """The values of a SET as one text: flatten_set_variable_args()."""
        try:
            definition = self._parameters.definition(name)
        except UsageError:
            if "." not in name:
                raise
            definition = None
        if definition is not None and definition.quotes_items:
            return ", ".join(map(quote_identifier, values))
        if len(values) > 1 and not (definition is not None and definition.is_list):
            raise UsageError(f"SET {name} takes only one argument")
        return ", ".join(values)

    def _set_transaction(self, command: SetTransaction) -> Outcome:
        prefix = "default_transaction_" if command.session else "transaction_"
        notices: tuple[Notice, ...] = ()
        if not command.session and not self._transaction.in_block:
            notices = (_outside_block("SET TRANSACTION"),)
        with self._transaction.setting(prefix + mode for mode, _ in command.modes):
            for mode, value in command.modes:
                self._parameters.set(prefix + mode, value, local=not command.session)
        return Outcome("SET", notices=notices)

    def _set_snapshot(self, name: str, *, local: bool) -> Outcome:
        if local:
            raise FeatureNotSupportedError(
                "SET LOCAL TRANSACTION SNAPSHOT is not implemented"
            )
        notices: tuple[Notice, ...] = ()
        if not self._transaction.in_block:
            notices = (_outside_block("SET TRANSACTION"),)
        self._transaction.import_snapshot(name)
        return Outcome("SET", notices=notices)

    def _show(self, name: str | None) -> Outcome:
        parameters = self._parameters
        if name is not None:
            shown = parameters.definition(name).name
            value = parameters[name].encode("utf-8")
            return _rows("SHOW", _show_fields(shown), [[value]])
        names = list(parameters)
        columns: list[list[bytes | None]] = [
            [n.encode("utf-8") for n in names],
            [parameters[n].encode("utf-8") for n in names],
            [parameters.definition(n).description.encode("utf-8") for n in names],
        ]
        return _rows("SHOW", _SHOW_ALL_FIELDS, columns)

    def _reset(self, name: str | None) -> None:
        if name is None:
            self._parameters.reset_all()
        elif name.lower() in ("role", "session_authorization"):
            self._become(name.lower(), None, local=False)
        else:
            self._parameters.reset(name)

    def _discard(self, what: str) -> None:
        if what == "SEQUENCES":
            self._backend.discard_sequences()
        if what != "ALL":
            return
        if self._transaction.in_block:
            raise UsageError(
                "DISCARD ALL cannot run inside a transaction block", sqlstate="25001"
            )
        self._table.close_cursor(None)
        self._become("session_authorization", None, local=False)
        self._parameters.reset_all()
        self._table.deallocate_all()
        self._backend.discard_sequences()

    def _deallocate(self, name: str | None) -> Outcome:
        if name is None:
            self._table.deallocate_all()
            return Outcome("DEALLOCATE ALL")
        self._table.statement(name)
        self._table.deallocate(name)
        return Outcome("DEALLOCATE")


@contextmanager
def _placed(offset: int) -> Iterator[None]:
    """Count the position of an error from the beginning of the whole text."""
    try:
        yield
    except UsageError as error:
        if error.position:
            error.position += offset
        raise


def _outside_block(what: str) -> Notice:
    return Notice(
        f"{what} can only be used in transaction blocks",
        severity="WARNING",
        sqlstate="25P01",
    )


def _show_fields(name: str) -> tuple[FieldDescription, ...]:
    return (FieldDescription(name, _TEXT_OID),)


_SHOW_ALL_FIELDS: Final = tuple(
    FieldDescription(name, _TEXT_OID) for name in ("name", "setting", "description")
)


def _rows(
    tag: str,
    fields: tuple[FieldDescription, ...],
    columns: list[list[bytes | None]],
) -> Outcome:
    batch = ResultBatch(len(columns[0]), tuple(columns))
    return Outcome(tag, fields, iter((batch,)))
