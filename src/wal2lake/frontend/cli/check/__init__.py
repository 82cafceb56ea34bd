"""``wal2lake check``: will a subscription to this server work?

Takes: a connection string, names of publications. Gives: findings on the terminal, an exit
code. Owns: what is said about a publisher, and its remedies. Never: changes anything there.

    run        asks
    findings   judges and words it; pure
"""

from wal2lake.frontend.cli.check.run import run

__all__ = ["run"]
