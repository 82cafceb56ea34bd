"""Rows of COPY ... FROM STDIN on their way into a transaction's branch.

Takes: blocks of rows as the client has sent them (``wire.copyin``). Gives: data files of the branch
and one commit; PostgreSQL's errors. Owns: the spellings of values, skipped rows. Never: knows how
rows are divided, or who sends them.

    rows      the rows of one COPY; start here
    values    spellings of values, and the errors of values that are none
"""

from wal2lake.local.transaction.copied.rows import CopiedRows, Leniency

__all__ = ["CopiedRows", "Leniency"]
