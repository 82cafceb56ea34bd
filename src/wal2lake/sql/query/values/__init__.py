"""Translates values of PostgreSQL's types to Spark expressions.

Takes: operands (expressions with types), texts of constants. Gives: Spark expressions with the
values that PostgreSQL computes. Owns: nothing. Never: looks at a whole query.

    types         ``Type`` and ``Operand``; start here
    casts         explicit and implicit conversions
    assign        conversions to the type of a column
    literals      constants
    undetermined  parameters whose types are inferred
    numeric       exact order, sums and quotients
    floats        overflow and underflow
    moments       dates, times, zones
    intervals     fields, order and text of intervals
    output        values to text
    texts         text to values
"""
