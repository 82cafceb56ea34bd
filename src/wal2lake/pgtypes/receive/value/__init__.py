"""One binary value to its canonical text.

Takes: the output of a type's send function. Gives: the output of its output function
(TimeZone UTC, DateStyle ISO, IntervalStyle postgres). Owns: the formats of single values. Never:
depends on a column's type or its storage.

    scalar       ``READERS``: built-in types without parts, by OID
    datetime, network, geometric, textsearch   families of such types
    nested       ranges, composites, hstore, vectors, over the readers of their parts
    cursor       reading of fields from a value's bytes
"""
