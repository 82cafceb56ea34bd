"""Serves one client's session, from the first ReadyForQuery to the last.

Takes: an authenticated client, a Backend. Gives: PostgreSQL's protocol, transaction states,
session parameters, interrupts. Owns: the prepared statements and portals. Never: understands
SQL beyond transaction control, SET and SHOW.

    main         the main loop               transaction   the transaction's states, as a table
    extended     Parse, Bind ...             prepared      prepared statements, portals
    executor     runs one statement          results       sends rows
    commands     parses session commands     copying       sends the rows of COPY
    interrupts   cancel, timeout, end
"""

from wal2lake.door.session.interrupts import Interrupt
from wal2lake.door.session.main import ClientSession, ReplicationRunner

__all__ = ["ClientSession", "Interrupt", "ReplicationRunner"]
