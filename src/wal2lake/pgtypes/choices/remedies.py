"""The HINT of an error about a value that its column cannot hold.

In: the error's SQLSTATE, the column and its declaration. Out: one text, for apply and for the
initial copy. It names only remedies that work: the value is in the log (or in the copy's
snapshot), so a correction at the source is too late, and ALTER TABLE cannot change the type here.

Source: docs/arch/11_types.md (which policy applies where).
"""

from __future__ import annotations

import re
from typing import Final

from wal2lake.pgtypes.choices.clamp import BEYOND
from wal2lake.pgtypes.choices.coerce import NO_POLICY

COPIED_ANEW: Final = (
    "drop the table here and run ALTER SUBSCRIPTION ... REFRESH PUBLICATION, which creates"
    " it as it is at the source, and copies it"
)
"""Remedy for any error in a table's definition; begins in lower case."""

CHECKED_HERE: Final = (
    "If the source may have such rows, ALTER TABLE ... DROP CONSTRAINT on the table here"
    " lets it go on."
)
"""HINT for a row that violates a CHECK constraint of the table here."""

COMPUTED_HERE: Final = (
    "ALTER TABLE ... ALTER COLUMN ... DROP EXPRESSION on the table here lets it take the"
    " publisher's values"
)
"""Remedy for a column that is generated here but sent by the publisher, without a full stop."""


def computed_here(column: str) -> str:
    """Return the HINT for a generated column that cannot be computed for a row of the publisher."""
    return (
        f"If the source may have such rows, ALTER TABLE ... ALTER COLUMN {_quoted(column)}"
        " DROP EXPRESSION on the table here lets it go on."
    )


_NOT_NULL_VIOLATION: Final = "23502"
_SET: Final = "ALTER SUBSCRIPTION ... SET"
_OF_ANY_TYPE: Final = {
    "22021": f"correct the row at the source, {COPIED_ANEW}",
    "54000": 'raise "max_value_bytes" under [apply] in wal2lake.toml and restart the node',
}
"""Remedies for values that no other column type could hold: character_not_in_repertoire,
program_limit_exceeded."""
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")


def remedy(
    sqlstate: str, column: tuple[str, str, str], *, nullable: bool, in_key: bool
) -> str:
    """Return the HINT. ``column`` has schema, table and name at the publisher; ``nullable`` and
    ``in_key`` are facts of the column here."""
    if sqlstate == _NOT_NULL_VIOLATION and in_key:
        return f"If NULL is allowed at the source, {COPIED_ANEW}."
    if sqlstate == _NOT_NULL_VIOLATION:
        return (
            f"ALTER TABLE ... ALTER COLUMN {_quoted(column[2])} DROP NOT NULL here lets it"
            " go on, if NULL is allowed at the source."
        )
    if sqlstate in NO_POLICY:
        return f"{_SET} (binary = false), if it is true; then {COPIED_ANEW}."
    name = ".".join(_quoted(part) for part in column)
    if sqlstate in _OF_ANY_TYPE:
        ways = [_OF_ANY_TYPE[sqlstate]]
        if nullable and not in_key:
            ways.insert(0, f'add "{name} = null" to value_policies ({_SET})')
        text = "; or ".join(ways)
        return f"{text[0].upper()}{text[1:]}."
    anew = (
        f'add "{name} = string" to type_mappings ({_SET}), drop the'
        " table here and run ALTER SUBSCRIPTION ... REFRESH PUBLICATION: it is created"
        " with a text column, and copied"
    )
    has_nearest = sqlstate in BEYOND
    if in_key or not (nullable or has_nearest):
        return f"{anew[0].upper()}{anew[1:]}."
    policy = "null" if nullable else "clamp"
    nearest = "the nearest value, if there is one"
    alternative = ""
    if has_nearest:
        alternative = f" (or clamp: {nearest})" if nullable else f" ({nearest})"
    return (
        f'Add "{name} = {policy}"{alternative} to value_policies ({_SET});'
        f" or, to keep the value, {anew}."
    )


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
