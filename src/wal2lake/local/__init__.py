"""Transactions that begin on this node: their writes, their commit and its recovery.

Takes: INSERT, UPDATE, DELETE and TRUNCATE of one session, definitions of a block. Gives: row
counts, the session's own view of its writes, one durable commit. Owns: the order of durable steps
of a local commit, and what sessions that work at the same time hold. Never: parses a statement,
speaks the protocol, applies a replicated change.

    transaction/  the transaction of a session; start here
    commits/      commits it into its tables, all or none; prepared transactions
    concurrency/  snapshots, locks, sequences and turns that sessions share
    catalogs/     entries of the tables in catalogs of others
    mirrors/      tables as readers of Iceberg see them
    retention/    VACUUM: states and files that nobody needs any more
    node          the parts of the running engine that a command can reach
    access        privilege checks

Decision 0009. ``lake.branch`` writes the branches; ``apply.local`` changes table versions for
ALTER TABLE and for apply.
"""
