"""The port between a client's session and whatever executes its statements.

In: one statement at a time, split off, with its parameters and the transaction it belongs to.
Out: an Outcome. The session (``door.session``) is the only caller and knows no SQL
beyond transaction control and session parameters; an implementation knows no protocol.

Calls come in this order, all from the session's thread except ``cancel``:

    factory(context)
      begin(kind)                      before the first statement of each transaction
        prepare(sql, param_oids)       any number; a Prepared may be executed often, later,
        execute(prepared, ...)         and in other transactions
        Outcome.batches                read to its end, or closed early
        savepoint, rollback_to, release   inside a BLOCK only
      commit() | rollback()            also for implicit transactions
      prepare_transaction(gid)         instead of commit
      finish_prepared(gid, ...)        outside of transactions
    close()

Every failure is a Wal2LakeError, shown to the client with all its fields; a
SqlSyntaxError's position counts in the statement given. Any other exception is our bug: the
client sees XX000 "internal error", the log sees the traceback, the session goes on.
After an exception in a transaction the session calls ``rollback`` at once, or, if there is a
savepoint, ``rollback_to`` the innermost one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from wal2lake.sql.grammar.copying import CopyOptions
from wal2lake.sql.parameters import Parameters
from wal2lake.wire.frontback import FieldDescription, Format


class TransactionKind(Enum):
    """Extents of a transaction; all but the first may hold several statements."""

    STATEMENT = "statement"
    """One statement, alone in its query string."""
    STRING = "string"
    """A query string of several statements: PostgreSQL makes it one transaction."""
    PIPELINE = "pipeline"
    """Extended messages up to Sync; usually one statement, which cannot be known before."""
    BLOCK = "block"
    """BEGIN ... COMMIT. If an implicit transaction is open, it becomes this."""


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
    """One bound parameter. ``value`` None is NULL; text is UTF-8, whatever the client's."""

    value: bytes | None
    format: Format


@dataclass(frozen=True, slots=True)
class ResultBatch:
    """Some rows, by column, each value in the format asked for (text: UTF-8)."""

    rows: int
    columns: tuple[Sequence[bytes | None], ...]
    texts: tuple[Any, ...] | None = None
    """Instead of ``columns``, for a COPY in text format: Arrow binary."""


@dataclass(frozen=True, slots=True)
class CopyRows:
    """How the rows of a COPY are written. The batches hold binary values for the binary
    format, and text for the others."""

    options: CopyOptions
    forced: tuple[bool, ...]
    """Which columns' values are quoted in any case (FORCE_QUOTE)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a statement. ``fields`` None: it returns no rows at all."""

    tag: str
    """The command tag: ``INSERT 0 5``, ``CREATE TABLE``. A plain ``SELECT`` gets the number of
    rows sent appended by the session."""
    fields: tuple[FieldDescription, ...] | None = None
    batches: Iterator[ResultBatch] = field(default_factory=lambda: iter(()))
    """Consumed lazily, so that a result of any size takes the memory of a batch; its
    ``close()``, if it has one, stops what is unfinished."""
    notices: tuple[Notice, ...] = ()
    copy: CopyRows | None = None
    """The rows go out as CopyData, in this manner; their number is appended to the tag."""

    def close(self) -> None:
        """The client wants no (more) rows."""
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()


class Prepared(Protocol):
    """A statement that was understood; may carry whatever plan the implementation likes."""

    @property
    def param_oids(self) -> Sequence[int]:
        """A type OID for each of $1, $2 ...; asked for by Describe and Bind."""
        ...

    @property
    def fields(self) -> Sequence[FieldDescription] | None:
        """The result's fields, or None; may be worked out when first read."""
        ...


class Backend(Protocol):
    """Executes the statements of one session."""

    def check_syntax(self, sql: str) -> None:
        """SqlSyntaxError for what is no statement; before anything of its string is run. Other
        errors, and those inside of a query, may wait for ``prepare``."""
        ...

    def prepare(self, sql: str, param_oids: Sequence[int]) -> Prepared:
        """Understand one statement; an OID of 0 leaves the parameter's type open."""
        ...

    def execute(
        self,
        prepared: Prepared,
        parameters: Sequence[Parameter],
        result_formats: Sequence[Format],
    ) -> Outcome:
        """Run it; ``result_formats`` has one entry per field of ``prepared``, or none: all of them
        are text."""
        ...

    def begin(self, kind: TransactionKind) -> None:
        """A transaction starts; its modes are the transaction_* parameters. Again with STATEMENT:
        one that is open as a PIPELINE ends with the statement that follows."""
        ...

    def commit(self) -> None:
        """Make it durable; if that raises, the transaction is rolled back already."""
        ...

    def prepare_transaction(self, gid: str) -> None:
        """Make it durable, to be finished by any session; if that raises, the transaction is
        rolled back already."""
        ...

    def finish_prepared(self, gid: str, *, commit: bool) -> None:
        """Commit what was prepared, or roll it back."""
        ...

    def rollback(self) -> None:
        """Undo it. Called after any exception, also after one that ``begin`` raised."""
        ...

    def import_snapshot(self, name: str) -> None:
        """The transaction, which has read nothing yet, reads what the one does that has exported
        this; raises what PostgreSQL does."""
        ...

    def savepoint(self, depth: int) -> None:
        """Mark this point of the block; ``depth`` counts the open marks, from 1."""
        ...

    def rollback_to(self, depth: int) -> None:
        """Undo what came after mark ``depth``, which stays; later ones are gone.

        An implementation that cannot undo raises FeatureNotSupportedError, if there is
        anything to undo; the session then rolls back the whole transaction.
        """
        ...

    def release(self, depth: int) -> None:
        """Forget mark ``depth`` and later ones, keeping the work."""
        ...

    def become(self, role: str | None, *, authorization: bool) -> bool:
        """May the session SET ROLE, or with ``authorization`` SET SESSION AUTHORIZATION? None
        is what it began with. Returns whether that is a superuser; raises UsageError."""
        ...

    def discard_sequences(self) -> None:
        """Forget the values that the session has taken of sequences."""
        ...

    def drop_temporary(self) -> None:
        """A statement has failed: the session's temporary replication slots go, as they do at
        its end."""
        ...

    def cancel(self) -> None:
        """From another thread: make a running call raise 57014 soon, or do nothing."""
        ...

    def close(self) -> None:
        """The session ends."""
        ...


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Facts about its session that a Backend may read."""

    pid: int
    """The session's number, as pg_backend_pid() and CancelRequest have it."""
    user: str
    """The authenticated user."""
    database: str
    parameters: Parameters
    """Live; only to be used from the session's thread."""
    notice: Callable[[Notice], None]
    """Send a notice now, ahead of the outcome (a warning before an error, say)."""
    client_host: str
    client_port: int

    @property
    def session_user(self) -> str:
        """The session user: SET SESSION AUTHORIZATION's, or the authenticated one."""
        return self.parameters["session_authorization"] or self.user

    @property
    def current_user(self) -> str:
        """The role whose privileges count: SET ROLE's, or the session user's."""
        role = self.parameters["role"]
        return self.session_user if role == "none" else role


BackendFactory = Callable[[SessionContext], Backend]
