"""``wal2lake verify``: proves that the tables of a node are those of their sources.

Takes: a node's directory, names of tables, a subscription. Gives: a report on the terminal, an exit
code. Owns: the form of the report. Never: compares anything (VERIFY does).

    run       sends VERIFY to the node
    report    the lines of the report; pure
"""

from wal2lake.cli.verify.run import run

__all__ = ["run"]
