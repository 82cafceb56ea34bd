"""Initial copy of a subscription's tables.

Takes: relation states i and d, an exported snapshot, the publisher. Gives: one commit per
table that holds the whole copy and the cursor S. Owns: the states i, d, f of
pg_subscription_rel and the finished ranges. Never: reads the change log, takes the snapshot
itself (the receiver does), applies a change.

    worker   who is copied now; where commands end copies; start here
    turns    whose turn it is, among tables and among ranges
    attempt  one attempt of one table, and whether it may still write
    group    a few tables from plan to state f
    plan     ranges, bundles, groups; what each range asks
    copy     what runs in an executor
"""
