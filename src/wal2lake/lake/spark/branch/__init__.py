"""Branches written and read by Spark and by Delta.

Takes: a table and the version that a transaction sees. Gives: a Delta table of its own that begins
with that version's files, and its net change as actions for the table itself. Owns: the location
of a branch's files. Never: commits to a table.

    branches    opens, cuts back and removes branches; moves their files into the table
    rebase      the net change of a branch, for a table that other writers have changed since
    generated   the values of generated columns in a branch
    keys        finds repeated keys
"""
