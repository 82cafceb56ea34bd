"""Computes generated columns of the rows that a statement has written.

Comes in: a branch, and the commit that a Spark statement has made on it, without valid values in
the generated columns of its new files. Goes out: the same commit, replaced by one whose files have
the values; a reader of the branch's commits sees each row once. Called by transactions of the
front door and by ALTER TABLE. Memory is that of a few rows.

Source: ExecComputeStoredGenerated() in nodeModifyTable.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from wal2lake.lake.branch.branchchecks import rows_in
from wal2lake.lake.branch.netchange import Action
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.port import Cursor, TablePort, TableState
from wal2lake.lake.spark.branch.branches import Branch, Branches
from wal2lake.lake.staging.generated import NotComputed, computed, missing_value
from wal2lake.lake.tablefiles import DataFile, add_action
from wal2lake.model import Generated

_OF_ROWS: Final = ("remove", "add")


class RowRefused(Exception):
    """A generated column of a row cannot be computed, or is null and must not be."""

    def __init__(self, why: NotComputed) -> None:
        super().__init__(why.message)
        self.why = why


def generated_rows(
    state: TableState,
    generated: Generated,
    required: frozenset[str],
    relation: str,
    rows: pa.Table,
) -> pa.Table:
    """Return rows in a version's columns, with the generated columns computed. Raises
    ``RowRefused``. ``required``: columns that must not be null."""
    rows, failed = computed(generated, state.fields, rows)
    missing = missing_value(generated, required, relation, rows)
    failures = [*failed[:1], *(() if missing is None else (missing,))]
    if failures:
        raise RowRefused(min(failures, key=lambda failure: failure.row))
    return rows


def generate(
    branches: Branches,
    tables: TablePort,
    branch: Branch,
    version: int,
    writer: str,
    added: Sequence[Action],
    generated: Generated,
    required: frozenset[str],
    relation: str,
) -> list[Action]:
    """Compute the columns in the files ``added`` by the branch's last commit, the one after
    ``version``.

    Returns the ``add`` objects of the files that replace them. Raises ``RowRefused``. The new
    commit has the cursor of ``writer``.
    """
    state = branches.state(branch)
    (commit,) = tables.actions(branch.location, version + 1, state.version)
    files = [DataFile(add) for add in added]
    names = [field.name for field in state.fields]
    with TableWriter(branch.location, state.physical_fields) as files_written:
        for rows in rows_in(state, files, names):
            files_written.write(
                generated_rows(state, generated, required, relation, rows)
            )
        written = files_written.finish()
    old = {add["path"] for add in added}
    kept: list[Action] = [
        {kind: action[kind]}
        for action in commit
        for kind in _OF_ROWS
        if kind in action and not (kind == "add" and action[kind]["path"] in old)
    ]
    new: list[Action] = [add_action(file, data_change=True) for file in written]
    info: Action = next((a["commitInfo"] for a in commit if "commitInfo" in a), {})
    branches.cut_back(branch, version)
    done = branches.state(branch).cursor(writer) or 0
    tables.commit_changes(
        branch.location,
        [*kept, *({"add": add} for add in new)],
        Cursor(writer, done + 1),
        read_version=version,
        operation=str(info.get("userMetadata") or ""),
    )
    return new
