"""Reads the changes of rows from a table's commits.

commits   a commit's actions: which files came, went, or lost rows (pure)
moves     which rows of a commit are one, though their key has changed (pure)
rows      the rows behind them, as INSERT, UPDATE and DELETE
replay    a batch of a subscription as the publisher's transactions made it
"""
