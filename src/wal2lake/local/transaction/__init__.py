"""Local transactions: writes of a session that other sessions don't see yet.

Takes: INSERT, UPDATE, DELETE and TRUNCATE of one session, its savepoints. Gives: row counts, the
transaction's own view of its tables, one commit. Owns: the branches of the session. Never:
interprets SQL; statements arrive translated for Spark.

    local            the transaction of a session: branches, savepoints; start here
    plainwrites      writes that need no Spark
    rowwrites        writes that return their rows
    upserts          INSERT ... ON CONFLICT
    generation       generated columns
    writtenchecks    CHECK constraints and privileges on branches
    emittedmessages  logical messages
    definitions      subscriptions and publications that a block defines
    recovery         ends or removes interrupted commits

Decision 0009.
"""
