"""One binary value to its canonical text.

Takes: the bytes that a type's send function wrote. Gives: what its output function writes
(TimeZone UTC, DateStyle ISO, IntervalStyle postgres). Owns: the formats of single values. Never:
knows which type a column has, nor what is stored.

    scalar       ``READERS``: built-in types without parts, by OID
    datetime, network, geometric, textsearch   families of them
    nested       ranges, composites, hstore, vectors, over the readers of their parts
    cursor       reading fields out of a value's bytes
"""
