"""Values that decoding reads from the log: transactions, their changes, messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from wal2lake.changelog import Step, TwoPhase
from wal2lake.model import Lsn, Relation, Xid
from wal2lake.publish.capture.positions import CHANGE_BYTES

_KEY: Final = ord("K")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive changes of one relation."""

    relation: Relation
    rows: pa.RecordBatch
    """Rows in the log's layout."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """TRUNCATE of several relations at once."""

    relations: tuple[Relation, ...]
    ordinal: int
    """Ordinal of the first change."""
    options: int = 0
    """1 CASCADE, 2 RESTART IDENTITY."""


Values = tuple[bytes | None, ...]
"""Values of one row, as PostgreSQL's text, in the order of the relation's columns; None is NULL."""


@dataclass(frozen=True, slots=True)
class DecodedChange:
    """The change of one row."""

    op: str
    """I, U or D."""
    lsn: Lsn
    new: Values | None
    """The new row."""
    old: Values | None
    """The old row, or only its key (with NULL in other columns). None if not known."""
    is_key: bool
    """Whether ``old`` is only a key."""


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """A message of pg_logical_emit_message."""

    lsn: Lsn
    """Position of the message. A client that has reached the position of a non-transactional
    message has read it."""
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction, without its changes."""

    xid: Xid
    first_lsn: Lsn
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int
    """Microseconds since 2000-01-01 UTC."""
    origin: str | None
    """Replication origin of the transaction. None if it is local."""
    origin_lsn: Lsn
    changes: int
    """Number of changes, messages included."""
    step: Step | None = None
    """Step of a prepared transaction that this is. ``two_phase`` has the details."""
    two_phase: TwoPhase | None = None

    @property
    def prepared(self) -> TwoPhase:
        """``two_phase`` of a transaction with a step."""
        assert self.two_phase is not None
        return self.two_phase


def changes_of(transaction: Transaction, run: Run) -> Iterator[DecodedChange]:
    """Yield the rows of a run, one by one. A TRUNCATE has the operation T."""
    yield from changes_at(run, [int(transaction.first_lsn)] * run.rows.num_rows)


def changes_at(run: Run, firsts: Sequence[int]) -> Iterator[DecodedChange]:
    """Yield rows of several transactions. ``firsts``: start of each row's transaction."""
    rows: Any = run.rows
    names = set(rows.schema.names)
    count = len(run.relation.columns)
    ops = rows.column("op").to_pylist()
    kinds = rows.column("old").to_pylist()
    ordinals = rows.column("ordinal").to_pylist()
    nothing: list[bytes | None] = [None] * rows.num_rows
    new, old = (
        [
            rows.column(f"{kind}{i}").to_pylist() if f"{kind}{i}" in names else nothing
            for i in range(count)
        ]
        for kind in "co"
    )
    for n, (op, kind, ordinal) in enumerate(zip(ops, kinds, ordinals, strict=True)):
        letter = chr(op)
        yield DecodedChange(
            letter,
            Lsn(firsts[n] + CHANGE_BYTES * ordinal),
            tuple(c[n] for c in new) if letter in "IU" else None,
            tuple(c[n] for c in old) if kind else None,
            kind == _KEY,
        )
