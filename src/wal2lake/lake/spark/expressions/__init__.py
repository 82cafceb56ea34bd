"""Expressions of Spark's SQL, checked and evaluated by Spark.

Takes: users' expressions that resolve conflicts, with pairs of rows; what Delta demands of the rows
of a table, with rows. Gives: the results (``lake.Expressions``, ``RowDemands``). Owns: the
functions and nodes that a user's expression may have. Never: decides a conflict.

Modules: ``evaluate`` (users' expressions), ``allowed`` (the functions and nodes that are allowed
there), ``demands`` (Delta's constraints and generated columns).
"""

from wal2lake.lake.spark.expressions.demands import DemandsOfTables
from wal2lake.lake.spark.expressions.evaluate import SparkExpressions

__all__ = ["DemandsOfTables", "SparkExpressions"]
