"""Runs the main loop of a session, as PostgresMain() does.

Comes in: an authenticated client and a Backend. Goes out: answers, until the client or the node
ends the session. One thread runs the session; other threads use only ``interrupts``, and the
properties for pg_stat_activity.

    READY      waiting for a command; ReadyForQuery has been sent, idle timeouts run
    Q, F       simple query, function call: one answer with one ReadyForQuery at the end
    P B D E C  extended query: each message has its own answer; an error starts SKIPPING
    SKIPPING   all messages except Sync and Terminate are ignored
    S          Sync: ends an implicit transaction and SKIPPING; ReadyForQuery

Exceptions:

    Wal2LakeError            ErrorResponse; the transaction fails; the session goes on
    any other Exception      ErrorResponse XX000 "internal error", with a traceback in the log;
                             the session goes on
    ProtocolViolation of a   FATAL: the start of the next message is not known
      frame
    SessionEnd               FATAL with its error
    TransportClosed          rollback, and the session ends without a message

Source: src/backend/tcop/postgres.c; PostgreSQL manual, section 54.2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from wal2lake.door.client.conversation import ClientConversation
from wal2lake.door.client.diagnostics import (
    SessionEnd,
    as_ours,
    error_fields,
    is_wanted,
    notice_fields,
)
from wal2lake.door.client.transport import ReadTimeout, TransportClosed
from wal2lake.door.session.copying import receive_copy, send_copy
from wal2lake.door.session.executor import Executor
from wal2lake.door.session.extended import ExtendedQuery
from wal2lake.door.session.interrupts import Interrupts
from wal2lake.door.session.prepared import PreparedStatement, StatementTable
from wal2lake.door.session.results import RowStream, completion_tag
from wal2lake.door.session.transaction import SessionTransaction
from wal2lake.errors import (
    FeatureNotSupportedError,
    ProtocolViolation,
    UsageError,
    Wal2LakeError,
)
from wal2lake.sql.backend import Backend, Notice, Outcome, TransactionKind
from wal2lake.sql.grammar import StatementText
from wal2lake.sql.parameters import Parameters, decode_text
from wal2lake.wire.frontback import (
    BackendKeyData,
    CommandComplete,
    ErrorResponse,
    Format,
    Frame,
    ParameterStatus,
    Query,
    ReadyForQuery,
    RowDescription,
    Signal,
    TransactionStatus,
    read_frontend,
)
from wal2lake.wire.replication import is_replication_command

_SKIPPED = frozenset((b"d", b"c", b"f"))
"""Messages left over from a COPY that has failed. PostgreSQL ignores them, too."""

_ACTIVITIES = {
    TransactionStatus.IDLE: "idle",
    TransactionStatus.BLOCK: "idle in transaction",
    TransactionStatus.FAILED: "idle in transaction (aborted)",
}


class ReplicationRunner(Protocol):
    """Runs the replication commands of one session."""

    def run(self, text: str, transaction: SessionTransaction) -> Outcome:
        """Run one replication command; raises TransportClosed if the client has gone."""
        ...

    def next_query(self) -> None:
        """Called for every further query string of the client."""
        ...

    def close(self) -> None:
        """Called at the end of the session."""
        ...


_QUERY_CHARACTERS: Final = 1024
"""The characters of a query that are shown. PostgreSQL's track_activity_query_size is in bytes."""


class ClientSession:
    """One client's session, from its first ReadyForQuery to its end."""

    def __init__(
        self,
        *,
        conversation: ClientConversation,
        parameters: Parameters,
        make_backend: Callable[[Callable[[Notice], None]], Backend],
        max_bytes: int,
        log: Any,
        make_replication: Callable[[Backend], ReplicationRunner] | None = None,
    ) -> None:
        """``make_backend`` gets the function that sends notices; ``max_bytes`` limits the
        StatementTable; a connection for replication has ``make_replication``."""
        self._conversation = conversation
        self._parameters = parameters
        self._log = log
        self._ready = False
        self._skipping = False
        self._query = ""
        self._backend = backend = make_backend(self.notice)
        self._replication = (
            None if make_replication is None else make_replication(backend)
        )
        self.interrupts = Interrupts(backend.cancel, conversation.transport.wake)
        self._table = StatementTable(max_bytes)
        self._transaction = SessionTransaction(
            backend, parameters, lambda: self.interrupts.watch_transaction(0)
        )
        self._executor = Executor(
            backend=backend,
            parameters=parameters,
            transaction=self._transaction,
            table=self._table,
        )
        self._extended = ExtendedQuery(
            conversation=conversation,
            executor=self._executor,
            parameters=parameters,
            transaction=self._transaction,
            table=self._table,
            interrupts=self.interrupts,
            notice=self.notice,
            running=self._note_query,
        )

    @property
    def application_name(self) -> str:
        """pg_stat_activity.application_name; may be read from any thread."""
        return self._parameters.raw("application_name")

    @property
    def activity(self) -> str:
        """pg_stat_activity.state; may be read from any thread."""
        if not self._ready:
            return "active"
        return _ACTIVITIES[self._transaction.status]

    @property
    def query(self) -> str:
        """pg_stat_activity.query, the current or the last one; may be read from any thread."""
        return self._query

    def _note_query(self, text: str) -> None:
        self._query = text[:_QUERY_CHARACTERS]

    def run(self, pid: int, secret: bytes) -> None:
        """Serve the client until the session ends; then close the Backend."""
        try:
            self._report_parameters()
            self._conversation.send(BackendKeyData(pid, secret))
            self._send_ready()
            while self._serve_one():
                pass
        except TransportClosed:
            self._log.debug("client connection lost")
        except SessionEnd as end:
            self._tell_fatal(end.error)
        finally:
            self._end()

    def notice(self, notice: Notice) -> None:
        """Send a notice at once if client_min_messages allows it.

        The statement goes on, and the notice may tell the client what it is waiting for.
        """
        if is_wanted(notice.severity, self._parameters.raw("client_min_messages")):
            self._conversation.send(ErrorResponse(notice_fields(notice), notice=True))
            with suppress(TransportClosed):
                # As in PostgreSQL, a lost connection is noticed after the statement.
                self._conversation.transport.flush()

    # -- the loop

    def _serve_one(self) -> bool:
        frame = self._next_frame()
        self._ready = False
        if frame.kind == b"X":
            return False
        if frame.kind == b"S":
            self._sync()
        elif self._skipping or frame.kind in _SKIPPED:
            pass
        elif frame.kind == b"Q":
            self._simple(frame)
        elif frame.kind == b"F":
            refusal = FeatureNotSupportedError(
                "fastpath function calls are not supported"
            )
            self._fail(refusal)
            self._send_ready()
        elif frame.kind == b"p":
            error = ProtocolViolation(f"invalid frontend message type {frame.kind[0]}")
            raise SessionEnd(error)
        else:
            self._extended_message(frame)
        return True

    def _next_frame(self) -> Frame:
        timeout_ms = self._idle_timeout_ms() if self._ready else 0
        try:
            return self._conversation.next_frame(
                timeout_ms / 1000 if timeout_ms > 0 else None
            )
        except ProtocolViolation as error:
            raise SessionEnd(error) from None
        except ReadTimeout:
            raise SessionEnd(self._idle_error()) from None
        except TransportClosed:
            # A reader that is woken by a shutdown sees the end of the stream, too.
            if self.interrupts.terminating:
                self.interrupts.check()
            if self._transaction.in_block:
                self._log.info(
                    "unexpected EOF on client connection with an open transaction"
                )
            raise

    def _idle_timeout_ms(self) -> int:
        if self._transaction.in_block:
            return self._parameters.number("idle_in_transaction_session_timeout")
        return self._parameters.number("idle_session_timeout")

    def _idle_error(self) -> UsageError:
        if self._transaction.in_block:
            return UsageError(
                "terminating connection due to idle-in-transaction timeout",
                sqlstate="25P03",
            )
        return UsageError(
            "terminating connection due to idle-session timeout", sqlstate="57P05"
        )

    def _extended_message(self, frame: Frame) -> None:
        try:
            if self._replication is not None:
                raise ProtocolViolation(
                    "extended query protocol not supported in a replication connection"
                )
            timeout_ms = self._parameters.number("statement_timeout")
            self._watch_transaction()
            with self.interrupts.running(timeout_ms):
                self._extended.handle(read_frontend(frame))
        except (TransportClosed, SessionEnd):
            raise
        except Exception as error:
            self._fail(error)
            self._skipping = True

    def _sync(self) -> None:
        self._skipping = False
        self._finish()
        self._send_ready()

    def _finish(self) -> None:
        """Commit an implicit transaction at the end of a query string or at Sync."""
        try:
            with self.interrupts.running():
                self._transaction.finish()
        except (TransportClosed, SessionEnd):
            raise
        except Exception as error:
            self._fail(error)
        if not self._transaction.in_block:
            self._table.close_portals()

    # -- simple query

    def _simple(self, frame: Frame) -> None:
        statement: StatementText | None = None
        # Every simple query drops the unnamed statement and portal.
        self._table.deallocate("")
        self._table.close_portal("")
        try:
            message = read_frontend(frame)
            assert isinstance(message, Query)
            if self._replication is not None:
                self._replication.next_query()
            encoding = self._parameters.raw("client_encoding")
            text = decode_text(message.sql, encoding)
            self._note_query(text)
            if self._replication is not None and is_replication_command(text):
                self._replicate(self._replication, text)
                self._send_ready()
                return
            statements = self._backend.parse_string(text)
            if not statements:
                self._conversation.send(Signal.EMPTY_QUERY)
            kind = (
                TransactionKind.STRING
                if len(statements) > 1
                else TransactionKind.STATEMENT
            )
            for statement in statements:
                self._simple_statement(statement, kind, statement is statements[-1])
        except (TransportClosed, SessionEnd):
            raise
        except Exception as error:
            self._fail(error, offset=0 if statement is None else statement.offset)
        self._finish()
        self._send_ready()

    def _replicate(self, replication: ReplicationRunner, text: str) -> None:
        is_logged = self._parameters.enabled("log_replication_commands")
        log = self._log.info if is_logged else self._log.debug
        log(f"received replication command: {text}")
        with self.interrupts.running():
            outcome = replication.run(text, self._transaction)
        self._send_outcome(outcome)
        self._conversation.send(CommandComplete(outcome.tag))

    def _simple_statement(
        self, statement: StatementText, kind: TransactionKind, is_last: bool
    ) -> None:
        timeout_ms = self._parameters.number("statement_timeout")
        self._watch_transaction()
        with self.interrupts.running(timeout_ms):
            prepared = self._executor.prepare(statement.text, (), kind)
            if prepared.param_oids:
                raise UsageError("there is no parameter $1", sqlstate="42P02")
            tag = self._run_simple(prepared, kind)
            if is_last:
                # CommandComplete must not be sent before the commit.
                self._transaction.finish()
        self._conversation.send(CommandComplete(tag))

    def _run_simple(self, prepared: PreparedStatement, kind: TransactionKind) -> str:
        # The columns are not described before the run, so they are computed only once.
        return self._send_outcome(self._executor.run(prepared, (), (), kind))

    def _send_outcome(self, outcome: Outcome) -> str:
        """Send the notices and rows of an Outcome; return the command tag."""
        for notice in outcome.notices:
            self.notice(notice)
        if outcome.input is not None:
            rows = receive_copy(
                outcome.input, self._conversation, check=self.interrupts.check
            )
            return f"{outcome.tag} {rows}"
        if outcome.fields is None:
            return outcome.tag
        if outcome.copy is not None:
            rows = send_copy(
                outcome,
                self._conversation.transport,
                encoding=self._parameters.raw("client_encoding"),
                check=self.interrupts.check,
            )
            return f"{outcome.tag} {rows}"
        # The client has not been told any other fields before, so the Outcome's are sent.
        formats = (Format.TEXT,) * len(outcome.fields)
        stream = RowStream(outcome, formats)
        try:
            self._conversation.send(RowDescription(outcome.fields, formats))
            rows, _ = stream.send(
                self._conversation.transport,
                0,
                encoding=self._parameters.raw("client_encoding"),
                check=self.interrupts.check,
            )
        finally:
            stream.close()
        return completion_tag(outcome, rows)

    # -- what the client is told

    def _send_ready(self) -> None:
        self._report_parameters()
        # As in PostgreSQL, an error stops the timer of transaction_timeout.
        if self._transaction.in_block and not self._transaction.failed:
            self._watch_transaction()
        else:
            self.interrupts.watch_transaction(0)
        self._conversation.send(ReadyForQuery(self._transaction.status))
        self._ready = True

    def _watch_transaction(self) -> None:
        self.interrupts.watch_transaction(
            self._parameters.number("transaction_timeout")
        )

    def _report_parameters(self) -> None:
        for name, value in self._parameters.changes():
            self._conversation.send(ParameterStatus(name, value))

    def _fail(self, error: Exception, *, offset: int = 0) -> None:
        ours = as_ours(error)
        if ours is error:
            self._log.error(ours.message, error=ours, sqlstate=ours.sqlstate)
        else:
            self._log.error("internal error", exc_info=error)
        self._conversation.send(ErrorResponse(error_fields(ours, offset=offset)))
        self._table.close_portals()
        for step in (self._transaction.fail, self._backend.drop_temporary):
            try:
                step()
            except Exception as failure:
                # The client already knows that the statement has failed.
                self._log.error("could not roll back", exc_info=failure)

    def _tell_fatal(self, error: Wal2LakeError) -> None:
        self._log.critical(error.message, error=error, sqlstate=error.sqlstate)
        try:
            self._conversation.send(
                ErrorResponse(error_fields(error, severity="FATAL"))
            )
            self._conversation.transport.flush()
        except TransportClosed:
            pass

    def _end(self) -> None:
        self.interrupts.watch_transaction(0)
        for step in (
            self._table.close_portals,
            self._transaction.close,
            self._backend.close,
            *(() if self._replication is None else (self._replication.close,)),
        ):
            try:
                step()
            except Exception as failure:
                self._log.error("could not end the session", exc_info=failure)
