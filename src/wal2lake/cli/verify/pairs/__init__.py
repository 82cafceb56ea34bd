"""Comparison of tables of two servers from outside: each a node or PostgreSQL.

Takes: two connection strings, patterns of tables, publications, a condition; or a subscriber's
subscription. Gives: a result for each table. Owns: transactions at both servers that see one state.
Never: writes anything, prints anything.

    patterns     the names of tables
    ends         a server, what it can do, its tables
    subscriber   a subscriber and its publisher at one LSN
    copied       rows that are read by COPY
    pairing      two tables as the sides of a comparison
    comparing    one table after the other
"""

from wal2lake.cli.verify.pairs.comparing import (
    CANCELED,
    PairProgress,
    PairRequest,
    PairResult,
    compare_servers,
    compare_subscriber,
)
from wal2lake.cli.verify.pairs.patterns import TablePattern

__all__ = [
    "CANCELED",
    "PairProgress",
    "PairRequest",
    "PairResult",
    "TablePattern",
    "compare_servers",
    "compare_subscriber",
]
