"""Defines ``Backend``, the port between a client's session and the executor of its statements.

Comes in: one statement at a time, split off its query string, with its parameters; and the begin
and end of transactions. Goes out: an ``Outcome``. The session (``door.session``) is the only
caller. It knows no SQL beyond transaction control and session parameters; a backend knows no
protocol.

The calls come in this order, all except ``cancel`` from the session's thread:

    factory(context)
      begin(kind)                      before the first statement of each transaction
        prepare(sql, param_oids)       any number of times
        execute(prepared, ...)         a Prepared may be executed several times, also in
                                       later transactions
        Outcome.batches                read to the end, or closed early
        savepoint, rollback_to, release   only inside a BLOCK
      commit() | rollback()            also for implicit transactions
      prepare_transaction(gid)         in place of commit
      finish_prepared(gid, ...)        outside of transactions
    close()

Every failure is a Wal2LakeError, which the client gets with all its fields. The position of a
SqlSyntaxError counts from the start of the statement. Any other exception is a bug of the node: the
client gets XX000 "internal error", the log gets the traceback, and the session continues. After an
exception in a transaction the session at once calls ``rollback``, or, if there is a savepoint,
``rollback_to`` for the innermost one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from wal2lake.errors import Wal2LakeError
from wal2lake.sql.grammar import StatementText
from wal2lake.sql.grammar.copying import CopyOptions
from wal2lake.sql.parameters import Parameters
from wal2lake.wire.frontback import FieldDescription, Format


class TransactionKind(Enum):
    """The extent of a transaction. All kinds but STATEMENT may have several statements."""

    STATEMENT = "statement"
    """One statement that is alone in its query string."""
    STRING = "string"
    """A query string of several statements, which is one transaction as in PostgreSQL."""
    PIPELINE = "pipeline"
    """Messages of the extended protocol up to Sync: usually one statement, but the number of
    statements is known only at Sync."""
    BLOCK = "block"
    """BEGIN ... COMMIT. If an implicit transaction is open, the block continues it."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A NoticeResponse."""

    message: str
    severity: str = "NOTICE"
    """DEBUG, LOG, INFO, NOTICE or WARNING."""
    sqlstate: str = "00000"
    """00000 for notices, 01000 for warnings that have no code of their own."""
    detail: str | None = None
    hint: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One bound parameter. A ``value`` of None is NULL. Text is in UTF-8, whatever the client's
    encoding is."""

    value: bytes | None
    format: Format


@dataclass(frozen=True, slots=True)
class ResultBatch:
    """Some rows, by column. Each value is in the requested format; text is in UTF-8."""

    rows: int
    columns: tuple[Sequence[bytes | None], ...]
    texts: tuple[Any, ...] | None = None
    """Arrow binary arrays in place of ``columns``, for a COPY in text format."""


@dataclass(frozen=True, slots=True)
class CopyRows:
    """The form of the rows of a COPY.

    The batches have binary values for the binary format, and text for the other formats.
    """

    options: CopyOptions
    forced: tuple[bool, ...]
    """For each column, whether its values are always quoted (FORCE_QUOTE)."""


class CopyInput(Protocol):
    """A COPY ... FROM STDIN, which gets what the client sends."""

    @property
    def columns(self) -> int:
        """The number of columns."""
        ...

    @property
    def is_binary(self) -> bool:
        """Whether the format is binary."""
        ...

    def write(self, data: bytes) -> None:
        """Take the next bytes. Raises the error of the first row that has one."""
        ...

    def finish(self) -> int:
        """Store the rows; returns their number."""
        ...

    def failed(self, reason: str) -> Wal2LakeError:
        """Return the error of a COPY that the client has ended for this reason."""
        ...

    def close(self) -> None:
        """Discard what is not stored."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a statement. ``fields`` is None if the statement returns no rows."""

    tag: str
    """The command tag: ``INSERT 0 5``, ``CREATE TABLE``. The session appends the number of sent
    rows to a plain ``SELECT``."""
    fields: tuple[FieldDescription, ...] | None = None
    batches: Iterator[ResultBatch] = field(default_factory=lambda: iter(()))
    """The rows. They are read lazily, so a result of any size takes the memory of one batch. If the
    iterator has a ``close()``, the call stops unfinished work."""
    notices: tuple[Notice, ...] = ()
    copy: CopyRows | None = None
    """The form of the rows if they are sent as CopyData. The session appends their number to the
    tag."""

    input: CopyInput | None = None
    """The target of the client's rows. The session appends their number to the tag."""

    def close(self) -> None:
        """Stop the statement's work: the client needs no further rows."""
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()


class Prepared(Protocol):
    """An analysed statement. A backend may keep a plan of any form in it."""

    @property
    def param_oids(self) -> Sequence[int]:
        """The type OID of each of $1, $2 ..., for Describe and Bind."""
        ...

    @property
    def fields(self) -> Sequence[FieldDescription] | None:
        """The fields of the result, or None; may be computed at the first access."""
        ...


class Backend(Protocol):
    """Executes the statements of one session."""

    def parse_string(self, sql: str) -> Sequence[StatementText]:
        """Return the statements of a query string, without empty ones.

        Raises SqlSyntaxError with the position in the string. The session calls this before it
        executes the first statement, so an error in one of them lets none of them run.
        """
        ...

    def prepare(self, sql: str, param_oids: Sequence[int]) -> Prepared:
        """Analyse one statement; the type of a parameter with OID 0 is inferred."""
        ...

    def execute(
        self,
        prepared: Prepared,
        parameters: Sequence[Parameter],
        result_formats: Sequence[Format],
    ) -> Outcome:
        """Execute a statement.

        ``result_formats`` has one entry for each field of ``prepared``. If it is empty, all fields
        are text.
        """
        ...

    def begin(self, kind: TransactionKind) -> None:
        """Begin a transaction, with the modes of the transaction_* parameters.

        A call with STATEMENT while a PIPELINE is open says that the next statement is the only one
        of that transaction, which the backend may commit with the statement.
        """
        ...

    def commit(self) -> None:
        """Make the transaction durable. If this raises, the transaction has been rolled back."""
        ...

    def prepare_transaction(self, gid: str) -> None:
        """Make the transaction durable for ``finish_prepared``, which any session may call. If this
        raises, the transaction has been rolled back."""
        ...

    def finish_prepared(self, gid: str, *, commit: bool) -> None:
        """Commit a prepared transaction, or roll it back."""
        ...

    def rollback(self) -> None:
        """Undo the transaction. Called after any exception, also after one of ``begin``."""
        ...

    def import_snapshot(self, name: str) -> None:
        """Let the transaction read the state that the exporter of this snapshot reads.

        The transaction must not have read anything yet. Raises PostgreSQL's errors.
        """
        ...

    def savepoint(self, depth: int) -> None:
        """Set a savepoint; ``depth`` is the number of open savepoints, this one included."""
        ...

    def rollback_to(self, depth: int) -> None:
        """Undo all work after savepoint ``depth``. It stays open; later savepoints are removed.

        A backend that cannot undo work raises FeatureNotSupportedError if there is any to undo. The
        session then rolls back the whole transaction.
        """
        ...

    def release(self, depth: int) -> None:
        """Remove savepoint ``depth`` and later ones, and keep the work after them."""
        ...

    def become(self, role: str | None, *, authorization: bool) -> bool:
        """Execute SET ROLE, or with ``authorization`` SET SESSION AUTHORIZATION.

        A ``role`` of None is the role with which the session began. Return whether the role is a
        superuser; raise UsageError if the session may not become the role.
        """
        ...

    def discard_sequences(self) -> None:
        """Forget the values that the session has drawn from sequences (DISCARD SEQUENCES)."""
        ...

    def drop_temporary(self) -> None:
        """Drop the session's temporary replication slots.

        Called after a failed statement. At the end of the session ``close`` drops them.
        """
        ...

    def cancel(self) -> None:
        """Make a running call raise 57014 soon. Called from another thread; without a running call
        it does nothing."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The facts that a backend may read about its session."""

    pid: int
    """The session's number in pg_backend_pid() and CancelRequest."""
    user: str
    """The authenticated user."""
    database: str
    parameters: Parameters
    """The current values. Only the session's thread may read them."""
    notice: Callable[[Notice], None]
    """Sends a notice at once, before the outcome: for example, a warning before an error."""
    client_host: str
    client_port: int

    @property
    def session_user(self) -> str:
        """The user of SET SESSION AUTHORIZATION, or the authenticated user."""
        return self.parameters["session_authorization"] or self.user

    @property
    def current_user(self) -> str:
        """The role whose privileges apply: that of SET ROLE, or the session user."""
        role = self.parameters["role"]
        return self.session_user if role == "none" else role


BackendFactory = Callable[[SessionContext], Backend]
