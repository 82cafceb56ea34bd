"""Prepared statements and portals of one session.

In: names. Out: statements, portals, and PostgreSQL's errors for names that are taken or not
there. What a client may make a session keep is bounded in bytes: statement texts and bound
parameter values count.

Source: src/backend/commands/prepare.c, src/backend/utils/mmgr/portalmem.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal2lake.errors import UsageError
from wal2lake.frontend.backend import Parameter, Prepared
from wal2lake.frontend.session.commands import Command, TransactionControl
from wal2lake.frontend.session.results import RowStream
from wal2lake.wire.frontback import FieldDescription, Format

_ENTRY_BYTES = 1024
"""Charged for each entry on top of its text; a guess, so that names alone are bounded."""


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement that was understood: a command of the session, or the Backend's."""

    sql: str
    command: Command | None
    """Executed by the session itself."""
    prepared: Prepared | None
    """The Backend's; None with a command, and for an empty statement."""
    command_fields: tuple[FieldDescription, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing but white space and comments."""
        return self.command is None and self.prepared is None

    @property
    def is_transaction_exit(self) -> bool:
        """Accepted in a failed block: transaction control decides for itself."""
        return isinstance(self.command, TransactionControl)

    @property
    def param_oids(self) -> Sequence[int]:
        """The types of its parameters."""
        return () if self.prepared is None else self.prepared.param_oids

    @property
    def fields(self) -> tuple[FieldDescription, ...] | None:
        """The fields of its result, or None."""
        if self.prepared is None:
            return self.command_fields
        fields = self.prepared.fields
        return None if fields is None else tuple(fields)


@dataclass(slots=True)
class Portal:
    """A bound statement; ``stream`` is None until it is executed first."""

    statement: PreparedStatement
    parameters: tuple[Parameter, ...]
    formats: tuple[Format, ...]
    fields: tuple[FieldDescription, ...] | None
    stream: RowStream | None = None
    finished: bool = False

    def close(self) -> None:
        """Give up what is still to be read."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self.finished = True

    @property
    def size(self) -> int:
        """Bytes of its parameters."""
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
        """Raises 42P05 if a statement of that name exists; the unnamed one is replaced."""
        if name and name in self._statements:
            raise UsageError(
                f'prepared statement "{name}" already exists', sqlstate="42P05"
            )

    def store(self, name: str, statement: PreparedStatement) -> None:
        """Keep a statement."""
        self.check_free(name)
        self.deallocate(name)
        self._charge(name, len(statement.sql))
        self._statements[name] = statement

    def statement(self, name: str) -> PreparedStatement:
        """Look a statement up; raises 26000."""
        found = self._statements.get(name)
        if found is not None:
            return found
        if not name:
            raise UsageError(
                "unnamed prepared statement does not exist", sqlstate="26000"
            )
        raise UsageError(
            f'prepared statement "{name}" does not exist', sqlstate="26000"
        )

    def deallocate(self, name: str) -> bool:
        """Forget a statement; False: there was none."""
        statement = self._statements.pop(name, None)
        if statement is None:
            return False
        self._bytes -= _cost(name, len(statement.sql))
        return True

    def deallocate_all(self) -> None:
        """Forget every statement."""
        for name in list(self._statements):
            self.deallocate(name)

    def open(self, name: str, portal: Portal) -> None:
        """Keep a portal; raises 42P03. The unnamed one is replaced."""
        if name and name in self._portals:
            raise UsageError(f'cursor "{name}" already exists', sqlstate="42P03")
        self.close_portal(name)
        self._charge(name, portal.size)
        self._portals[name] = portal

    def portal(self, name: str) -> Portal:
        """Look a portal up; raises 34000."""
        found = self._portals.get(name)
        if found is None:
            raise UsageError(f'portal "{name}" does not exist', sqlstate="34000")
        return found

    def close_portal(self, name: str) -> None:
        """Forget a portal, if there is one."""
        portal = self._portals.pop(name, None)
        if portal is not None:
            self._bytes -= _cost(name, portal.size)
            portal.close()

    def close_portals(self) -> None:
        """The transaction ended: no portal outlives it."""
        for name in list(self._portals):
            self.close_portal(name)

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
