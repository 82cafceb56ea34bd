"""Random SQL expressions, most of them wrong: a server that is asked shows how it refuses.

Comes in: a random.Random, and the words to choose from. Goes out: text that a test sets into
statements of its own. The same seed and words give the same text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What expressions are made of."""

    values: tuple[str, ...]
    types: tuple[str, ...]
    operators: tuple[str, ...]
    functions: tuple[str, ...]
    form: str
    """One more form beside casts, operators and calls, with ``{0}`` and ``{1}`` for operands."""
    depth: int
    """How many operands at most are inside each other."""

    def expression(self, rng: random.Random, depth: int = 0) -> str:
        """An expression that is ``depth`` operands deep inside another one."""
        kind = rng.randrange(7 if depth < self.depth else 2)
        if kind <= 1:
            return rng.choice(self.values)
        one = self.expression(rng, depth + 1)
        if kind == 2:
            return f"({one})::{rng.choice(self.types)}"
        if kind == 3:
            operator = rng.choice(self.operators)
            return f"({one}) {operator} ({self.expression(rng, depth + 1)})"
        if kind == 4:
            return f"{rng.choice(self.functions)}({one})"
        if kind == 5:
            function = rng.choice(self.functions)
            return f"{function}({one}, {self.expression(rng, depth + 1)})"
        if "{1}" in self.form:
            return self.form.format(one, self.expression(rng, depth + 1))
        return self.form.format(one)
