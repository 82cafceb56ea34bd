"""EXPLAIN: shows how the node would answer a statement, or how it has (ANALYZE).

Takes: the parsed statement, and the backend's ways to analyse and run it. Gives: rows. Owns: the
form of a plan. Never: chooses a way; it asks the parts that do.

    explaining   the options, the run of ANALYZE, the rows of the answer
    planner      the part of the node that would answer a statement
    planning     the plan of a query and of a write, as a tree
    rendering    the tree as text, JSON, XML or YAML, in PostgreSQL's forms
"""

from wal2lake.engine.session.explain.explaining import (
    explained,
    plan_fields,
    prepared_query,
)
from wal2lake.engine.session.explain.planner import StatementPlanner

__all__ = ["StatementPlanner", "explained", "plan_fields", "prepared_query"]
