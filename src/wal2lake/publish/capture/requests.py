"""Requests from sessions to the capture thread, with the results.

A session creates a ``CaptureRequest`` and waits for ``done``. The capture thread sets ``point``,
``lsn``, ``two_phase`` or ``error``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wal2lake.changelog import TwoPhase
from wal2lake.lake.capture import Emitted, OriginMark, TableCommit
from wal2lake.model import Lsn, Oid


@dataclass(frozen=True, slots=True)
class Point:
    """An end of the log, and the exact state of all captured tables there."""

    lsn: Lsn
    versions: Mapping[Oid, int]


@dataclass(frozen=True, slots=True)
class Preparation:
    """A transaction to prepare, with the future commits of its tables."""

    number: int
    gid: str
    time_us: int
    """Microseconds since 2000-01-01 UTC."""
    commits: tuple[tuple[Oid, TableCommit], ...]
    """Commits by table. Each commit has the version that it was prepared for."""
    messages: Sequence[Emitted]
    xid: int
    """Transaction number."""


@dataclass(slots=True)
class CaptureRequest:
    """A session's request, with its result once ``done`` is set."""

    messages: Sequence[Emitted] = ()
    transactional: bool = False
    """Whether the messages form a transaction. Otherwise each message is non-transactional."""
    origin: OriginMark | None = None
    statements: str = ""
    """Name of the file with the statements of a transaction that makes no difference."""
    defines: bool = False
    """Whether the transaction has changed only the catalog."""
    xid: int | None = None
    """Transaction number, if there is one."""
    lsn: Lsn | None = None
    """Position of the last message."""
    preparation: Preparation | None = None
    two_phase: TwoPhase | None = None
    """The prepared transaction in the log."""
    commits: int | None = None
    rolls_back: int | None = None
    """``commits`` or ``rolls_back``: number of the prepared transaction that ends."""
    done: threading.Event = field(default_factory=threading.Event)
    point: Point | None = None
    error: BaseException | None = None
