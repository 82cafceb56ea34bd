"""Local transactions: what the statements of a session have written and nobody else sees yet.

Takes: INSERT, UPDATE, DELETE and TRUNCATE of one session, its savepoints. Gives: row counts, what
its own statements see, one commit. Owns: the order of durable steps of a
commit. Never: knows SQL beyond Spark's text that it is given.

    local       the transaction of a session: branches, savepoints
    uniqueness  23505
    commit      from branches into tables, all or none
    recovery    what a crash has left of commits
    definitions what a block has defined of subscriptions and publications

Decision 0009.
"""
