"""Tells after a crash whether steps that were begun have been made. Pure.

Before a table is altered the catalog records its definition (``FollowedSchema.making``). If the
table has another one after a crash, its commit has come, and only the record of the steps has not.
Several alterations that are carried out at once are recorded with the last of them: all of them
are in the table, or none is. Called by ``follow``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from wal2lake.catalog import FollowedSchema, TableDef
from wal2lake.model import INVALID_LSN, Lsn


@dataclass(frozen=True, slots=True)
class RunBegun:
    """Several alterations that the table has, but that are not recorded."""

    columns: tuple[str, ...]
    """Names of the table's columns before."""
    through: Lsn
    """The last alteration."""


def definition_text(table: TableDef, through: Lsn = INVALID_LSN) -> str:
    """Build ``FollowedSchema.making``. ``through``: the last of several alterations."""
    parts = [table.key, [asdict(column) for column in table.columns]]
    return json.dumps([*parts, int(through)] if through else parts)


def is_made(followed: FollowedSchema, table: TableDef) -> bool:
    """Whether the table is no longer as it was when steps were begun."""
    if followed.making is None:
        return False
    return bool(json.loads(followed.making)[:2] != json.loads(definition_text(table)))


def run_begun(followed: FollowedSchema, table: TableDef) -> RunBegun | None:
    """Return the alterations that were made at once before a crash; None if there are none."""
    if followed.making is None or not is_made(followed, table):
        return None
    _, columns, *through = json.loads(followed.making)
    if not through:
        return None
    return RunBegun(tuple(column["name"] for column in columns), Lsn(through[0]))
