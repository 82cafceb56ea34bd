"""One libpq connection, blocking, simple query protocol, text rows.

``connect`` adds to the user's conninfo what a PostgreSQL subscriber adds. The output settings
that make text canonical (ISO dates, UTC, shortest floats, hex bytea, names quoted only
where necessary, UTF-8 unless the database's encoding is SQL_ASCII) follow the user's own
``options``. application_name is set unless the user has set it. With ``replication=True`` the
server process is a walsender that accepts replication commands and simple queries.

With ``must_use_password`` the conninfo must contain a password and the server must request
it. A subscription's owner who is not a superuser must not use connections that the node's OS
user can open without one (trust, peer, .pgpass).

Rows are tuples of ``str | None``; the caller parses the values.

libpq waits for an answer as long as TCP does: a quarter of an hour if a firewall has silently
dropped the connection, and for ever if the server hangs. Callers that cannot wait as long open a
session with an answer timeout; after a timeout the session is unusable. Callers whose wait another
thread may end open a session with a ``check``.

Source: PostgreSQL manual, 32.1 (libpq connection), libpqwalreceiver.c.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Final

from psycopg import Error, conninfo, pq

from wal2lake.errors import PublisherError, UsageError
from wal2lake.pg.credentials import (
    DEFAULT_SECONDS,
    PASSWORD_COMMAND,
    command_of,
    parse_command,
    passfile_hint,
    read_password,
    without_command,
)
from wal2lake.pg.waiting import (
    Check,
    give_up,
    has_failed,
    readable,
    wait_ready,
)

OUTPUT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "extra_float_digits": "3",
        "timezone": "UTC",
        "bytea_output": "hex",
        # Affects regclass, regproc etc., and expressions of defaults and row filters.
        "quote_all_identifiers": "off",
        # One session writes expressions of row filters, and another one reads them.
        "standard_conforming_strings": "on",
        "array_nulls": "on",
    }
)
"""Settings that make text canonical whatever the defaults of the server, database or role.

The list has all settings of PostgreSQL 18 that change the text of a stored value, except
lc_monetary (money keeps the publisher's format, as PostgreSQL's subscriber receives it) and
client_encoding and search_path, which ``connect`` sets itself."""

_OPTIONS: Final = " ".join(f"-c {k}={v}" for k, v in OUTPUT_SETTINGS.items())

_POOLERS_REFUSAL: Final = "unsupported startup parameter"
"""PgBouncer's error for ``replication`` before 1.23, and for ``options`` before 1.20."""

CONNECT_TIMEOUT: Final = "PGCONNECT_TIMEOUT"
"""libpq's environment variable, used if the conninfo has no connect_timeout."""

_INTEGER: Final = re.compile(r"\s*[-+]?[0-9]+\s*\Z", re.ASCII)
"""An integer in libpq's syntax (strtol)."""

_MASK: Final = "********"

_WRITES_A_FILE: Final = "sslkeylogfile"

PASSWORD_REQUIRED: Final = "2F003"
"""S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED."""

Rows = list[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class DescribedColumn:
    """A column of a query's result, from RowDescription."""

    table: int
    """OID of the table that the column comes from; 0 if there is none or the server does
    not report it."""
    number: int
    """pg_attribute.attnum in the table."""
    name: str
    type_oid: int
    """OID of the type; for a domain, of its base type."""
    typmod: int


def parse_conninfo(text: str) -> dict[str, str]:
    """Return the keywords of a conninfo string or URI, except for password_command.

    Raises UsageError (42601) with libpq's text if the string is malformed.
    """
    command = command_of(text)
    try:
        parsed = conninfo.conninfo_to_dict(without_command(text))
    except Error as error:
        raise UsageError(
            f"invalid connection string syntax: {str(error).strip()}",
            sqlstate="42601",
        ) from None
    if command is not None:
        parse_command(command)
        if parsed.get("password"):
            raise UsageError(
                'connection options "password" and "password_command" are mutually'
                " exclusive",
                sqlstate="42601",
            )
    return {key: str(value) for key, value in parsed.items() if value is not None}


def check_password_given(text: str) -> None:
    """Raise UsageError (2F003) unless the conninfo contains a password.

    Also raises UsageError (42501) for an option that writes a file or runs a program, which
    happens as the node's OS user. Source: libpqrcv_check_conninfo.
    """
    parsed = parse_conninfo(text)
    check_no_program(text)
    if _WRITES_A_FILE in parsed:
        raise UsageError(
            f'permission denied to set connection option "{_WRITES_A_FILE}"',
            sqlstate="42501",
        )
    if not parsed.get("password"):
        raise UsageError(
            "password is required",
            sqlstate=PASSWORD_REQUIRED,
            detail="Non-superusers must provide a password in the connection string.",
        )


def check_no_program(text: str) -> None:
    """Raise UsageError (42501) if the conninfo names a program to run."""
    if command_of(text) is not None:
        raise UsageError(
            f'permission denied to set connection option "{PASSWORD_COMMAND}"',
            sqlstate="42501",
            detail="It runs a program as the operating system's user of the node, which only"
            " a superuser may have done, for a subscription whose owner is one or that does"
            " not require a password.",
        )


_SECRETS: Final = (b"scram_client_key", b"scram_server_key")
"""libpq 18 does not mark these as secrets; the first one is as good as a password."""


def redact(text: str) -> str:
    """Return a conninfo string or URI that may be displayed.

    The text is unchanged if it contains no secret (libpq's mark). Otherwise each secret
    becomes ``********``, and a URI becomes a keyword string.
    """
    command = command_of(text)
    try:
        options = pq.Conninfo.parse(without_command(text).encode())
    except Error:
        return _MASK
    shown = {
        option.keyword.decode(): _MASK
        if option.dispchar == b"*" or option.keyword in _SECRETS
        else option.val.decode(errors="replace")
        for option in options
        if option.val is not None
    }
    if command is None and _MASK not in shown.values():
        return text
    masked = conninfo.make_conninfo("", **shown)
    return masked if command is None else f"{masked} {PASSWORD_COMMAND}={_MASK}".strip()


def limit_connecting(milliseconds: int) -> dict[str, str]:
    """Set the connect timeout for this process and the processes that it starts.

    A connect_timeout in the conninfo or in the operator's environment takes precedence.
    Returns the environment variable in force, for the environment of other processes.
    """
    # libpq counts whole seconds.
    seconds = os.environ.get(CONNECT_TIMEOUT) or str(-(-milliseconds // 1000))
    limit = {CONNECT_TIMEOUT: seconds}
    os.environ.update(limit)
    return limit


class Session:
    """A connection to a server. Not thread-safe."""

    def __init__(
        self,
        pgconn: pq.abc.PGconn,
        answer_timeout_seconds: float | None = None,
        check: Check | None = None,
    ) -> None:
        """Take an open connection; callers use ``connect``."""
        self._pgconn = pgconn
        self._answer_seconds = answer_timeout_seconds
        self._check_wait = check
        self._unanswered = False

    @property
    def pgconn(self) -> pq.abc.PGconn:
        """The libpq connection, for modules of this room only."""
        return self._pgconn

    @property
    def unanswered(self) -> bool:
        """True if the last statement's outcome is unknown: no answer came, or none in time."""
        return self._unanswered

    @property
    def server_version(self) -> int:
        """The version as a number, for example 180004."""
        return self._pgconn.server_version

    @property
    def backend_pid(self) -> int:
        """The server process's pid, as reported when the connection was made."""
        return self._pgconn.backend_pid

    @property
    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._pgconn.socket

    def query(self, sql: str, *, patient: bool = False) -> Rows:
        """Run statements and return the last one's rows. Raises PublisherError if one fails.

        ``patient`` switches the answer timeout off, for statements that wait for other
        sessions on the server.
        """
        result = self._run(sql, patient=patient)
        rows: Rows = []
        for i in range(result.ntuples):
            cells = (result.get_value(i, j) for j in range(result.nfields))
            try:
                rows.append(tuple(None if c is None else c.decode() for c in cells))
            except UnicodeDecodeError:
                # A database of encoding SQL_ASCII may have such names and expressions.
                raise PublisherError(
                    'invalid byte sequence for encoding "UTF8" in the publisher\'s catalog',
                    sqlstate="22021",
                ) from None
        return rows

    def execute(self, sql: str, *, patient: bool = False) -> str:
        """Run statements like ``query``, and return the last command tag."""
        status = self._run(sql, patient=patient).command_status
        return status.decode() if status else ""

    def analyse(self, sql: str) -> None:
        """Have the server analyse one query (Parse) without planning it.

        The server rejects unknown or forbidden objects, and locks the named tables until the
        transaction ends.
        """
        self._run(sql, analyse=True)

    def describe(self, sql: str) -> list[DescribedColumn]:
        """Analyse one query, and return its result columns."""
        self.analyse(sql)
        try:
            result = self._pgconn.describe_prepared(b"")
        except Error as error:
            raise self._failure(error) from None
        result = self._check(result, pq.ExecStatus.COMMAND_OK)
        return [
            DescribedColumn(
                result.ftable(i),
                result.ftablecol(i),
                (result.fname(i) or b"").decode(errors="replace"),
                result.ftype(i),
                result.fmod(i),
            )
            for i in range(result.nfields)
        ]

    def value(self, sql: str) -> str | None:
        """Return the first value of the first row; None if there is no row."""
        rows = self.query(sql)
        return rows[0][0] if rows else None

    def copy_out(self, sql: str, *, block_bytes: int) -> Iterator[bytes]:
        """Yield the output of COPY ... TO STDOUT in blocks of whole CopyData messages.

        Each block except the last has at least ``block_bytes``.
        """
        for block, _ in self.copy_out_messages(sql, block_bytes=block_bytes):
            yield block

    def copy_out_messages(
        self, sql: str, *, block_bytes: int
    ) -> Iterator[tuple[bytes, list[int]]]:
        """Yield the blocks of ``copy_out``, each with the sizes of its messages."""
        self._run(sql, expect=pq.ExecStatus.COPY_OUT)
        pgconn = self._pgconn
        get = pgconn.get_copy_data
        block, has_more = bytearray(), True
        sizes: list[int] = []
        append = sizes.append
        while has_more:
            try:
                # Each message is one row, so the loop does nothing else. The memory of
                # ``data`` is libpq's and is released at once (see CopyBothStream).
                while len(block) < block_bytes:
                    size, data = get(0)
                    if size < 0:
                        has_more = False
                        break
                    block += data
                    append(size)
            except Error as error:
                raise self._failure(error) from None
            if block:
                yield bytes(block), sizes.copy()
                block.clear()
                sizes.clear()
        self._check(pgconn.get_result(), pq.ExecStatus.COMMAND_OK)
        while pgconn.get_result() is not None:
            pass

    def is_alive(self) -> bool:
        """Return False once the server has closed the connection. Does not wait."""
        try:
            if readable([self.fileno], 0):
                self._pgconn.consume_input()
        except (Error, OSError, ValueError):
            return False
        return self._pgconn.status == pq.ConnStatus.OK

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self._pgconn.finish()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        sql: str,
        *,
        expect: pq.ExecStatus | None = None,
        patient: bool = False,
        analyse: bool = False,
    ) -> pq.abc.PGresult:
        self._unanswered = True
        text = sql.encode()
        try:
            if self._answer_seconds is not None or self._check_wait is not None:
                if analyse:
                    self._pgconn.send_prepare(b"", text)
                else:
                    self._pgconn.send_query(text)
                result = self._answer(None if patient else self._answer_seconds)
            elif analyse:
                result = self._pgconn.prepare(b"", text)
            else:
                result = self._pgconn.exec_(text)
        except Error as error:
            raise self._failure(error) from None
        if expect is not None:
            return self._check(result, expect)
        return self._check(result, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)

    def _answer(self, seconds: float | None) -> pq.abc.PGresult | None:
        """Wait for the answer, and return the last result as ``exec_`` does.

        Raises PublisherError after ``seconds``, and passes on what the check raises. After
        either the session is unusable.
        """
        last = None
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            while self._pgconn.is_busy():
                try:
                    ready = wait_ready(
                        self.fileno, deadline=deadline, check=self._check_wait
                    )
                except BaseException:
                    self._unanswered = not give_up(self._pgconn)
                    raise
                if not ready:
                    raise PublisherError(
                        f"the server has not answered within {seconds:g} seconds",
                        sqlstate="08006",
                        hint="Look at the network and at the server: it has taken the"
                        " statement, and says nothing.",
                    )
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
            if result is None or result.status == pq.ExecStatus.COPY_OUT:
                return result or last
            last = result

    def _check(
        self, result: pq.abc.PGresult | None, *expected: pq.ExecStatus
    ) -> pq.abc.PGresult:
        if result is None:
            raise self._failure(None)
        if result.status in expected:
            self._unanswered = False
            return result
        self._unanswered = not has_failed(result)
        raise result_error(result, self._pgconn)

    def _failure(self, error: Error | None) -> PublisherError:
        text = self._pgconn.get_error_message() or str(error or "connection lost")
        return PublisherError(text.strip(), sqlstate="08006")


def result_error(result: pq.abc.PGresult, pgconn: pq.abc.PGconn) -> PublisherError:
    """Convert a failed result to PublisherError, with the server's fields."""

    def field(code: pq.DiagnosticField) -> str | None:
        value = result.error_field(code)
        return value.decode(errors="replace") if value else None

    message = field(pq.DiagnosticField.MESSAGE_PRIMARY)
    if message is None:
        message = pgconn.get_error_message() or "unexpected result from the server"
    return PublisherError(
        message.strip(),
        sqlstate=field(pq.DiagnosticField.SQLSTATE) or "08006",
        detail=field(pq.DiagnosticField.MESSAGE_DETAIL),
        hint=field(pq.DiagnosticField.MESSAGE_HINT),
        context=field(pq.DiagnosticField.CONTEXT),
    )


def open_pgconn(text: str, check: Check | None = None) -> pq.abc.PGconn:
    """Connect without blocking the other threads of this process.

    libpq's blocking call holds the interpreter until the server answers. libpq applies
    connect_timeout only in the blocking call, so this function applies connect_timeout
    (seconds, for all hosts together; 0: no limit), or else PGCONNECT_TIMEOUT. Raises
    UsageError with libpq's text if the value is not a number. ``check`` may end the wait.
    """
    parameters = parse_conninfo(text)
    seconds = _connect_seconds(parameters)
    deadline = time.monotonic() + seconds if seconds > 0 else None
    pgconn = pq.PGconn.connect_start(text.encode())
    state = pq.PollingStatus.WRITING
    while pgconn.status != pq.ConnStatus.BAD and state != pq.PollingStatus.OK:
        writing = state != pq.PollingStatus.READING
        try:
            ready = wait_ready(
                pgconn.socket, writing=writing, deadline=deadline, check=check
            )
        except BaseException:
            pgconn.finish()
            raise
        if not ready:
            pgconn.finish()
            raise PublisherError(
                "connection to server failed: timeout expired",
                sqlstate="08006",
                hint="The longest wait is connect_timeout in the connection string, or"
                f" else {CONNECT_TIMEOUT} in the environment, or else"
                ' "subscription.connect_timeout_ms".',
            )
        state = pq.PollingStatus(pgconn.connect_poll())
    if pgconn.status != pq.ConnStatus.OK:
        message = pgconn.get_error_message().strip()
        pgconn.finish()
        pooler = _POOLERS_REFUSAL in message
        if not pooler:
            hint = passfile_hint(message, parameters)
            raise PublisherError(message, sqlstate="08006", hint=hint)
        raise PublisherError(
            message,
            sqlstate="08006",
            hint="A connection pooler (PgBouncer) has answered, and does not pass on what"
            " replication needs. Connect to the server itself.",
        )
    pgconn.nonblocking = 0
    return pgconn


def _connect_seconds(parameters: Mapping[str, str]) -> int:
    """Return the time for a connection; 0 for no limit."""
    timeout = parameters.get("connect_timeout")
    if timeout is None:
        timeout = os.environ.get(CONNECT_TIMEOUT) or "0"
    if not _INTEGER.match(timeout):
        raise UsageError(
            f'invalid integer value "{timeout}" for connection option "connect_timeout"'
        )
    return int(timeout)


_KEEPALIVES: Final = {
    "keepalives_idle": "60",
    "keepalives_interval": "10",
    "keepalives_count": "6",
    "tcp_user_timeout": "120000",
}
"""The connection to a vanished peer fails after two minutes. The system's default is two hours,
for which a COPY would stand still."""


def connect(
    text: str,
    *,
    application_name: str,
    replication: bool = False,
    answer_timeout_seconds: float | None = None,
    must_use_password: bool = False,
    on_notice: Callable[[str], None] | None = None,
    check: Check | None = None,
) -> Session:
    """Open a connection. Raises PublisherError (08006) with libpq's text if that fails.

    A password_command is run first. The user's ``application_name``, ``connect_timeout``,
    keepalives and ``options`` are kept.
    ``must_use_password``: raise UsageError (2F003) if the conninfo has no password or the
    server did not request it. ``answer_timeout_seconds``: longest wait for the answer to a
    statement; COPY data and START_REPLICATION, whose answers are streams, are exempt.
    ``check``: called during each wait, also while connecting; an exception that it raises
    ends the wait and the session.
    """
    parameters = parse_conninfo(text)
    own = parameters.pop("options", "")
    parameters["options"] = f"{own} {_OPTIONS}".strip()
    parameters["client_encoding"] = "UTF8"
    parameters.setdefault("application_name", application_name)
    for name, value in _KEEPALIVES.items():
        parameters.setdefault(name, value)
    if replication:
        parameters["replication"] = "database"
    if must_use_password:
        check_password_given(text)
    command = command_of(text)
    if command is not None:
        seconds = _connect_seconds(parameters)
        parameters["password"] = read_password(
            command,
            timeout_seconds=seconds if seconds > 0 else DEFAULT_SECONDS,
            check=check,
        )
    pgconn = open_pgconn(conninfo.make_conninfo("", **parameters), check)
    if must_use_password and not pgconn.used_password:
        pgconn.finish()
        raise UsageError(
            "password is required",
            sqlstate=PASSWORD_REQUIRED,
            detail="Non-superuser cannot connect if the server does not request a"
            " password.",
            hint="Target server's authentication method must be changed, or set"
            " password_required=false in the subscription parameters.",
        )
    if on_notice is not None:
        # libpq passes a result; the caller wants its primary message.
        def forward(result: pq.abc.PGresult) -> None:
            primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            if primary:
                on_notice(primary.decode(errors="replace"))

        pgconn.notice_handler = forward
    else:
        pgconn.notice_handler = lambda result: None
    session = Session(pgconn, answer_timeout_seconds, check)
    # As in PostgreSQL's subscriber, no name may be resolved through a search path
    # (CVE-2018-1058).
    session.query("SELECT pg_catalog.set_config('search_path', '', false)")
    if pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII":
        # The server does not know the encoding of its text. With UTF8 it would fail at the
        # first invalid byte; unconverted, the column's policy decides.
        session.query("SET client_encoding TO 'SQL_ASCII'")
    return session
