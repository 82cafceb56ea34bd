"""Parses the clauses of constraints, and SET CONSTRAINTS.

Takes: a cursor at the clause, or the text of SET CONSTRAINTS. Gives: the values of the clauses.
Owns: no state. Never: looks a table or a column up.

    checkclauses     CHECK (expression)
    columnsources    refuses a second default, identity or generation of a column
    deferral         DEFERRABLE, INITIALLY
    generated        GENERATED ALWAYS AS (expression)
    modes            SET CONSTRAINTS
    sequenceoptions  serial and identity columns
"""

from wal2lake.sql.grammar.constraints.checkclauses import CheckClause, check_clause
from wal2lake.sql.grammar.constraints.deferral import deferral, misplaced
from wal2lake.sql.grammar.constraints.generated import (
    GeneratedClause,
    generation,
    stored_generation,
)
from wal2lake.sql.grammar.constraints.modes import (
    ConstraintModes,
    constraint_modes,
    is_set_constraints,
)

__all__ = [
    "CheckClause",
    "ConstraintModes",
    "GeneratedClause",
    "check_clause",
    "constraint_modes",
    "deferral",
    "generation",
    "is_set_constraints",
    "misplaced",
    "stored_generation",
]
