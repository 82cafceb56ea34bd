"""Encodes a transaction's words beside its rows in the commit of one of its tables. Pure. Pure.

Comes in: the commit's word (its user metadata in the table's log), what pg_logical_emit_message was
given, the replication origin of the session, and what its rows do not tell of the statements.
Goes out: one text, and all of it again:

    local transaction 7 with {"messages": [["prefix", "Y29udGVudA=="]], "origin": ["o", 5, null]}
    truncate with {"truncate": 3}
    local transaction with {"moved": [[["1"], ["2"]]]}
    local transaction with {"xid": 2031}
    upsert with {"sent": [26447808, 2000, [2774310287], true]}

So it is there if and only if the rows are, and nobody has to remove it.
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
    """Where a transaction comes from, as pg_replication_origin_xact_setup said."""

    name: str
    lsn: int
    """Position of the transaction at its origin; 0: not known."""
    time_us: int | None
    """Commit time at its origin, since 2000-01-01 UTC; None: not known."""


class Sent(NamedTuple):
    """A subscription's batch that a table has taken just as it was sent: whoever has the changes
    of the log, and nothing else, has what this commit did to the table."""

    position: int
    """The lowest commit LSN that counts; the commit's cursor is above the last."""
    changes: int
    """How many rows of the log that were, TRUNCATEs among them."""
    relations: tuple[int, ...]
    """The ``relation_mark`` of each relation version that they are of."""
    found_whole: bool
    """The old rows that were sent are those that the table had; False: their keys are."""


def relation_mark(relation: Relation) -> int:
    """Return the identity of a publisher's relation: its OID, its name and those of its columns."""
    names = [column.name for column in relation.columns]
    known = [int(relation.relid), relation.namespace, relation.name, *names]
    return zlib.crc32(json.dumps(known).encode())


def sent(
    position: int,
    changes: int,
    relations: Collection[Relation],
    *,
    found_whole: bool = True,
) -> Sent:
    """Describe a batch in its commit."""
    marks = sorted({relation_mark(relation) for relation in relations})
    return Sent(position, changes, tuple(marks), found_whole)


@dataclass(frozen=True, slots=True)
class More:
    """A commit's words beside its operation."""

    messages: tuple[Emitted, ...] = ()
    origin: OriginMark | None = None
    truncate_options: int = 0
    """Options of its TRUNCATE: 1 CASCADE, 2 RESTART IDENTITY."""
    moved: tuple[MovedKey, ...] = ()
    """Rows of this table whose key it has changed."""
    updated: int = 0
    """How many rows of this table it has updated, if that is all that it has done to any."""
    statements: str = ""
    """Where its statements are written down one by one (``publish.capture.statements``)."""
    sent: Sent | None = None
    """Where its changes are in the log of a subscription; None: it is not just those."""
    xid: int = 0
    """The local transaction's number; 0: the commit does not say."""


NOTHING_MORE: Final = More()


def with_more(operation: str, said: More) -> str:
    """A commit's word, and what its transaction says."""
    more: dict[str, Any] = {}
    if said.messages:
        more["messages"] = [
            (m.prefix, base64.b64encode(m.content).decode()) for m in said.messages
        ]
    if said.origin is not None:
        more["origin"] = said.origin
    if said.truncate_options:
        more["truncate"] = said.truncate_options
    if said.moved:
        more["moved"] = said.moved
    if said.updated:
        more["updated"] = said.updated
    if said.statements:
        more["statements"] = said.statements
    if said.sent is not None:
        more["sent"] = said.sent
    if said.xid:
        more["xid"] = said.xid
    return f"{operation}{_MARK}{json.dumps(more)}" if more else operation


def word_and_more(text: str) -> tuple[str, More]:
    """The inverse; a text that anybody else wrote is a word alone."""
    operation, mark, rest = text.partition(_MARK)
    if not mark:
        return text, More()
    try:
        more = json.loads(rest)
        found = [
            Emitted(str(p), base64.b64decode(c, validate=True))
            for p, c in more.get("messages", ())
        ]
        origin = more.get("origin")
        if origin is not None:
            name, lsn, time_us = origin
            time = None if time_us is None else int(time_us)
            origin = OriginMark(str(name), int(lsn), time)
        options = int(more.get("truncate", 0)) & _OPTIONS
        moved = moved_from(more.get("moved", ()))
        updated = int(more.get("updated", 0))
        statements = str(more.get("statements", ""))
        xid = int(more.get("xid", 0))
        if not 0 <= xid <= _LAST_XID:
            xid = 0
        as_sent = more.get("sent")
        if as_sent is not None:
            position, changes, marks, whole = as_sent
            marks = tuple(map(int, marks))
            as_sent = Sent(int(position), int(changes), marks, bool(whole))
    except (ValueError, TypeError, AttributeError, binascii.Error):
        return text, More()
    if _NAME.fullmatch(statements) is None:
        statements = ""
    return operation, More(
        tuple(found), origin, options, moved, updated, statements, as_sent, xid
    )
