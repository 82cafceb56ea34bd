"""PostgreSQL's text to typed Arrow, column by column: the hot path of copy and apply.

Takes: Arrow binary as the publisher sent it, the column's mapping. Gives: a ``Conversion``: the
typed array, and the rows that could not be converted, with their reasons. Owns: nothing. Never:
changes a value silently, fails as a whole because of one bad value, depends on a session.

    text         ``text_to_arrow``: each kind of mapping to its family's conversion
    scalar       booleans, numbers, text, bytes
    datetime     dates and timestamps
    array        arrays and hstore, over ``literal``, which finds their elements
    inputs       texts of one type as values of another, over ``addresses`` and ``jsontext``
    length       declared lengths
    conversion   the result of a conversion, and the method of all conversions
"""
