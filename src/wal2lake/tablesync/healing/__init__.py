"""Copies of tables that have rows already, by the rows that differ.

Takes: a planned copy, a reader's task, the batches of the lake. Gives: one commit with the copy's
cursor, or the reason why the table has to be copied whole. Never: chooses tables or snapshots.

    healer   compares, reads and commits
"""

from wal2lake.tablesync.healing.healer import HealedTable, Healer

__all__ = ["HealedTable", "Healer"]
