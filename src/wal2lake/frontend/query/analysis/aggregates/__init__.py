"""Aggregates and window functions.

Takes: a call with its FILTER, OVER, ORDER BY and WITHIN GROUP. Gives: an operand. Owns:
nothing. Never: lets an aggregate pass that it has no rule for.

    calls     one call with what stands around it; start here
    rules     by the argument's type
    arrange   those that need their values in an order, or all at once
"""
