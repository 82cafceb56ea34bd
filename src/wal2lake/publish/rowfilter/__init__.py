"""Row filters: the WHERE of a published table.

Takes: a typed expression (the frontend parses and types it). Gives: its text as pg_get_expr() has
it, its value for rows of PostgreSQL texts, what becomes of a change. Owns: nothing. Never: looks a
name up, or fails for a type that ``CREATE PUBLICATION`` has accepted.

    tree        the expression, and how the catalog keeps it
    deparse     as text
    values      PostgreSQL's texts as values that compare and compute as PostgreSQL's do
    operators   what each operator and function computes
    members     -> and ->>
    patterns    regular expressions
    evaluate    one expression, row by row, with three-valued logic
    vectors     expressions that Arrow computes, column by column
    stored      the rows of a table's files that a filter lets through
    transform   several publications' filters, and what an UPDATE becomes
"""

from wal2lake.publish.rowfilter.deparse import deparse
from wal2lake.publish.rowfilter.evaluate import Filter
from wal2lake.publish.rowfilter.stored import StoredFilter
from wal2lake.publish.rowfilter.transform import (
    Outcome,
    combined,
    transform,
    transforms,
)
from wal2lake.publish.rowfilter.tree import Expression, Node, decode, encode

__all__ = [
    "Expression",
    "Filter",
    "Node",
    "Outcome",
    "StoredFilter",
    "combined",
    "decode",
    "deparse",
    "encode",
    "transform",
    "transforms",
]
