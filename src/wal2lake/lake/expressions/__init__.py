"""Expressions of users that resolve conflicts.

``evaluate`` looks at them and has Spark evaluate them; ``allowed`` says what they may be made of.
"""

from wal2lake.lake.expressions.evaluate import (
    EvaluatedPair,
    Expressions,
    Pairs,
    facts_table,
)

__all__ = ["EvaluatedPair", "Expressions", "Pairs", "facts_table"]
