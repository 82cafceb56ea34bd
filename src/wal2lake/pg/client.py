"""An interactive connection: many statements, named columns, notices, Ctrl-C.

Workers use ``Session``; ``wal2lake sql`` uses ``Client``. A client yields every result of a
query string in turn, returns errors as results with all of the server's fields, and can be
interrupted by a signal while it waits. It changes no setting on the server, so the user sees
the server as any other client does.

In: a conninfo string, SQL text. Out: ``ResultRows`` and ``Failure``. Called by the command
line, the demo and tests.

Source: PostgreSQL manual, 32.4 (asynchronous command processing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from psycopg import Error, pq

from wal2lake.errors import PublisherError
from wal2lake.pg.connection import open_pgconn
from wal2lake.pg.waiting import readable


@dataclass(frozen=True, slots=True)
class ResultRows:
    """The outcome of one statement; ``columns`` is empty if it returns no rows."""

    columns: tuple[str, ...]
    type_oids: tuple[int, ...]
    rows: tuple[tuple[str | None, ...], ...]
    """Each value as the server's text."""
    tag: str
    """The command tag: ``SELECT 1``, ``CREATE TABLE`` ..."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The server's error or notice, with the protocol's names for its fields."""

    severity: str
    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None
    context: str | None = None
    position: int = 0
    """Position in the query string, in characters from 1; 0: unknown."""


class Client:
    """An interactive connection. Not thread-safe."""

    def __init__(
        self, conninfo: str, *, on_notice: Callable[[Failure], None] | None = None
    ) -> None:
        """Connect. Raises PublisherError with libpq's text if the connection fails.

        ``on_notice`` is called with each warning and notice; by default they are dropped.
        """
        self._pgconn = open_pgconn(conninfo)
        self._pgconn.notice_handler = (
            (lambda result: None)
            if on_notice is None
            else (lambda result: on_notice(_fields(result)))
        )

    @property
    def server_version(self) -> str:
        """The version as text, for example ``18.4``."""
        return self.parameter("server_version")

    def parameter(self, name: str) -> str:
        """Return a parameter that the server has reported (ParameterStatus), else ''."""
        value = self._pgconn.parameter_status(name.encode())
        return value.decode() if value else ""

    @property
    def in_transaction(self) -> str:
        """psql's prompt mark: ``*`` in a transaction, ``!`` in a failed one, else ''."""
        return {
            pq.TransactionStatus.INTRANS: "*",
            pq.TransactionStatus.INERROR: "!",
        }.get(pq.TransactionStatus(self._pgconn.transaction_status), "")

    def run(self, sql: str) -> Iterator[ResultRows | Failure]:
        """Send a query string and yield the outcome of each of its statements.

        KeyboardInterrupt during the wait cancels the statement on the server; the resulting
        failure is yielded like any other. Raises PublisherError when the connection breaks.
        """
        try:
            self._pgconn.send_query(sql.encode())
            while True:
                self._wait()
                result = self._pgconn.get_result()
                if result is None:
                    return
                yield self._outcome(result)
        except Error as error:
            raise self._broken(error) from None

    def rows(self, sql: str) -> list[tuple[str | None, ...]]:
        """Return the last statement's rows. Raises PublisherError if any statement fails."""
        rows: list[tuple[str | None, ...]] = []
        failure: Failure | None = None
        for outcome in self.run(sql):
            if isinstance(outcome, Failure):
                failure = outcome
            else:
                rows = list(outcome.rows)
        if failure is not None:
            raise PublisherError(
                failure.message,
                sqlstate=failure.sqlstate,
                detail=failure.detail,
                hint=failure.hint,
                context=failure.context,
            )
        return rows

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self._pgconn.finish()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self) -> None:
        while self._pgconn.is_busy():
            try:
                readable([self._pgconn.socket], None)
            except KeyboardInterrupt:
                self._pgconn.get_cancel().cancel()
                continue
            self._pgconn.consume_input()

    def _outcome(self, result: pq.abc.PGresult) -> ResultRows | Failure:
        status = result.status
        if status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
            if self._pgconn.status != pq.ConnStatus.OK:
                raise self._broken(None)
            return _fields(result)
        if status == pq.ExecStatus.COPY_IN:
            # The server waits for data, and this client has none to send.
            self._pgconn.put_copy_end(b"COPY FROM STDIN needs psql")
            return self._outcome(self._next())
        if status in (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH):
            return self._copy_out()
        columns = tuple(
            (result.fname(i) or b"").decode() for i in range(result.nfields)
        )
        cells = [
            [result.get_value(i, j) for j in range(result.nfields)]
            for i in range(result.ntuples)
        ]
        return ResultRows(
            columns,
            tuple(result.ftype(i) for i in range(result.nfields)),
            tuple(
                tuple(None if c is None else c.decode(errors="replace") for c in row)
                for row in cells
            ),
            (result.command_status or b"").decode(),
        )

    def _copy_out(self) -> ResultRows | Failure:
        lines: list[tuple[str | None, ...]] = []
        while True:
            size, data = self._pgconn.get_copy_data(0)
            if size < 0:
                break
            text = bytes(data).decode(errors="replace")
            lines.append((text.removesuffix("\n"),))
        ended = self._outcome(self._next())
        if isinstance(ended, Failure):
            return ended
        return ResultRows(("copy",), (25,), tuple(lines), ended.tag)

    def _next(self) -> pq.abc.PGresult:
        result = self._pgconn.get_result()
        if result is None:
            raise self._broken(None)
        return result

    def _broken(self, error: Error | None) -> PublisherError:
        text = self._pgconn.get_error_message() or str(error or "connection lost")
        return PublisherError(text.strip())


def _fields(result: pq.abc.PGresult) -> Failure:
    def field(code: pq.DiagnosticField) -> str | None:
        value = result.error_field(code)
        return value.decode(errors="replace") if value else None

    code = pq.DiagnosticField
    return Failure(
        severity=field(code.SEVERITY) or "ERROR",
        sqlstate=field(code.SQLSTATE) or "XX000",
        message=field(code.MESSAGE_PRIMARY) or "the server gave no reason",
        detail=field(code.MESSAGE_DETAIL),
        hint=field(code.MESSAGE_HINT),
        context=field(code.CONTEXT),
        position=int(field(code.STATEMENT_POSITION) or 0),
    )
