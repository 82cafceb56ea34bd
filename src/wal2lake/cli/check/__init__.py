"""``wal2lake check``: will a subscription to this server work?

Takes: a connection string, names of publications. Gives: findings on the terminal, an exit
code. Owns: how they are shown. Never: changes anything there, judges (``preflight`` does).

    run       asks, and has it judged
    report    the lines; pure
"""

from wal2lake.cli.check.run import run

__all__ = ["run"]
