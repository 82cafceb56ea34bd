"""What sessions that work at the same time ask of each other.

snapshots     which versions a statement reads, while others commit
heldtables    what prepared transactions hold
turns         commands that must not interleave
"""
