"""The transaction state of one session.

In: what happens (a statement, an error, the end of a string, COMMIT ...). Out: calls of the
Backend and of the parameters, and the status that ReadyForQuery reports. The table is that of
src/backend/access/transam/xact.c without savepoints:

    state     statement  finish    error     BEGIN     COMMIT    ROLLBACK
    IDLE      IMPLICIT   -         -         BLOCK     warn      warn
    IMPLICIT  -          commit    rollback  BLOCK     commit,w  rollback,w
    BLOCK     -          -         FAILED    warn      commit    rollback
    FAILED    refused    -         -         refused   rollback  IDLE

"finish" is the end of a query string, or Sync. An error in a block rolls the Backend back at
once; the block's end is then only a word, as in PostgreSQL.
"""

from __future__ import annotations

from enum import Enum

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.frontend.backend import Backend, Notice, TransactionKind
from wal2lake.frontend.parameters import Parameters
from wal2lake.frontend.session.commands import TransactionControl, TransactionVerb
from wal2lake.wire.frontback import TransactionStatus

_MODES = ("isolation", "read_only", "deferrable")

FAILED_MESSAGE = (
    "current transaction is aborted, commands ignored until end of transaction block"
)


class _State(Enum):
    """Rows of the table above."""

    IDLE = TransactionStatus.IDLE, False
    """No transaction."""
    IMPLICIT = TransactionStatus.IDLE, True
    """Statements have run that no BEGIN encloses; the client is not told."""
    BLOCK = TransactionStatus.BLOCK, True
    """Between BEGIN and its end."""
    FAILED = TransactionStatus.FAILED, False
    """The same after an error: the Backend has been rolled back."""


class Transaction:
    """One session's transactions, over its Backend."""

    __slots__ = ("_backend", "_parameters", "_state")

    def __init__(self, backend: Backend, parameters: Parameters) -> None:
        self._backend = backend
        self._parameters = parameters
        self._state = _State.IDLE

    @property
    def status(self) -> TransactionStatus:
        """For ReadyForQuery."""
        return self._state.value[0]

    @property
    def in_block(self) -> bool:
        """Portals and SET LOCAL outlive the statement."""
        return self._state in (_State.BLOCK, _State.FAILED)

    @property
    def failed(self) -> bool:
        """Only the end of the block is accepted."""
        return self._state is _State.FAILED

    def check_usable(self) -> None:
        """Raises 25P02 in a failed block."""
        if self.failed:
            raise UsageError(FAILED_MESSAGE, sqlstate="25P02")

    def enter(self, kind: TransactionKind) -> None:
        """A statement is about to reach the Backend: there must be a transaction."""
        self.check_usable()
        if self._state is _State.IDLE:
            # Set first: if begin raises, ``fail`` must roll back.
            self._state = _State.IMPLICIT
            self._backend.begin(kind)

    def finish(self) -> None:
        """End of a query string or Sync: an implicit transaction commits."""
        if self._state is _State.IMPLICIT:
            self._commit()
        elif self._state is _State.IDLE:
            self._parameters.commit()

    def fail(self) -> None:
        """A statement raised."""
        if self._state is _State.IMPLICIT:
            self._state = _State.IDLE
            self._roll_back()
        elif self._state is _State.BLOCK:
            self._state = _State.FAILED
            self._roll_back()
        elif self._state is _State.IDLE:
            self._parameters.rollback()

    def close(self) -> None:
        """The session ends; what is open is rolled back."""
        if self._state.value[1]:
            self._state = _State.IDLE
            self._roll_back()

    def control(self, command: TransactionControl) -> tuple[str, list[Notice]]:
        """Carry a command out: its tag and its warnings."""
        verb = command.verb
        if verb in (TransactionVerb.BEGIN, TransactionVerb.START):
            return verb.value, self._begin(command)
        if verb is TransactionVerb.COMMIT:
            return self._end(command, keep=True)
        if verb is TransactionVerb.ROLLBACK:
            return self._end(command, keep=False)
        if verb is TransactionVerb.PREPARE and self.failed:
            # PostgreSQL: preparing a failed block is rolling it back.
            return self._end(TransactionControl(TransactionVerb.ROLLBACK), keep=False)
        raise self._refused(command)

    def _begin(self, command: TransactionControl) -> list[Notice]:
        self.check_usable()
        if self._state is _State.BLOCK:
            self._set_modes(command)
            return [_warning("25001", "there is already a transaction in progress")]
        self._open_block(command.modes)
        return []

    def _open_block(self, modes: tuple[tuple[str, str], ...]) -> None:
        chosen = dict(modes)
        for mode in _MODES:
            default = self._parameters.raw(f"default_transaction_{mode}")
            self._parameters.set(
                f"transaction_{mode}", chosen.get(mode, default), local=True
            )
        try:
            self._backend.begin(TransactionKind.BLOCK)
        except BaseException:
            # A BEGIN that failed has not begun: no block to be ended by the client.
            self._state = _State.IDLE
            self._roll_back()
            raise
        self._state = _State.BLOCK

    def _set_modes(self, command: TransactionControl) -> None:
        for mode, value in command.modes:
            self._parameters.set(f"transaction_{mode}", value, local=True)

    def _end(
        self, command: TransactionControl, *, keep: bool
    ) -> tuple[str, list[Notice]]:
        notices: list[Notice] = []
        if not self.in_block:
            if command.chain:
                name = "COMMIT" if keep else "ROLLBACK"
                raise UsageError(
                    f"{name} AND CHAIN can only be used in transaction blocks",
                    sqlstate="25P01",
                )
            notices = [_warning("25P01", "there is no transaction in progress")]
        modes = tuple(
            (mode, self._parameters.raw(f"transaction_{mode}")) for mode in _MODES
        )
        tag = "COMMIT" if keep and not self.failed else "ROLLBACK"
        if self._state.value[1]:
            if keep:
                self._commit()
            else:
                self._state = _State.IDLE
                self._roll_back()
        elif self._state is _State.IDLE and keep:
            self._parameters.commit()
        else:
            self._parameters.rollback()
        self._state = _State.IDLE
        if command.chain:
            self._open_block(modes)
        return tag, notices

    def _commit(self) -> None:
        try:
            self._backend.commit()
        except BaseException:
            # The Backend rolled back by itself; see its port.
            self._parameters.rollback()
            raise
        else:
            self._parameters.commit()
        finally:
            self._state = _State.IDLE

    def _roll_back(self) -> None:
        self._parameters.rollback()
        self._backend.rollback()

    def _refused(self, command: TransactionControl) -> Exception:
        verb, name = command.verb, command.name
        if verb in (TransactionVerb.COMMIT_PREPARED, TransactionVerb.ROLLBACK_PREPARED):
            self.check_usable()
            return UsageError(
                f'prepared transaction with identifier "{name}" does not exist',
                sqlstate="42704",
            )
        if verb is TransactionVerb.PREPARE:
            return FeatureNotSupportedError("PREPARE TRANSACTION is not supported")
        word = "RELEASE SAVEPOINT" if verb is TransactionVerb.RELEASE else verb.value
        word = "ROLLBACK TO SAVEPOINT" if verb is TransactionVerb.ROLLBACK_TO else word
        if not self.in_block:
            return UsageError(
                f"{word} can only be used in transaction blocks", sqlstate="25P01"
            )
        if verb is not TransactionVerb.ROLLBACK_TO:
            self.check_usable()
        if verb is TransactionVerb.SAVEPOINT:
            return FeatureNotSupportedError("savepoints are not supported")
        return UsageError(f'savepoint "{name}" does not exist', sqlstate="3B001")


def _warning(sqlstate: str, message: str) -> Notice:
    return Notice(message, severity="WARNING", sqlstate=sqlstate)
