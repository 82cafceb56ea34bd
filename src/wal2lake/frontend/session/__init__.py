"""One client's session, from its first byte to its last.

Takes: a connected socket, what the node allows (``Door``), a Backend. Gives: PostgreSQL's
protocol, transaction states, session parameters, interrupts. Owns: the socket, the prepared
statements and portals. Never: understands SQL beyond transaction control, SET and SHOW.

    transport      the socket             scan, commands   statements and the session's own
    conversation   messages               executor         runs one statement
    greeting, auth up to being let in     transaction      BEGIN ... COMMIT as a table
    main           the loop               statements       prepared statements, portals
    extended       Parse, Bind ...        results          rows going out
    interrupts     cancel, timeout, end   diagnostics      errors as fields
"""

from wal2lake.frontend.session.auth import AuthMethod, RoleSource
from wal2lake.frontend.session.conversation import Conversation
from wal2lake.frontend.session.diagnostics import SessionEnd
from wal2lake.frontend.session.greeting import Door, Greeting
from wal2lake.frontend.session.interrupts import Interrupt
from wal2lake.frontend.session.main import Session
from wal2lake.frontend.session.transport import Transport, TransportClosed

__all__ = [
    "AuthMethod",
    "Conversation",
    "Door",
    "Greeting",
    "Interrupt",
    "RoleSource",
    "Session",
    "SessionEnd",
    "Transport",
    "TransportClosed",
]
