"""Reading an object by ranges.

Takes: the ranges that pyarrow will read next. Gives: a file of pyarrow that has them in memory.
Owns: how ranges become requests. Never: knows what a file means, or repeats a request itself.

    ranges        ranges to requests, and answers to bytes; pure
    windows       which parts of large ranges are in memory; pure
    objectreader  one object as a file
"""

from wal2lake.lake.store.reading.objectreader import ObjectReader

__all__ = ["ObjectReader"]
