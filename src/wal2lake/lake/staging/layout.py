"""Defines the layout of staged changes, which staging writes and the net change reads.

A staged file holds typed rows of one target table, one row per event of the log. Columns are named
by the target's position, so that no column name of a user can clash with ours:

    lsn bigint        commit LSN of the event's transaction
    ord bigint        its ordinal there; (lsn, ord) orders the batch and is unique in it
    op tinyint        ASCII I, U, D or T
    moved boolean     an UPDATE that changed the key
    n<i> <type>       I, U: new value of target column i; D: its key columns; T: null
    u<i> boolean      n<i> is not known: the stored value stays. Only columns that have it
    o<i> <type>       moved: the old key's columns. Only if the batch has such rows

So ``n`` at the key's positions is the key of every event but T, and a batch without moved rows
needs nothing else. A file omits the u<i> and o<i> that it does not need; a missing column stands
for null, which means false and "not moved".

Pure values: executors import this module, and so may tests without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wal2lake.lake.port import FieldSpec
from wal2lake.model import ConflictType, Modified, Resolution

INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
TRUNCATE: Final = ord("T")
COMMIT: Final = ord("C")
"""Not an event: marks a failure that shows when its transaction ends."""


@dataclass(frozen=True, slots=True, order=True)
class Seq:
    """Position of an event: ordered first by commit, then inside the transaction."""

    commit_lsn: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class RowFailure:
    """One event that cannot be applied, located well enough to cut the batch below it."""

    seq: Seq
    column: str | None
    """The column whose value does not convert; None: the row as a whole."""
    sqlstate: str
    message: str
    """PostgreSQL's primary message."""
    conflict: ConflictType | None = None
    """Conflict that the event met; None if none."""
    detail: str | None = None
    key: str | None = None
    """Key of the row, as PostgreSQL writes it, for a conflict."""
    modified: Modified | None = None
    """Writer of the row that the event met; None if unknown."""
    row: str | None = None
    """New row of a conflict, as PostgreSQL writes it; None if there is none, or it was not
    requested."""
    local: str | None = None
    """The stored row that it met, like ``row``."""
    identity: str | None = None
    """Old key of an UPDATE to a taken key, like ``row``."""
    hint: str | None = None
    """Remedy, if the failure is not about a value or a conflict."""
    divides: bool = False
    """True if the event itself does not fail: the batch is too large, and its part below the event
    is not."""
    op: int | None = None
    """Kind of the event, one of the letters above, as a code point; None if unknown."""


@dataclass(frozen=True, slots=True)
class RowConflict:
    """An event that found another state than the publisher's and did not stop the batch; or the
    remaining events of this kind, which beyond ``NAMED_CONFLICTS`` of a batch are only counted."""

    type: ConflictType
    commit_lsn: int
    """Commit LSN of the first event, if there are several."""
    key: str | None
    row: str | None = None
    """The new row, as PostgreSQL writes it; None if there is none, or it was not requested."""
    count: int = 1
    resolution: Resolution = Resolution.SKIP
    local: str | None = None
    """The row that it met, like ``row``."""
    modified: Modified | None = None
    """Writer of the existing row; None if unknown."""


NAMED_CONFLICTS: Final = 1000
"""Most conflicts of one table in one batch that are reported one by one."""


@dataclass(frozen=True, slots=True)
class ChangeShape:
    """Which contents one table's staged batch can have; a smaller shape has a cheaper plan."""

    fields: tuple[FieldSpec, ...]
    """The target's columns; position i is column i of the staged files."""
    key: tuple[int, ...]
    """Positions of the columns that identify a row: the target's primary key, in key order, or its
    whole content if ``repeats``. Empty: there are no updates and deletes."""
    unchanged: frozenset[int] = frozenset()
    """Columns with a value that is not known in the batch."""
    moved: bool = False
    """True if some UPDATE changed the key."""
    truncate: Seq | None = None
    """The last TRUNCATE: only later events count, on an empty table."""
    repeats: bool = False
    """True if the table has no primary key: it may hold a row many times, and an UPDATE or DELETE
    touches one of them. Every UPDATE counts as ``moved``."""


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """Whether an insert may meet an existing row, and the names for the error."""

    trusted: bool
    """True if no writer but the subscription has written the table since its copy, and the
    publication publishes every operation: then the publisher's own constraint guarantees unique
    keys."""
    constraint: str
    """The primary key's name, for the message."""
    relation: str
    """The target's qualified name, for the message."""
    deferrable: bool = False
    """True if the key is checked at the end of each transaction, and rows come with their whole
    content."""
    counted: tuple[int, ...] = ()
    """Positions of a deferrable key's columns, if rows are found by their content."""


def smallest(failures: Iterable[RowFailure]) -> RowFailure | None:
    """Return the first failure in log order, below whose transaction a batch is cut."""
    return min(failures, key=lambda f: f.seq, default=None)


def key_taken(
    seq: Seq, uniqueness: Uniqueness, *, inserted: bool, key: str | None = None
) -> RowFailure:
    """Build the failure of an INSERT, or of an UPDATE that moves a row, to a key that is taken."""
    kind = ConflictType.INSERT_EXISTS if inserted else ConflictType.UPDATE_EXISTS
    return RowFailure(
        seq,
        column=None,
        sqlstate="23505",
        message=f'conflict detected on relation "{uniqueness.relation}": conflict={kind}',
        conflict=kind,
        detail=f'Key already exists in unique index "{uniqueness.constraint}".',
        key=key,
    )
