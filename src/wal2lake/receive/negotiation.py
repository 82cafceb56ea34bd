"""Chooses the options of START_REPLICATION by the publisher's version. Pure. Pure.

In: a subscription, the server's version, where to start. Out: the command, and which messages
may come of it. As PostgreSQL's subscriber, a publisher that is too old for an option is asked
for the best it has: protocol 2 with PostgreSQL 14, 3 with 15, 4 from 16 on; ``parallel``
becomes ``on`` below 16 and nothing below 14. To this node both mean the same: it decodes what
comes while it comes. Whether ``binary`` is asked for, ``remotetypes`` decides.

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
"""The server version from which on each protocol is there, newest first."""

_TWO_PHASE_PROTOCOL: Final = 3


@dataclass(frozen=True, slots=True)
class Negotiated:
    """Options that one connection asks for."""

    command: str
    """START_REPLICATION."""
    streaming: bool
    """Transactions may arrive before they commit."""
    two_phase: bool
    """Transactions are wanted when they are prepared."""
    may_prepare: bool
    """They may come then all the same: a slot that was made with two_phase, or has had
    it once, decides for itself."""


def negotiate(
    subscription: Subscription,
    *,
    server_version: int,
    start: Lsn,
    messages: bool,
    two_phase: bool,
    binary: bool,
) -> Negotiated:
    """The command for this publisher; ``messages``: logical messages are wanted too."""
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
    # A publisher before PostgreSQL 16 sends changes of any origin, and refuses to be
    # asked for less.
    if server_version >= 160000 or subscription.origin == "none":
        options.append(f"origin {quote_literal(subscription.origin)}")
    names = ",".join(quote_ident(p) for p in subscription.publications)
    options.append(f"publication_names {quote_literal(names)}")
    # PostgreSQL 14 brought logical messages to pgoutput.
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
