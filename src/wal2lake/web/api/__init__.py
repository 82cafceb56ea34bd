"""JSON and server-sent events for the page, and the page's files.

Takes: readings of the node (``NodeFacts`` and ``Problem``), the catalog for one table's history.
Gives: ``PageApi``, whose routes the web process includes. Owns: one reading a second that all
browsers share, and the last hour of rates and lag in memory. Never: writes, or lets a
slow browser hold memory.

    feed        ``PageFeed``: one thread that reads; its subscribers get each ``Reading``
    rates       rows, bytes and commits per second from counters
    history     the last hour, in rings of floats
    documents   facts and problems as JSON
    tablepage   one table: versions, conflicts, coercions, changes of its columns
    events      server-sent events, with bounded queues
    routes      ``PageApi``
"""

from wal2lake.web.api.feed import PageFeed, Reading
from wal2lake.web.api.routes import PageApi

__all__ = ["PageApi", "PageFeed", "Reading"]
