"""Commits to a subscription's tables other than the batches of its log.

Takes: a catalog, tables, the change to commit, under the locks of the tables. Gives: one change of
table and catalog. Owns: the order of the durable steps of ALTER TABLE. Never: takes a lock, but
for history tables, which nobody else writes.

    visible     decides which new versions of tables readers may see
    altering    carries out ALTER TABLE
    histories   history tables: finds, fits and finishes them
    keptrows    deleted rows that stay when a copy replaces a table's rows
"""
