"""State that concurrent sessions share.

snapshots     which versions a statement reads, while others commit
heldtables    what prepared transactions hold
sequences     values that each statement has for itself
activeorigins which session replays from where
turns         commands that must not interleave
"""
