"""Functions and operators: what each means for the types of its operands.

Takes: a node, or a function's name, and its operands. Gives: an operand in Spark's terms.
Owns: nothing. Never: lets a function pass that it has no rule for.

    rules        by the kind of node: operators, and functions that the parser knows; start here
    calls        functions by name
    arithmetic   + - * / %, rounding, series
    strings, patterns, arrays, dates, formats, json   one family each
"""
