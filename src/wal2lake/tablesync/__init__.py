"""Initial copy of a subscription's tables.

Takes: relation states i and d, an exported snapshot, the publisher. Gives: one commit per table
that holds the whole copy and the cursor S. Owns: the states i, d, f of pg_subscription_rel and the
finished ranges. Never: reads the change log, takes a snapshot (the receiver does), applies a
change.

    worker   assigns waiting tables to workers; commands end copies here; start here
    turns    the order of waiting tables and of waiting ranges
    attempt  one attempt to copy one table, and whether it may still commit
    measures what copies have read, expect, and failed with
    group    the copies of a few tables, from plan to state f
    plan     ranges, bundles, groups; the statements of a range
    copy     the code that runs in an executor
"""
