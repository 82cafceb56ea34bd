"""Keeps the transaction state of one session.

Comes in: events (a statement, an error, the end of a query string, COMMIT ...). Goes out: calls of
the Backend and of the parameters, and the status for ReadyForQuery. The table is a smaller form of
the one in src/backend/access/transam/xact.c:

    state     statement  finish    error     BEGIN     COMMIT    ROLLBACK    ROLLBACK TO
    IDLE      IMPLICIT   -         -         BLOCK     warn      warn        25P01
    IMPLICIT  -          commit    rollback  BLOCK     commit,w  rollback,w  25P01
    BLOCK     -          -         FAILED    warn      commit    rollback    BLOCK
    FAILED    refused    -         -         refused   rollback  IDLE        BLOCK

"finish" is the end of a query string, or Sync. An error in a block rolls the Backend back at once:
the whole transaction, or to the innermost savepoint if there is one. Only with a savepoint does the
end of the block have anything left to commit or roll back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.door.session.commands import TransactionControl, TransactionVerb
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.backend import Backend, Notice, TransactionKind
from wal2lake.sql.parameters import ParameterMark, Parameters
from wal2lake.wire.frontback import TransactionStatus

_MODES = ("isolation", "read_only", "deferrable")

FAILED_MESSAGE = (
    "current transaction is aborted, commands ignored until end of transaction block"
)

MAX_SAVEPOINTS: Final = 1000
"""The limit of savepoints, which bounds a session's memory. Chosen far above real use."""

_SAVEPOINT_TAGS: Final = {
    TransactionVerb.SAVEPOINT: "SAVEPOINT",
    TransactionVerb.RELEASE: "RELEASE",
    TransactionVerb.ROLLBACK_TO: "ROLLBACK",
}

_SAVEPOINT_WORDS: Final = {
    TransactionVerb.SAVEPOINT: "SAVEPOINT",
    TransactionVerb.RELEASE: "RELEASE SAVEPOINT",
    TransactionVerb.ROLLBACK_TO: "ROLLBACK TO SAVEPOINT",
}


class _State(Enum):
    """The rows of the table above.

    The second value is true if the Backend has a transaction that an error rolls back.
    """

    IDLE = TransactionStatus.IDLE, False
    """No transaction."""
    IMPLICIT = TransactionStatus.IDLE, True
    """Statements have run outside a block. ReadyForQuery does not report this state."""
    BLOCK = TransactionStatus.BLOCK, True
    """Between BEGIN and its end."""
    FAILED = TransactionStatus.FAILED, False
    """In a block after an error; the Backend is rolled back, whole or to a savepoint."""


@dataclass(frozen=True, slots=True)
class _Savepoint:
    """A savepoint. If a name occurs twice, then the newer savepoint hides the older."""

    name: str
    mark: ParameterMark


class SessionTransaction:
    """The transactions of one session, over its Backend."""

    __slots__ = (
        "_backend",
        "_ended",
        "_executed",
        "_parameters",
        "_queried",
        "_savepoints",
        "_state",
    )

    def __init__(
        self,
        backend: Backend,
        parameters: Parameters,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """``ended`` is called after each transaction, even if its query string goes on."""
        self._ended = ended
        self._backend = backend
        self._parameters = parameters
        self._state = _State.IDLE
        self._executed = False
        self._queried = False
        """True if the block has had a statement for the Backend."""
        self._savepoints: list[_Savepoint] = []

    @property
    def status(self) -> TransactionStatus:
        """The status that ReadyForQuery reports."""
        return self._state.value[0]

    @property
    def in_block(self) -> bool:
        """Whether the session is in a block, where portals and SET LOCAL outlive a statement."""
        return self._state in (_State.BLOCK, _State.FAILED)

    @property
    def has_queried(self) -> bool:
        """Whether the block has had a statement that reads or writes."""
        return self._queried

    @property
    def in_savepoint(self) -> bool:
        """Whether there is a savepoint to which the block can be rolled back."""
        return bool(self._savepoints)

    @property
    def depth(self) -> int:
        """Number of open savepoints."""
        return len(self._savepoints)

    @property
    def failed(self) -> bool:
        """Whether the block has failed, so that only its end is accepted."""
        return self._state is _State.FAILED

    def check_usable(self) -> None:
        """Raise 25P02 in a failed block."""
        if self.failed:
            raise UsageError(FAILED_MESSAGE, sqlstate="25P02")

    def enter(self, kind: TransactionKind) -> None:
        """Begin a transaction if there is none, before a statement goes to the Backend."""
        self.check_usable()
        self._queried = True
        if self._state is _State.IDLE:
            # The state is set first: if begin() raises, ``fail`` must roll back.
            self._state = _State.IMPLICIT
            self._executed = False
            self._backend.begin(kind)

    def import_snapshot(self, name: str) -> None:
        """SET TRANSACTION SNAPSHOT; raises 25001 if the transaction has a snapshot already."""
        implicit = self._state is _State.IMPLICIT
        if implicit or self._savepoints or (self.in_block and self._queried):
            raise UsageError(
                "SET TRANSACTION SNAPSHOT must be called before any query",
                sqlstate="25001",
            )
        # Outside a block the transaction ends with the query string, as for a query.
        self.enter(TransactionKind.STRING)
        self._backend.import_snapshot(name)

    def executing(self, *, is_last: bool) -> None:
        """Called before a statement of a pipeline runs.

        If it is the first and the last of an implicit transaction, then the Backend may commit
        with the statement.
        """
        if self._state is _State.IMPLICIT:
            if is_last and not self._executed:
                self._backend.begin(TransactionKind.STATEMENT)
            self._executed = True

    def finish(self) -> None:
        """Commit an implicit transaction, at the end of a query string or at Sync."""
        if self._state is _State.IMPLICIT:
            self._commit()
        elif self._state is _State.IDLE:
            self._parameters.commit()

    def fail(self) -> None:
        """Roll back after an error, as the table says."""
        if self._state is _State.IMPLICIT:
            self._state = _State.IDLE
            self._roll_back()
        elif self._state is _State.BLOCK:
            self._state = _State.FAILED
            if self._savepoints:
                self._return_to(len(self._savepoints))
            else:
                self._roll_back()
        elif self._state is _State.IDLE:
            self._parameters.rollback()

    def close(self) -> None:
        """Roll back an open transaction at the end of the session."""
        if self._state.value[1] or self._savepoints:
            self._state = _State.IDLE
            self._roll_back()

    def control(self, command: TransactionControl) -> tuple[str, list[Notice]]:
        """Execute a command of transaction control; return its tag and warnings."""
        verb = command.verb
        if verb in (TransactionVerb.BEGIN, TransactionVerb.START):
            return verb.value, self._begin(command)
        if verb is TransactionVerb.COMMIT:
            return self._end(command, keep=True)
        if verb is TransactionVerb.ROLLBACK:
            return self._end(command, keep=False)
        if verb is TransactionVerb.PREPARE:
            return self._prepare(command)
        if verb in _SAVEPOINT_TAGS:
            self._control_savepoint(command)
            return _SAVEPOINT_TAGS[verb], []
        self._finish_prepared(command)
        return verb.value, []

    def _prepare(self, command: TransactionControl) -> tuple[str, list[Notice]]:
        """PREPARE TRANSACTION; a ROLLBACK if the transaction has failed or there is none."""
        if self.failed or self._state is _State.IDLE:
            return self._end(TransactionControl(TransactionVerb.ROLLBACK), keep=False)
        notices = [] if self.in_block else [_NONE_IN_PROGRESS]
        self._end_with(lambda: self._backend.prepare_transaction(command.name))
        return command.verb.value, notices

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
            # After a failed BEGIN there is no block that the client must end.
            self._state = _State.IDLE
            self._roll_back()
            raise
        # Statements before BEGIN in the same query string are in the same transaction.
        self._queried = self._state is _State.IMPLICIT
        self._state = _State.BLOCK

    def _set_modes(self, command: TransactionControl) -> None:
        with self.setting(f"transaction_{mode}" for mode, _ in command.modes):
            for mode, value in command.modes:
                self._parameters.set(f"transaction_{mode}", value, local=True)

    @contextmanager
    def setting(self, names: Iterable[str]) -> Iterator[None]:
        """Wrap a SET of these parameters; raises 25001 if it is too late for a transaction mode.

        The error fails the block, which restores the mode.
        """
        set_names = set(names)
        modes = [mode for mode in _MODES if f"transaction_{mode}" in set_names]
        before = {mode: self._parameters.raw(f"transaction_{mode}") for mode in modes}
        yield
        if self._state is not _State.BLOCK:
            return
        for mode, old in before.items():
            new = self._parameters.raw(f"transaction_{mode}")
            refusal = self._too_late(mode, old, new)
            if refusal is not None:
                raise UsageError(refusal, sqlstate="25001")

    def _too_late(self, mode: str, old: str, new: str) -> str | None:
        """PostgreSQL's error text, or None; checks in the order of check_transaction_*()."""
        nested, queried = bool(self._savepoints), self._queried
        if mode == "isolation":
            if old != new and queried:
                return "SET TRANSACTION ISOLATION LEVEL must be called before any query"
            if old != new and nested:
                return (
                    "SET TRANSACTION ISOLATION LEVEL must not be called in a"
                    " subtransaction"
                )
        elif mode == "read_only":
            if (old, new) == ("on", "off") and nested:
                return (
                    "cannot set transaction read-write mode inside a read-only"
                    " transaction"
                )
            if (old, new) == ("on", "off") and queried:
                return "transaction read-write mode must be set before any query"
        elif nested:
            return (
                "SET TRANSACTION [NOT] DEFERRABLE cannot be called within a"
                " subtransaction"
            )
        elif queried:
            return "SET TRANSACTION [NOT] DEFERRABLE must be called before any query"
        return None

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
            notices = [_NONE_IN_PROGRESS]
        modes = tuple(
            (mode, self._parameters.raw(f"transaction_{mode}")) for mode in _MODES
        )
        tag = "COMMIT" if keep and not self.failed else "ROLLBACK"
        if self._state.value[1] or self._savepoints:
            # With savepoints, a failed block is still open in the Backend.
            if keep and not self.failed:
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
        self._end_with(self._backend.commit)

    def _end_with(self, end: Callable[[], None]) -> None:
        """End the transaction by ``end``, which commits or prepares it."""
        self._savepoints.clear()
        try:
            end()
        except BaseException:
            # The Backend has rolled back by itself, as its port promises.
            self._parameters.rollback()
            raise
        else:
            self._parameters.commit()
        finally:
            self._state = _State.IDLE
            self._ended()

    def _roll_back(self) -> None:
        self._savepoints.clear()
        self._parameters.rollback()
        self._ended()
        self._backend.rollback()

    # -- savepoints

    def _control_savepoint(self, command: TransactionControl) -> None:
        verb, name = command.verb, command.name
        if not self.in_block:
            raise UsageError(
                f"{_SAVEPOINT_WORDS[verb]} can only be used in transaction blocks",
                sqlstate="25P01",
            )
        if verb is TransactionVerb.ROLLBACK_TO:
            self._return_to(self._depth_of(name))
            self._state = _State.BLOCK
            return
        self.check_usable()
        if verb is TransactionVerb.SAVEPOINT:
            if len(self._savepoints) >= MAX_SAVEPOINTS:
                raise FeatureNotSupportedError(
                    f"a transaction cannot have more than {MAX_SAVEPOINTS} savepoints"
                )
            self._backend.savepoint(len(self._savepoints) + 1)
            self._savepoints.append(_Savepoint(name, self._parameters.mark()))
        else:
            depth = self._depth_of(name)
            self._backend.release(depth)
            del self._savepoints[depth - 1 :]

    def _depth_of(self, name: str) -> int:
        for depth in range(len(self._savepoints), 0, -1):
            if self._savepoints[depth - 1].name == name:
                return depth
        raise UsageError(f'savepoint "{name}" does not exist', sqlstate="3B001")

    def _return_to(self, depth: int) -> None:
        """Roll back to a savepoint; if the Backend cannot, roll back everything."""
        try:
            self._backend.rollback_to(depth)
        except BaseException:
            self._state = _State.FAILED
            self._roll_back()
            raise
        self._parameters.return_to(self._savepoints[depth - 1].mark)
        del self._savepoints[depth:]

    def _finish_prepared(self, command: TransactionControl) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED of a transaction that any session has prepared."""
        self.check_usable()
        if self._state is not _State.IDLE:
            raise UsageError(
                f"{command.verb.value} cannot run inside a transaction block",
                sqlstate="25001",
            )
        commit = command.verb is TransactionVerb.COMMIT_PREPARED
        self._backend.finish_prepared(command.name, commit=commit)


def _warning(sqlstate: str, message: str) -> Notice:
    return Notice(message, severity="WARNING", sqlstate=sqlstate)


_NONE_IN_PROGRESS: Final = _warning("25P01", "there is no transaction in progress")
