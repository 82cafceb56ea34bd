"""``wal2lake check``: tells whether a subscription to this server will work.

Takes: a connection string, names of publications. Gives: findings on the terminal, an exit code.
Owns: the form of the report. Never: changes anything there, judges (``preflight`` does).

    run       asks the server, and has the answers judged
    report    the lines of the report; pure
"""

from wal2lake.cli.check.run import run

__all__ = ["run"]
