"""Requests that sessions hand to the thread that captures, with their answers.

A session makes a ``CaptureRequest``, and waits until ``done``; the thread fills in ``point``,
``lsn``, ``two_phase`` or ``error``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wal2lake.changelog import TwoPhase
from wal2lake.lake.capture.commits import TableCommit
from wal2lake.lake.capture.messages import Emitted, OriginMark
from wal2lake.model import Lsn, Oid


@dataclass(frozen=True, slots=True)
class Point:
    """An end of the log, and the exact state of all captured tables there."""

    lsn: Lsn
    versions: Mapping[Oid, int]


@dataclass(frozen=True, slots=True)
class Preparation:
    """A transaction to prepare: the commits that its tables will have."""

    number: int
    gid: str
    time_us: int
    """Since 2000-01-01 UTC."""
    commits: tuple[tuple[Oid, TableCommit], ...]
    """Each for the version that it was made for."""
    messages: Sequence[Emitted]
    xid: int
    """The transaction's number."""


@dataclass(slots=True)
class CaptureRequest:
    """A session's question, and its answer once ``done`` is set."""

    messages: Sequence[Emitted] = ()
    transactional: bool = False
    """They are a transaction of their own; else each is alone."""
    origin: OriginMark | None = None
    statements: str = ""
    """Where what it has done, which amounts to nothing, is written down."""
    defines: bool = False
    """It is a transaction that has changed the catalog alone."""
    xid: int | None = None
    """The transaction's number, if it has one."""
    lsn: Lsn | None = None
    """Where the last one of them is."""
    preparation: Preparation | None = None
    two_phase: TwoPhase | None = None
    """The prepared transaction in the log."""
    commits: int | None = None
    rolls_back: int | None = None
    """The number of a prepared transaction that ends."""
    done: threading.Event = field(default_factory=threading.Event)
    point: Point | None = None
    error: BaseException | None = None
