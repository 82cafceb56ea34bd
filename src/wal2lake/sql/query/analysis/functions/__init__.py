"""Translates functions and operators by the types of their operands.

Takes: a node, or a function's name, and its operands. Gives: an operand in Spark's terms.
Owns: nothing. Never: passes on a function for which it has no rule.

    rules        rules by the kind of node: operators, and functions that sqlglot knows; start here
    calls        rules by a function's name
    arithmetic   + - * / %, rounding, series
    strings, patterns, arrays, dates, formats, json   one family each
"""
