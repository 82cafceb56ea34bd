"""Log lines, measurements and failpoints of a running process.

Takes: events as key-value pairs, numbers, failpoint names. Gives: log lines on stderr, a file of
numbers that other processes read (``telemetry``), faults on request, locks whose order a test can
check. Owns: the log configuration of a process, the order
of locks. Never: decides anything.
"""

from wal2lake.observe.failpoints import failpoint, seconds_ahead
from wal2lake.observe.locks import KeyedLocks, LockRank, OrderedLock
from wal2lake.observe.logs import configure, get_logger
from wal2lake.observe.repeats import RepeatedErrors

__all__ = [
    "KeyedLocks",
    "LockRank",
    "OrderedLock",
    "RepeatedErrors",
    "configure",
    "failpoint",
    "get_logger",
    "seconds_ahead",
]
