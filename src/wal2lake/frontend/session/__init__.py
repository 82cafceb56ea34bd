"""One client's session, from the first ReadyForQuery to the last.

Takes: a client that was let in, a Backend. Gives: PostgreSQL's protocol, transaction states,
session parameters, interrupts. Owns: the prepared statements and portals. Never: understands
SQL beyond transaction control, SET and SHOW.

    main         the loop                    transaction   BEGIN ... COMMIT as a table
    extended     Parse, Bind ...             prepared      prepared statements, portals
    executor     runs one statement          results       rows going out
    commands     the session's own grammar   interrupts    cancel, timeout, end
"""

from wal2lake.frontend.session.interrupts import Interrupt
from wal2lake.frontend.session.main import Replication, Session

__all__ = ["Interrupt", "Replication", "Session"]
