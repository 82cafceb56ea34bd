"""Branches written and read by Spark and by Delta.

Takes: a table and the version that a transaction sees. Gives: a Delta table of its own that begins
with that version's files, and its net change as actions for the table itself. Owns: where the
files of a branch are. Never: commits to a table.

    branches    making, cutting back and removing branches; files on their way into the table
    rebase      the net change of a branch, for a table that others have changed since
    generated   the values of generated columns in a branch
    keys        is a key there twice?
"""
