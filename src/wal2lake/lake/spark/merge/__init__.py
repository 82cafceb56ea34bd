"""Applies keyed batches that do not fit into memory: net change by DataFrames, then MERGE.

Takes: staged changes and the table's state. Gives: one commit with its cursor, or the first event
that cannot be applied. Owns: the settings of our MERGE, key changes across a cluster. Never:
batches that ``upsert`` can take.

Modules: ``netchange``, ``alike``, ``moves``, ``follow``, ``merge``; ``multiset`` for tables
without a key.
"""
