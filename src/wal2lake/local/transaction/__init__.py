"""Local transactions: the writes of a session that nobody else sees yet.

Takes: INSERT, UPDATE, DELETE and TRUNCATE of one session, its savepoints. Gives: row counts, the
transaction's own view of its tables, one commit. Owns: the branches of the session. Never: knows
SQL beyond the Spark text that it is given.

    local        the transaction of a session: branches, savepoints; start here
    plainwrites  writes that need no Spark
    generation   generated columns
    checks       CHECK constraints and privileges on branches
    messages     logical messages
    definitions  subscriptions and publications that a block has defined
    recovery     ends or removes what a crash has left of commits

Decision 0009.
"""
