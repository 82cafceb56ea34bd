"""Typed Arrow to PostgreSQL's text or binary format, column by column.

Takes: a column of a result and its PostgreSQL type. Gives: the bytes of each value, None for
NULL. Owns: nothing. Never: converts to another type, returns text as binary format.

    text       ``arrow_to_text``: the output functions
    binary     ``arrow_to_binary``: the send functions
    values     binary form of single values from their text; ``ranges``: of ranges
    textsearch binary form of tsvector and tsquery from their text
    sent       ``text_to_binary``: a column of text from the log, in binary
    datetime   dates, times and intervals with DateStyle ISO
    interval   intervals from text, and in binary
    float      the shortest digits, as PostgreSQL chooses them
"""
