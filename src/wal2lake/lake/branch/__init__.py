"""Branches: the writes of a transaction before it commits, one for each table.

Takes: a table and the version that the transaction sees. Gives: a Delta table of its own that
begins with that version's files, and what has become of it, as actions for the table itself.
Owns: where the files of a branch are. Never: commits to a table.

    changes    the net change of a branch's log; pure
    rebase     that change, for a table that others have changed since
    branches   making, cutting back and removing branches; files on their way into the table
    keys       is a key there twice?
    lookup     the same for few keys, in this process
"""
