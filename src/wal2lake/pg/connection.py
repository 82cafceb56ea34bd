"""One libpq connection, blocking, simple query protocol, text rows.

``connect`` adds what a PostgreSQL subscriber adds to the user's conninfo: the output
settings that make text canonical (ISO dates, UTC, shortest floats, hex bytea, names quoted only
where they must be, UTF-8 unless the database's encoding is SQL_ASCII) after the
user's own ``options``, and an application_name that the user's own wins over. With
``replication=True`` the session is a walsender that accepts replication commands and
simple queries.

With ``must_use_password`` the conninfo must hold a password and the server must ask for it: what
the node's own OS user may open (trust, peer, .pgpass) is not for owners of subscriptions who are no
superusers.

Rows come back as tuples of ``str | None``: the caller parses what it asked for.

libpq waits for an answer as long as TCP does, a quarter of an hour if a firewall has dropped the
connection in silence, and for ever if the server hangs. A session with an answer timeout is for
callers that cannot: it is of no use once the time has passed. One with a ``check`` is for callers
whom somebody may tell to stop waiting.

Source: PostgreSQL manual, 32.1 (libpq connection), libpqwalreceiver.c.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Final

from psycopg import Error, conninfo, pq

from wal2lake.errors import PublisherError, UsageError
from wal2lake.pg.waiting import Check, give_up, has_failed, wait_ready

OUTPUT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "extra_float_digits": "3",
        "timezone": "UTC",
        "bytea_output": "hex",
        # regclass, regproc and their kin, and expressions of defaults and row filters.
        "quote_all_identifiers": "off",
        # Expressions of row filters are written by one session and read by another one.
        "standard_conforming_strings": "on",
        "array_nulls": "on",
    }
)
"""Settings that make text canonical, whatever the server, the database or the role has as its
default: all settings of PostgreSQL 18 that change the text of a stored value, but for lc_monetary
(money is written in the publisher's own format, as PostgreSQL's subscriber receives it) and those
that ``connect`` sets by itself, client_encoding and search_path."""

_OPTIONS: Final = " ".join(f"-c {k}={v}" for k, v in OUTPUT_SETTINGS.items())

_POOLERS_REFUSAL: Final = "unsupported startup parameter"
"""PgBouncer's answer to ``replication`` before 1.23, and to ``options`` before 1.20."""

CONNECT_TIMEOUT: Final = "PGCONNECT_TIMEOUT"
"""libpq's environment variable for a conninfo that does not say connect_timeout."""

_INTEGER: Final = re.compile(r"\s*[-+]?[0-9]+\s*\Z", re.ASCII)
"""An integer in libpq's syntax (strtol)."""

_MASK: Final = "********"

_WRITES_A_FILE: Final = "sslkeylogfile"

PASSWORD_REQUIRED: Final = "2F003"
"""S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED."""

Rows = list[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class DescribedColumn:
    """A column of a query's result, as the server describes it before any row."""

    table: int
    """OID of the table that the column comes from; 0: no table's, or the server does not
    say."""
    number: int
    """pg_attribute.attnum in that table."""
    name: str
    type_oid: int
    """OID of the type; of a domain, the type under it."""
    typmod: int


def parse_conninfo(text: str) -> dict[str, str]:
    """The keywords of a conninfo string or URI; 42601 with libpq's text if malformed."""
    try:
        parsed = conninfo.conninfo_to_dict(text)
    except Error as error:
        raise UsageError(
            f"invalid connection string syntax: {str(error).strip()}",
            sqlstate="42601",
        ) from None
    return {key: str(value) for key, value in parsed.items() if value is not None}


def check_password_given(text: str) -> None:
    """2F003 unless the conninfo itself has a password (libpqrcv_check_conninfo); 42501 for
    an option that has libpq write a file, as the node's OS user."""
    parsed = parse_conninfo(text)
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


_SECRETS: Final = (b"scram_client_key", b"scram_server_key")
"""libpq 18 does not call these secrets; the first one is as good as a password."""


def redact(text: str) -> str:
    """A conninfo string or URI that may be shown: as it is, unless libpq finds something in it
    that it calls a secret. Then every one is ``********``, and a URI is keywords."""
    try:
        found = pq.Conninfo.parse(text.encode())
    except Error:
        return _MASK
    shown = {
        option.keyword.decode(): _MASK
        if option.dispchar == b"*" or option.keyword in _SECRETS
        else option.val.decode(errors="replace")
        for option in found
        if option.val is not None
    }
    if _MASK not in shown.values():
        return text
    return conninfo.make_conninfo("", **shown)


def limit_connecting(milliseconds: int) -> dict[str, str]:
    """How long connections of this process may take from here on, and those of the processes
    that it starts, unless their conninfo or the operator's environment says; returns what
    holds, for the environment of others."""
    # Whole seconds, as libpq counts.
    seconds = os.environ.get(CONNECT_TIMEOUT) or str(-(-milliseconds // 1000))
    limit = {CONNECT_TIMEOUT: seconds}
    os.environ.update(limit)
    return limit


class Session:
    """A connection. Not thread-safe."""

    def __init__(
        self,
        pgconn: pq.abc.PGconn,
        answer_timeout_seconds: float | None = None,
        check: Check | None = None,
    ) -> None:
        """Use ``connect``."""
        self._pgconn = pgconn
        self._answer_seconds = answer_timeout_seconds
        self._check_wait = check
        self._unanswered = False

    @property
    def pgconn(self) -> pq.abc.PGconn:
        """The libpq connection, for this room's own modules."""
        return self._pgconn

    @property
    def unanswered(self) -> bool:
        """Nobody knows whether the last statement was done: its answer did not come, or not
        in time."""
        return self._unanswered

    @property
    def server_version(self) -> int:
        """For instance 180004."""
        return self._pgconn.server_version

    @property
    def backend_pid(self) -> int:
        """The process that serves us, by what was said at connect."""
        return self._pgconn.backend_pid

    @property
    def fileno(self) -> int:
        """The socket."""
        return self._pgconn.socket

    def query(self, sql: str, *, patient: bool = False) -> Rows:
        """Run statements and return the last one's rows; PublisherError if refused.

        ``patient``: the server may have to wait for others before it answers, which the
        answer timeout is not about.
        """
        result = self._run(sql, patient=patient)
        rows: Rows = []
        for i in range(result.ntuples):
            cells = (result.get_value(i, j) for j in range(result.nfields))
            try:
                rows.append(tuple(None if c is None else c.decode() for c in cells))
            except UnicodeDecodeError:
                # A name or an expression in a database of encoding SQL_ASCII.
                raise PublisherError(
                    'invalid byte sequence for encoding "UTF8" in the publisher\'s catalog',
                    sqlstate="22021",
                ) from None
        return rows

    def execute(self, sql: str, *, patient: bool = False) -> str:
        """Run statements for their effect; returns the last command tag. See ``query``."""
        status = self._run(sql, patient=patient).command_status
        return status.decode() if status else ""

    def analyse(self, sql: str) -> None:
        """Have one query analysed (Parse): it is refused for what it names, and locks that until
        the transaction ends. It is not planned."""
        self._run(sql, analyse=True)

    def describe(self, sql: str) -> list[DescribedColumn]:
        """Analyse one query, and return the columns that it would have now."""
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
        """The single value of a single row."""
        rows = self.query(sql)
        return rows[0][0] if rows else None

    def copy_out(self, sql: str, *, block_bytes: int) -> Iterator[bytes]:
        """Yield the output of COPY ... TO STDOUT in blocks of whole CopyData messages. Each block
        but the last has at least ``block_bytes``."""
        for block, _ in self.copy_out_messages(sql, block_bytes=block_bytes):
            yield block

    def copy_out_messages(
        self, sql: str, *, block_bytes: int
    ) -> Iterator[tuple[bytes, list[int]]]:
        """The same, with the size of each message."""
        self._run(sql, expect=pq.ExecStatus.COPY_OUT)
        pgconn = self._pgconn
        get = pgconn.get_copy_data
        block, more = bytearray(), True
        sizes: list[int] = []
        append = sizes.append
        while more:
            try:
                # One message is one row: nothing but this belongs into the loop. Its
                # memory is libpq's, to be let go at once (see CopyBothStream).
                while len(block) < block_bytes:
                    size, data = get(0)
                    if size < 0:
                        more = False
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
        """False once the server has closed the connection; does not wait."""
        try:
            readable, _, _ = select.select([self.fileno], [], [], 0)
            if readable:
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
        """The last result, as ``exec_`` has it; PublisherError if it is not there in time,
        and what the check raises. The session is of no use after either."""
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
    """A failed result as our error, with the server's own fields."""

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
    """Connect without holding the interpreter: libpq's blocking call would stop every
    thread of this process for as long as the server does not answer.

    Honours connect_timeout (seconds, for all hosts together; 0: no limit), or else
    PGCONNECT_TIMEOUT: libpq does so only where it blocks. UsageError with libpq's text if it
    is no number. ``check`` may end the wait.
    """
    given = parse_conninfo(text).get("connect_timeout")
    if given is None:
        given = os.environ.get(CONNECT_TIMEOUT) or "0"
    if not _INTEGER.match(given):
        raise UsageError(
            f'invalid integer value "{given}" for connection option "connect_timeout"'
        )
    seconds = int(given)
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
        raise PublisherError(
            message,
            sqlstate="08006",
            hint="A connection pooler (PgBouncer) has answered, and does not pass on what"
            " replication needs. Connect to the server itself."
            if pooler
            else None,
        )
    pgconn.nonblocking = 0
    return pgconn


_KEEPALIVES: Final = {
    "keepalives_idle": "60",
    "keepalives_interval": "10",
    "keepalives_count": "6",
    "tcp_user_timeout": "120000",
}
"""A peer that is gone without a word is noticed after two minutes; the system's own default is
two hours, in which a reader of a copy would stand still."""


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
    """Open a connection; PublisherError (08006) with libpq's text if it fails.

    The user's own ``application_name``, ``connect_timeout``, keepalives and ``options`` win
    or stay.
    ``must_use_password``: 2F003 if there is none, or the server did not ask for it.
    ``answer_timeout_seconds``: longest wait for the answer to a statement (but not to a
    COPY's or START_REPLICATION's, which bring more than one). ``check``: called while any of
    them is waited for, the connection too; what it raises ends the wait, and the session.
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
        # Kept as a closure: libpq hands over a result, the caller wants its text.
        def forward(result: pq.abc.PGresult) -> None:
            primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            if primary:
                on_notice(primary.decode(errors="replace"))

        pgconn.notice_handler = forward
    else:
        pgconn.notice_handler = lambda result: None
    session = Session(pgconn, answer_timeout_seconds, check)
    # As PostgreSQL's subscriber: nothing may be found through a search path
    # (CVE-2018-1058).
    session.query("SELECT pg_catalog.set_config('search_path', '', false)")
    if pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII":
        # It does not know what its bytes mean, and would break off at the first that is
        # not UTF-8. As they are, the column's policy can decide.
        session.query("SET client_encoding TO 'SQL_ASCII'")
    return session
