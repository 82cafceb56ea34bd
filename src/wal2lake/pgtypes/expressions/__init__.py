"""PostgreSQL's expressions over a table's columns: row filters, CHECK constraints and generated
columns.

Takes: a typed expression (``commands.publication`` types it). Gives: its text as in pg_get_expr(),
and its value for rows of PostgreSQL texts or of stored columns. Owns: nothing. Never: looks up a
name, or fails for a type that the command with the expression has accepted.

    tree        the expression, and its form in the catalog
    deparse     the expression as text
    values      PostgreSQL's texts as values that compare and compute as PostgreSQL's do
    operators   the computation of each operator and function
    members     -> and ->>
    patterns    regular expressions
    evaluate    one expression, row by row, with three-valued logic
    vectors     expressions that Arrow computes, column by column
    stored      the rows of a table's files for which an expression is true
    computed    the values of a column that an expression computes
"""

from wal2lake.pgtypes.expressions.computed import Computation, assignable
from wal2lake.pgtypes.expressions.deparse import deparse
from wal2lake.pgtypes.expressions.evaluate import Filter
from wal2lake.pgtypes.expressions.stored import StoredFilter
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode, decode, encode

__all__ = [
    "Computation",
    "Expression",
    "ExpressionNode",
    "Filter",
    "StoredFilter",
    "assignable",
    "decode",
    "deparse",
    "encode",
]
