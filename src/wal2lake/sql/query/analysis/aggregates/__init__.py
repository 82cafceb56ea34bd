"""Translates aggregates and window functions.

Takes: a call with its FILTER, OVER, ORDER BY and WITHIN GROUP. Gives: an operand. Owns:
nothing. Never: passes on an aggregate for which it has no rule.

    calls     one call with the clauses around it; start here
    rules     rules by the type of the argument
    arrange   aggregates that need their values in an order, or all at once
"""
