"""``wal2lake demo``: the whole product in about a minute.

Takes: seconds. Gives: progress on the terminal, and exit code 0 only if every row was equal. Owns:
a PostgreSQL and a node, until the demo ends. Never: uses what a user does not have.

    run        the steps of the demo
    workload   a shop, and its constant use
    compare    compares every row of the copy with its source
"""

from wal2lake.cli.demo.run import run

__all__ = ["run"]
