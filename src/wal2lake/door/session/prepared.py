"""Keeps the prepared statements and portals of one session.

Comes in: names. Goes out: statements and portals, or PostgreSQL's errors for names that exist
already or do not exist. A session's memory for them is limited: the bytes of statement texts and
of bound parameters count.

Source: src/backend/commands/prepare.c, src/backend/utils/mmgr/portalmem.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal2lake.door.session.commands import (
    Command,
    DeclareCursor,
    TransactionControl,
)
from wal2lake.door.session.cursors import QueryCursor
from wal2lake.door.session.results import RowStream
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.backend import Parameter, Prepared
from wal2lake.wire.frontback import FieldDescription, Format

_ENTRY_BYTES = 1024
"""Added to the size of each entry, so that empty entries are limited, too. Chosen arbitrarily."""


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A prepared statement: a command of the session, or a statement of the Backend."""

    sql: str
    command: Command | None
    """The command, if the session executes the statement."""
    prepared: Prepared | None
    """The Backend's statement, for DECLARE its query; None for other commands of the session and
    for an empty statement."""
    command_fields: tuple[FieldDescription, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the statement has only white space and comments."""
        return self.command is None and self.prepared is None

    @property
    def is_transaction_exit(self) -> bool:
        """Whether a failed block accepts the statement: transaction control checks the state."""
        return isinstance(self.command, TransactionControl)

    @property
    def param_oids(self) -> Sequence[int]:
        """The type OIDs of the parameters."""
        return () if self.prepared is None else self.prepared.param_oids

    @property
    def fields(self) -> tuple[FieldDescription, ...] | None:
        """The fields of the result; None if the statement returns no rows."""
        if self.prepared is None or self.command is not None:
            return self.command_fields
        fields = self.prepared.fields
        return None if fields is None else tuple(fields)


@dataclass(slots=True)
class Portal:
    """A bound statement; ``stream`` is None until the first Execute."""

    statement: PreparedStatement
    parameters: tuple[Parameter, ...]
    formats: tuple[Format, ...]
    fields: tuple[FieldDescription, ...] | None
    stream: RowStream | None = None
    finished: bool = False
    cursor: QueryCursor | None = None
    """The cursor, if DECLARE has made the portal."""
    held: bool = False
    """Whether the cursor outlives its transaction, which has ended."""
    depth: int = 0
    """The savepoints that were open when the cursor was declared."""

    def close(self) -> None:
        """Discard the remaining rows."""
        if self.cursor is not None:
            self.cursor.close()
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self.finished = True

    @property
    def size(self) -> int:
        """The bytes of the parameters."""
        return sum(len(p.value) for p in self.parameters if p.value is not None)


class StatementTable:
    """The named and unnamed statements and portals of one session."""

    __slots__ = ("_bytes", "_max_bytes", "_portals", "_statements")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._statements: dict[str, PreparedStatement] = {}
        self._portals: dict[str, Portal] = {}

    def check_free(self, name: str) -> None:
        """Raise 42P05 if a statement has this name; the unnamed statement may be replaced."""
        if name and name in self._statements:
            raise UsageError(
                f'prepared statement "{name}" already exists', sqlstate="42P05"
            )

    def store(self, name: str, statement: PreparedStatement) -> None:
        """Store a statement; raises 42P05, or 53200 above the memory limit."""
        self.check_free(name)
        self.deallocate(name)
        self._charge(name, len(statement.sql))
        self._statements[name] = statement

    def statement(self, name: str) -> PreparedStatement:
        """Find a statement; raises 26000."""
        statement = self._statements.get(name)
        if statement is not None:
            return statement
        if not name:
            raise UsageError(
                "unnamed prepared statement does not exist", sqlstate="26000"
            )
        raise UsageError(
            f'prepared statement "{name}" does not exist', sqlstate="26000"
        )

    def deallocate(self, name: str) -> bool:
        """Drop a statement; False if there is none of this name."""
        statement = self._statements.pop(name, None)
        if statement is None:
            return False
        self._bytes -= _cost(name, len(statement.sql))
        return True

    def deallocate_all(self) -> None:
        """Drop all statements."""
        for name in list(self._statements):
            self.deallocate(name)

    def open(self, name: str, portal: Portal) -> None:
        """Store a portal; raises 42P03, or 53200. The unnamed portal is replaced."""
        if name and name in self._portals:
            raise UsageError(f'cursor "{name}" already exists', sqlstate="42P03")
        self.close_portal(name)
        self._charge(name, portal.size)
        self._portals[name] = portal

    def portal(self, name: str) -> Portal:
        """Find a portal; raises 34000."""
        portal = self._portals.get(name)
        if portal is None:
            raise UsageError(f'portal "{name}" does not exist', sqlstate="34000")
        return portal

    def close_portal(self, name: str) -> None:
        """Close and drop a portal, if there is one of this name."""
        portal = self._portals.pop(name, None)
        if portal is not None:
            self._bytes -= _cost(name, portal.size)
            portal.close()

    def close_portals(self, depth: int = 0) -> None:
        """Close the portals that end with their transaction, or with the savepoint ``depth``."""
        for name, portal in list(self._portals.items()):
            if not portal.held and portal.depth >= depth:
                self.close_portal(name)

    def release_savepoint(self, depth: int) -> None:
        """Give the cursors of a released savepoint to what is outside of it."""
        for portal in self._portals.values():
            portal.depth = min(portal.depth, depth)

    def cursor(self, name: str) -> QueryCursor:
        """Find a cursor; raises 34000."""
        portal = self._portals.get(name)
        if portal is None:
            raise UsageError(f'cursor "{name}" does not exist', sqlstate="34000")
        if portal.cursor is None:
            raise FeatureNotSupportedError(
                f'portal "{name}" was not made by DECLARE, so FETCH cannot read it'
            )
        return portal.cursor

    def cursor_fields(self, name: str) -> tuple[FieldDescription, ...] | None:
        """Return the fields of a cursor, or None if there is none of this name."""
        portal = self._portals.get(name)
        return None if portal is None else portal.fields

    def close_cursor(self, name: str | None) -> None:
        """CLOSE; None closes all. Raises 34000."""
        if name is None:
            for portal in list(self._portals):
                self.close_portal(portal)
            return
        self.cursor(name)
        self.close_portal(name)

    def hold_cursors(self) -> None:
        """Keep the rows of the cursors WITH HOLD, before their transaction commits."""
        for portal in self.portals_to_hold():
            assert portal.cursor is not None
            portal.cursor.hold()
            portal.held = True

    def portals_to_hold(self) -> list[Portal]:
        """Return the portals of cursors WITH HOLD whose transaction has not ended."""
        return [
            portal
            for portal in self._portals.values()
            if not portal.held
            and isinstance(portal.statement.command, DeclareCursor)
            and portal.statement.command.hold
        ]

    def _charge(self, name: str, size: int) -> None:
        cost = _cost(name, size)
        if self._bytes + cost > self._max_bytes:
            raise UsageError(
                "prepared statements and portals of this session need too much memory",
                sqlstate="53200",
                detail=f"The limit is {self._max_bytes} bytes.",
                hint="Close or DEALLOCATE what is no longer needed.",
            )
        self._bytes += cost


def _cost(name: str, size: int) -> int:
    return _ENTRY_BYTES + len(name) + size
