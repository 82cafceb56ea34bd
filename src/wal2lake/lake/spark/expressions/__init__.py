"""Users' expressions that resolve conflicts, checked and evaluated by Spark.

Takes: an expression, a table's fields, pairs of rows. Gives: the results (``lake.Expressions``).
Owns: the functions and nodes that an expression may have. Never: decides a conflict.

Modules: ``evaluate`` (the port), ``allowed`` (the functions and nodes that are allowed).
"""

from wal2lake.lake.spark.expressions.evaluate import SparkExpressions

__all__ = ["SparkExpressions"]
