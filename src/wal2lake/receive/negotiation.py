"""Chooses the options of START_REPLICATION by the publisher's version. Pure.

In: a subscription, the server's version, the start position. Out: the command, and the kinds of
messages that it may produce. As in PostgreSQL's subscriber, a publisher that is too old for an
option gets the best that it supports: protocol 2 with PostgreSQL 14, 3 with 15, 4 from 16 on;
``parallel`` becomes ``on`` before 16 and is left out before 14. This node treats ``parallel`` and
``on`` alike: it decodes changes as they arrive. ``remotetypes`` decides about ``binary``.

Source: set_stream_options() in src/backend/replication/logical/worker.c;
libpqrcv_startstreaming(); reference 3.4, 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import Subscription
from wal2lake.model import Lsn
from wal2lake.pg.quoting import quote_ident, quote_literal

_PROTOCOLS: Final = ((160000, 4), (150000, 3), (140000, 2))
"""First server version of each protocol version, newest first."""

_TWO_PHASE_PROTOCOL: Final = 3


@dataclass(frozen=True, slots=True)
class Negotiated:
    """Options of one connection."""

    command: str
    """The START_REPLICATION command."""
    streaming: bool
    """Whether transactions may arrive before they commit."""
    two_phase: bool
    """Whether transactions are requested when they are prepared."""
    may_prepare: bool
    """Whether prepared transactions may arrive even if they are not requested: a slot that was
    created or once used with two_phase always sends them."""


def negotiate(
    subscription: Subscription,
    *,
    server_version: int,
    start: Lsn,
    messages: bool,
    two_phase: bool,
    binary: bool,
) -> Negotiated:
    """Build the command for this publisher. ``messages``: whether to request logical messages."""
    protocol = next((p for least, p in _PROTOCOLS if server_version >= least), 1)
    streaming = None
    if subscription.streaming == "parallel" and server_version >= 160000:
        streaming = "parallel"
    elif subscription.streaming != "off" and server_version >= 140000:
        streaming = "on"
    options = [f"proto_version '{protocol}'"]
    if streaming is not None:
        options.append(f"streaming '{streaming}'")
    if two_phase:
        options.append("two_phase 'on'")
    # A publisher before PostgreSQL 16 sends changes of any origin, and refuses origin = none.
    if server_version >= 160000 or subscription.origin == "none":
        options.append(f"origin {quote_literal(subscription.origin)}")
    names = ",".join(quote_ident(p) for p in subscription.publications)
    options.append(f"publication_names {quote_literal(names)}")
    # pgoutput supports logical messages since PostgreSQL 14.
    if server_version >= 140000 and messages:
        options.append("messages 'true'")
    if binary:
        options.append("binary 'true'")
    slot = quote_ident(str(subscription.slot_name))
    return Negotiated(
        f"START_REPLICATION SLOT {slot} LOGICAL {start} ({', '.join(options)})",
        streaming is not None,
        two_phase,
        protocol >= _TWO_PHASE_PROTOCOL,
    )
