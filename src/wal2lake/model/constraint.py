"""CHECK constraints and generated columns of lake tables, shared by the catalog, the lake and SQL
commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class CheckConstraint:
    """pg_constraint: a CHECK constraint of a table. Picklable."""

    name: str
    expression: str
    """The tree as ``pgtypes.expressions.encode`` writes it."""
    columns: tuple[str, ...]
    """The columns that the tree's numbers stand for."""

    def renamed(self, names: Mapping[str, str]) -> CheckConstraint:
        """Return the constraint with renamed columns; ``names`` maps old names to new ones."""
        return replace(self, columns=tuple(names.get(c, c) for c in self.columns))


@dataclass(frozen=True, slots=True)
class Generation:
    """pg_attribute.attgenerated: the expression of a generated column. Picklable."""

    expression: str
    """The tree as ``pgtypes.expressions.encode`` writes it, of the expression's own type."""
    columns: tuple[str, ...]
    """The columns that the tree's numbers stand for; none of them is generated."""

    def renamed(self, names: Mapping[str, str]) -> Generation:
        """Return the generation with renamed columns; ``names`` maps old names to new ones."""
        return replace(self, columns=tuple(names.get(c, c) for c in self.columns))


Generated = tuple[tuple[str, Generation], ...]
"""A table's generated columns, by name."""
