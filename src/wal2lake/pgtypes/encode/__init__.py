"""Typed Arrow to what PostgreSQL would send: text or binary, a column at a time.

Takes: a column of a result and its PostgreSQL type. Gives: the bytes of each value, None for
NULL. Owns: nothing. Never: converts to another type, calls a binary form what is text.

    text       ``arrow_to_text``: the output functions
    binary     ``arrow_to_binary``: the send functions
    values     single values, from their text; ranges: those that consist of others
    textsearch tsvector and tsquery, from theirs
    sent       ``text_to_binary``: a column of text, as the log has it, in binary
    datetime   dates, times and intervals with DateStyle ISO
    interval   intervals read from text, and in binary
    float      the shortest digits, as PostgreSQL chooses them
"""
