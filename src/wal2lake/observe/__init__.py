"""What an operator and a test can see of a running process.

Takes: events as key-value pairs, failpoint names. Gives: log lines on stderr, faults on
request. Owns: the log configuration of a process. Never: decides anything.
"""

from wal2lake.observe.failpoints import failpoint
from wal2lake.observe.logs import configure, get_logger
from wal2lake.observe.repeats import RepeatedErrors

__all__ = ["RepeatedErrors", "configure", "failpoint", "get_logger"]
