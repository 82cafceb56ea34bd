"""A front door over a Backend that only pretends, and a client that speaks raw bytes.

FakeBackend's SQL:

    rows N                 N rows of (n int4, word text); word is NULL in every third
    echo                   one row of its int4 and text parameters $1, $2
    insert                 tag INSERT 0 3
    fail | bug             a Wal2LakeError, an exception that is none
    warn                   a notice of the context and one of the outcome
    wait [politely]        until cancelled: an error of the engine's, or 57014
    text 'x'               one text value
    select ...             one text value, for the questions SQLAlchemy asks first
    copy ...               COPIED, as CopyData
    version                a row with the fields that ``shape`` says at that time
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wal2lake.catalog import Role
from wal2lake.commands.tables.copying import copied_rows, forced_columns
from wal2lake.door import (
    AuthMethod,
    Door,
    Entrance,
    Listener,
    ListenerSettings,
    everybody,
)
from wal2lake.door.session.commands import parse_command
from wal2lake.errors import SqlSyntaxError, UndefinedObjectError, UsageError
from wal2lake.launch.listeners import open_listeners
from wal2lake.model import Oid
from wal2lake.sql.backend import (
    CopyRows,
    Notice,
    Outcome,
    Parameter,
    Prepared,
    ResultBatch,
    SessionContext,
    TransactionKind,
)
from wal2lake.sql.grammar import StatementText, parse, split_statements
from wal2lake.sql.grammar.copying import CopyTo, copy_options
from wal2lake.sql.parameters import canonical_encoding
from wal2lake.wire.frontback import (
    AuthenticationRequest,
    BackendMessage,
    BackendReader,
    ErrorResponse,
    FieldDescription,
    Format,
    FrontendMessage,
    ReadyForQuery,
    StartupMessage,
    write_frontend,
    write_startup,
)
from wal2lake.wire.scram import create_verifier

INT4 = 23
TEXT = 25
ROWS = (FieldDescription("n", INT4, 4), FieldDescription("word", TEXT))
_WORDS = (
    *(
        "",
        "a",
        "\\N",
        "\\.",
        "\\",
        '"',
        "'",
        ",",
        ";",
        "x",
        "NULL",
        " ",
        " a ",
        "é",
        "漢字",
    ),
    *(
        "\b\f\n\r\t\v",
        "a\tb",
        "a\nb",
        "a\rb",
        "\x01",
        "\x7f",
        '"a" "b"',
        "a,b;c|d",
        "a\\b",
    ),
)
COPIED: Mapping[str, Sequence[bytes | None]] = {
    "a": [*(word.encode() for word in _WORDS), None],
    "b": [None, *(b"%d" % number for number in range(len(_WORDS)))],
    'C "c",\\': [None, *(word.encode() for word in reversed(_WORDS))],
}
"""What COPY copies, whatever it is told to."""

PASSWORD = "sécret ‎ﬁ"  # SASLprep changes it: a mapped-away mark, a ligature


@dataclass(frozen=True, slots=True)
class FakePrepared:
    """What FakeBackend understood."""

    sql: str
    param_oids: tuple[int, ...]
    fields: tuple[FieldDescription, ...] | None


@dataclass(slots=True)
class Journal:
    """What reached the Backends, for tests to look at."""

    calls: list[str] = field(default_factory=list)
    contexts: list[SessionContext] = field(default_factory=list)
    shape: tuple[FieldDescription, ...] = (FieldDescription("v", INT4, 4),)
    waiting: threading.Event = field(default_factory=threading.Event)
    fail_commit: bool = False
    fail_rollback_to: bool = False


def int4(value: int | None, code: Format) -> bytes | None:
    if value is None:
        return None
    return struct.pack("!i", value) if code is Format.BINARY else b"%d" % value


class FakeBackend:
    """See the header."""

    def __init__(self, context: SessionContext, journal: Journal) -> None:
        self.context = context
        self.journal = journal
        self._cancelled = threading.Event()
        journal.contexts.append(context)

    def parse_string(self, sql: str) -> Sequence[StatementText]:
        """Find syntax errors in the session's own statements, and in those of the grammar."""
        statements = split_statements(sql)
        for statement in statements:
            try:
                parse_command(statement.text)
                if statement.text.split()[0].lower() in ("selekt", "create"):
                    parse(statement.text)
            except SqlSyntaxError as error:
                if error.position:
                    error.position += statement.offset
                    raise
            except UsageError:
                # It is reported when the statement's turn comes.
                pass
        return statements

    def prepare(self, sql: str, param_oids: Sequence[int]) -> FakePrepared:
        self.journal.calls.append(f"prepare {sql}")
        verb = sql.split()[0].lower()
        if verb == "rows":
            return FakePrepared(sql, (), ROWS)
        if verb == "echo":
            return FakePrepared(sql, (INT4, TEXT), ROWS)
        if verb in ("text", "select"):
            used = (TEXT,) * len(set(re.findall(r"\$\d+", sql)))
            return FakePrepared(sql, used, ROWS[1:])
        if verb == "version":
            return FakePrepared(sql, (), self.journal.shape)
        if verb == "wait":
            return FakePrepared(sql, (), ROWS)
        if verb in ("insert", "fail", "bug", "warn", "copy"):
            if verb == "copy":
                parse(sql)
            return FakePrepared(sql, (), None)
        error = SqlSyntaxError(f'syntax error at or near "{sql.split()[0]}"')
        error.position = 1
        raise error

    def execute(
        self,
        prepared: Prepared,
        parameters: Sequence[Parameter],
        result_formats: Sequence[Format],
    ) -> Outcome:
        assert isinstance(prepared, FakePrepared)
        self.journal.calls.append(f"execute {prepared.sql}")
        verb, _, argument = prepared.sql.partition(" ")
        verb = verb.lower()
        if verb == "rows":
            return Outcome("SELECT", ROWS, self._rows(int(argument), result_formats))
        if verb == "echo":
            columns = tuple([p.value] for p in parameters)
            return Outcome("SELECT", ROWS, iter([ResultBatch(1, columns)]))
        if verb == "text":
            value = argument.strip("'").encode()
            return Outcome("SELECT", ROWS[1:], iter([ResultBatch(1, ([value],))]))
        if verb == "select":
            if "pg_type" in argument:
                return Outcome("SELECT", ROWS[1:])
            value = b"PostgreSQL 18.0" if "version" in argument else b"public"
            return Outcome("SELECT", ROWS[1:], iter([ResultBatch(1, ([value],))]))
        if verb == "version":
            shape = self.journal.shape
            values = tuple([b"1"] for _ in shape)
            return Outcome("SELECT", shape, iter([ResultBatch(1, values)]))
        if verb == "copy":
            return self._copied(prepared.sql)
        if verb == "wait":
            self._wait(argument == "politely")
        if verb == "fail":
            raise UndefinedObjectError(
                'relation "x" does not exist',
                sqlstate="42P01",
                detail="a detail",
                hint="a hint",
                context="a context",
            )
        if verb == "bug":
            raise ZeroDivisionError("a secret")
        if verb == "warn":
            self.context.notice(
                Notice("early", severity="WARNING", sqlstate="55000", hint="look")
            )
            return Outcome("WARN", notices=(Notice("late"),))
        return Outcome("INSERT 0 3")

    def _copied(self, sql: str) -> Outcome:
        """Of a table, or of any query, the rows of ``COPIED``."""
        statement = parse(sql)
        assert isinstance(statement, CopyTo)
        names = tuple(COPIED)
        name = None if statement.table is None else statement.table.name
        if name is not None:
            copied_rows(statement, "public", name, names)
        options = copy_options(statement.options, canonical_encoding)
        chosen = statement.columns or names
        columns = None if name is None else names
        forced = forced_columns(options, chosen, columns, name)
        fields = tuple(FieldDescription(one, TEXT) for one in chosen)
        batch = ResultBatch(len(COPIED["a"]), tuple(COPIED[one] for one in chosen))
        return Outcome("COPY", fields, iter([batch]), copy=CopyRows(options, forced))

    def _wait(self, polite: bool) -> None:
        self._cancelled.clear()
        self.journal.waiting.set()
        if not self._cancelled.wait(10):
            raise AssertionError("nobody cancelled")
        if polite:
            raise UsageError("cancelled", sqlstate="57014")
        raise RuntimeError("the engine was interrupted")

    def _rows(self, count: int, formats: Sequence[Format]) -> Iterator[ResultBatch]:
        code = formats[0] if formats else Format.TEXT
        try:
            for start in range(0, count, 1000):
                numbers = range(start, min(count, start + 1000))
                words = [None if n % 3 == 2 else b"word %d" % n for n in numbers]
                values = [int4(n, code) for n in numbers]
                yield ResultBatch(len(numbers), (values, words))
        finally:
            self.journal.calls.append("closed")

    def begin(self, kind: TransactionKind) -> None:
        self.journal.calls.append(f"begin {kind.value}")

    def commit(self) -> None:
        self.journal.calls.append("commit")
        if self.journal.fail_commit:
            raise UsageError("could not serialize access", sqlstate="40001")

    def prepare_transaction(self, gid: str) -> None:
        self.journal.calls.append(f"prepare {gid}")
        if gid == "refused":
            raise UsageError("prepared transactions are disabled", sqlstate="55000")

    def finish_prepared(self, gid: str, *, commit: bool) -> None:
        verb = "commit" if commit else "rollback"
        self.journal.calls.append(f"{verb} prepared {gid}")
        if gid == "x" and f"prepare {gid}" not in self.journal.calls:
            raise UsageError(
                f'prepared transaction with identifier "{gid}" does not exist',
                sqlstate="42704",
            )

    def rollback(self) -> None:
        self.journal.calls.append("rollback")

    def import_snapshot(self, name: str) -> None:
        self.journal.calls.append(f"import {name}")

    def savepoint(self, depth: int) -> None:
        self.journal.calls.append(f"savepoint {depth}")

    def rollback_to(self, depth: int) -> None:
        self.journal.calls.append(f"rollback to {depth}")
        if self.journal.fail_rollback_to:
            raise UsageError("cannot undo", sqlstate="0A000")

    def release(self, depth: int) -> None:
        self.journal.calls.append(f"release {depth}")

    def become(self, role: str | None, *, authorization: bool) -> bool:
        self.journal.calls.append(f"become {role}")
        if role not in (None, "alice"):
            raise UsageError(
                f'permission denied to set role "{role}"', sqlstate="42501"
            )
        return True

    def discard_sequences(self) -> None:
        self.journal.calls.append("discard sequences")

    def drop_temporary(self) -> None:
        pass

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self.journal.calls.append("close")


ROLES = {
    "alice": Role(
        Oid(10),
        "alice",
        True,
        str(create_verifier(PASSWORD, b"0123456789abcdef", iterations=64)),
    ),
    "nologin": Role(Oid(11), "nologin", False, None),
}
"""Few iterations: a test must not spend its time on hashing."""


@dataclass(frozen=True, slots=True)
class FakeDoor:
    """A running listener."""

    listener: Listener
    journal: Journal
    door: Door

    @property
    def port(self) -> int:
        return self.listener.address[1]

    def conninfo(self, **changes: object) -> dict[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "alice",
            "password": PASSWORD,
            "dbname": "lake",
            "connect_timeout": 10,
            **changes,
        }

    def open(self) -> None:
        self.listener.ready(
            self.door, lambda context: FakeBackend(context, self.journal)
        )


@contextmanager
def open_door(
    *,
    method: AuthMethod = AuthMethod.TRUST,
    settings: ListenerSettings | None = None,
    is_ready: bool = True,
    roles: Callable[[str], Role | None] = ROLES.get,
    may_connect: Callable[[Role], bool] = lambda role: True,
    entrance: Entrance | None = None,
) -> Iterator[FakeDoor]:
    """A listener on a free port, stopped at the end."""
    listening = open_listeners("127.0.0.1", 0)
    listener = Listener(
        listening,
        settings or ListenerSettings(),
        entrance or Entrance(everybody(method)),
    )
    door = Door("lake", roles, b"mock", may_connect=may_connect)
    fake = FakeDoor(listener, Journal(), door)
    listener.start()
    try:
        if is_ready:
            fake.open()
        yield fake
    finally:
        listener.stop(timeout_s=5)


class RawClient:
    """A client that sends what it is told to and keeps what it gets."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._reader = BackendReader()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def start(self, *, minor: int = 0, **parameters: str) -> list[BackendMessage]:
        """Send a StartupMessage; everything up to ReadyForQuery."""
        given = {"user": "alice", "database": "lake", **parameters}
        pairs = {k.encode(): v.encode() for k, v in given.items()}
        self.socket.sendall(write_startup(StartupMessage(3, minor, pairs)))
        return self.until_ready()

    def send(self, *messages: FrontendMessage) -> None:
        self.socket.sendall(b"".join(map(write_frontend, messages)))

    def next(self) -> BackendMessage | None:
        """The next message; None: the connection was closed."""
        while (message := self._reader.next_message()) is None:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._reader.feed(data)
        return message

    def until_ready(self) -> list[BackendMessage]:
        """Everything up to ReadyForQuery, or the end of the connection."""
        found: list[BackendMessage] = []
        while (message := self.next()) is not None:
            found.append(message)
            if isinstance(message, ReadyForQuery):
                break
        return found

    def rest(self) -> list[BackendMessage]:
        """Everything up to the end of the connection."""
        found: list[BackendMessage] = []
        while (message := self.next()) is not None:
            found.append(message)
        return found


def errors(messages: Sequence[BackendMessage]) -> list[tuple[str, str, str]]:
    """(severity, SQLSTATE, message) of the errors among messages."""
    return [
        (m.fields.severity, m.fields.sqlstate, m.fields.message)
        for m in messages
        if isinstance(m, ErrorResponse) and not m.notice
    ]


def kinds(messages: Sequence[BackendMessage]) -> str:
    """Names of the messages, for comparing sequences."""
    return " ".join(
        m.name
        if hasattr(m, "name") and not re.match("ParameterStatus", type(m).__name__)
        else type(m).__name__
        for m in messages
    )


__all__ = [
    "AuthenticationRequest",
    "FakeDoor",
    "RawClient",
    "errors",
    "kinds",
    "open_door",
]
