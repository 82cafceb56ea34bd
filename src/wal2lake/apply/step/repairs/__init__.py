"""Writes rows of the source over rows that differ.

Takes: rows as they are at the source at an LSN, the state of their table. Gives: a staged batch, or
one commit that is published. Never: reads the source.

    sourcerows  stages rows of the source as a batch
    repairing   writes them when the worker has published the state of their LSN
"""
