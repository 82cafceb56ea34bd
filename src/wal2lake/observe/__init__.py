"""Makes a running process observable to operators and tests.

Takes: events as key-value pairs, failpoint names. Gives: log lines on stderr, faults on
request. Owns: the log configuration of a process. Never: decides anything.
"""

from wal2lake.observe.failpoints import failpoint
from wal2lake.observe.logs import configure, get_logger
from wal2lake.observe.repeats import RepeatedErrors

__all__ = ["RepeatedErrors", "configure", "failpoint", "get_logger"]
