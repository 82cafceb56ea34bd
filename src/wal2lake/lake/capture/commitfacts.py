"""Encodes facts about a transaction that its rows do not show, in the commit of one table. Pure.

Comes in: the name of the operation, the messages of pg_logical_emit_message, the replication
origin of the session, and facts about the statements that the rows do not show. Goes out: one
text, the commit's user metadata in the table's log; and all of it decoded again:

    local transaction 7 with {"messages": [["prefix", "Y29udGVudA=="]], "origin": ["o", 5, null]}
    truncate with {"truncate": 3}
    local transaction with {"moved": [[["1"], ["2"]]]}
    local transaction with {"xid": 2031}
    upsert with {"sent": [26447808, 2000, [2774310287], true]}

So the facts exist if and only if the rows do, and need no cleanup of their own.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wal2lake.lake.capture.moves import MovedKey, moved_from
from wal2lake.model import Relation

_MARK: Final = " with "

_NAME: Final = re.compile("[0-9a-f]{32}")

_LAST_XID: Final = 0xFFFFFFFF

_OPTIONS: Final = 3
"""The bits of TRUNCATE's options."""


class Emitted(NamedTuple):
    """One message."""

    prefix: str
    content: bytes


class OriginMark(NamedTuple):
    """Origin of a transaction, as set by pg_replication_origin_xact_setup."""

    name: str
    lsn: int
    """Position of the transaction at its origin; 0 if unknown."""
    time_us: int | None
    """Commit time at its origin, since 2000-01-01 UTC; None if unknown."""


class SentBatch(NamedTuple):
    """A subscription's batch that a table has taken exactly as it was sent: the changes of the log
    alone tell what this commit did to the table."""

    position: int
    """The lowest commit LSN that counts; the commit's cursor is above the last."""
    changes: int
    """Number of rows of the log, TRUNCATEs included."""
    relations: tuple[int, ...]
    """The ``relation_mark`` of each relation version of the rows."""
    found_whole: bool
    """True if the old rows that were sent equal those that the table had; False if only their keys
    do."""


def relation_mark(relation: Relation) -> int:
    """Return the identity of a publisher's relation: its OID, its name and those of its
    columns."""
    names = [column.name for column in relation.columns]
    identity = [int(relation.relid), relation.namespace, relation.name, *names]
    return zlib.crc32(json.dumps(identity).encode())


def sent(
    position: int,
    changes: int,
    relations: Collection[Relation],
    *,
    found_whole: bool = True,
) -> SentBatch:
    """Describe a batch for its commit."""
    marks = sorted({relation_mark(relation) for relation in relations})
    return SentBatch(position, changes, tuple(marks), found_whole)


@dataclass(frozen=True, slots=True)
class CommitRemarks:
    """Facts that a commit carries besides its operation."""

    messages: tuple[Emitted, ...] = ()
    origin: OriginMark | None = None
    truncate_options: int = 0
    """Options of its TRUNCATE: 1 CASCADE, 2 RESTART IDENTITY."""
    moved: tuple[MovedKey, ...] = ()
    """Rows of this table whose key it has changed."""
    updated: int = 0
    """Number of rows of this table that it has updated, if it has only updated rows."""
    statements: str = ""
    """Name of the file with the changes of each statement
    (``publish.capture.statementchanges``)."""
    sent: SentBatch | None = None
    """Position of its changes in the log of a subscription; None if it has other changes."""
    xid: int = 0
    """The local transaction's number; 0 if the commit has none."""


NO_REMARKS: Final = CommitRemarks()


def with_remarks(operation: str, remarks: CommitRemarks) -> str:
    """Append the facts to the name of the operation."""
    values: dict[str, Any] = {}
    if remarks.messages:
        values["messages"] = [
            (m.prefix, base64.b64encode(m.content).decode()) for m in remarks.messages
        ]
    if remarks.origin is not None:
        values["origin"] = remarks.origin
    if remarks.truncate_options:
        values["truncate"] = remarks.truncate_options
    if remarks.moved:
        values["moved"] = remarks.moved
    if remarks.updated:
        values["updated"] = remarks.updated
    if remarks.statements:
        values["statements"] = remarks.statements
    if remarks.sent is not None:
        values["sent"] = remarks.sent
    if remarks.xid:
        values["xid"] = remarks.xid
    return f"{operation}{_MARK}{json.dumps(values)}" if values else operation


def operation_and_remarks(text: str) -> tuple[str, CommitRemarks]:
    """Decode a commit's text; the text of a foreign writer is an operation without facts."""
    operation, mark, rest = text.partition(_MARK)
    if not mark:
        return text, CommitRemarks()
    try:
        values = json.loads(rest)
        messages = [
            Emitted(str(p), base64.b64decode(c, validate=True))
            for p, c in values.get("messages", ())
        ]
        origin = values.get("origin")
        if origin is not None:
            name, lsn, time_us = origin
            time = None if time_us is None else int(time_us)
            origin = OriginMark(str(name), int(lsn), time)
        options = int(values.get("truncate", 0)) & _OPTIONS
        moved = moved_from(values.get("moved", ()))
        updated = int(values.get("updated", 0))
        statements = str(values.get("statements", ""))
        xid = int(values.get("xid", 0))
        if not 0 <= xid <= _LAST_XID:
            xid = 0
        as_sent = values.get("sent")
        if as_sent is not None:
            position, changes, marks, whole = as_sent
            marks = tuple(map(int, marks))
            as_sent = SentBatch(int(position), int(changes), marks, bool(whole))
    except (ValueError, TypeError, AttributeError, binascii.Error):
        return text, CommitRemarks()
    if _NAME.fullmatch(statements) is None:
        statements = ""
    return operation, CommitRemarks(
        tuple(messages), origin, options, moved, updated, statements, as_sent, xid
    )
