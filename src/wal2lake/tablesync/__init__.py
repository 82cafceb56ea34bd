"""Initial copy of a subscription's tables.

Takes: relation states i and d, an exported snapshot, the publisher. Gives: one commit per
table that holds the whole copy and the cursor S. Owns: the states i, d, f of
pg_subscription_rel and the finished ranges. Never: reads the change log, takes the snapshot
itself (the receiver does), applies a change.
"""
