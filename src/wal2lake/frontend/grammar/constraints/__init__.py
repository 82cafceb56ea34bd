"""What constraints of tables say beside their columns.

Takes a cursor behind the constraint, or the text of SET CONSTRAINTS. Gives when the constraint is
judged, or what a CHECK says.

Modules: ``checks`` (CHECK), ``deferral`` (DEFERRABLE, INITIALLY), ``modes`` (SET CONSTRAINTS),
``generated`` (GENERATED ALWAYS AS).
"""

from wal2lake.frontend.grammar.constraints.checks import CheckClause, check_clause
from wal2lake.frontend.grammar.constraints.deferral import deferral, misplaced
from wal2lake.frontend.grammar.constraints.generated import (
    GeneratedClause,
    generation,
    stored_generation,
)
from wal2lake.frontend.grammar.constraints.modes import (
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
