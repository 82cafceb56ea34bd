"""``wal2lake demo``: the whole product in about a minute.

Takes: seconds. Gives: progress on the terminal, and 0 only if every row was equal. Owns: a
PostgreSQL and a node, until it ends. Never: uses what a user does not have.

    run        the play, act by act
    workload   a shop, and somebody who keeps using it
    compare    every row of the copy with its source
"""

from wal2lake.cli.demo.run import run

__all__ = ["run"]
