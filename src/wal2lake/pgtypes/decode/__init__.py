"""PostgreSQL's text to typed Arrow, a column at a time: the hot path of copy and apply.

Takes: Arrow binary as the publisher sent it, the column's mapping. Gives: a ``Conversion``: the
typed array, and the rows that could not be converted, with their reasons. Owns: nothing. Never:
changes a value in silence, fails as a whole for one bad value, knows a session.

    text         ``text_to_arrow``: each kind of mapping to its family's conversion
    scalar       booleans, numbers, text, bytes
    datetime     dates and timestamps
    array        arrays and hstore, over ``literal``, which finds their elements
    inputs       texts of one type as values of another; ``addresses``, ``jsontext``: how they print
    length       declared lengths
    conversion   what a conversion returns, and how every one works
"""
