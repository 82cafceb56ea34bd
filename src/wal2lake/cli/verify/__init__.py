"""``wal2lake verify``: proves that tables have the same rows as their sources.

Takes: a node's directory, connection strings, names of tables, a subscription. Gives: a report on
the terminal or as JSON, an exit code. Owns: the form of the report.

    run          chooses what is compared, and prints the report
    ofnode       has a node compare its tables with their sources (VERIFY)
    pairs        compares tables of two servers
    report       the report on a node's tables; pure
    pairreport   the report on pairs of tables; pure
    display      progress, while tables are compared
"""

from wal2lake.cli.verify.run import run

__all__ = ["run"]
