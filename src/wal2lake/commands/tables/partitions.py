"""Refuses ALTER TABLE of only a partitioned table, or only its partition.

Takes a table and actions; raises PostgreSQL's error. The two tables are names of one location,
so their columns must be the same.

Source: tablecmds.c (ATPrepAddColumn, ATExecDropColumn, ATPrepAlterColumnType).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal2lake.catalog import TableDef
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.local.ports import HasCatalog
from wal2lake.sql.grammar.altering.alterstatements import (
    AddCheckClause,
    AddColumnClause,
    AddKeyClause,
    AlterAction,
    DefaultClause,
    DropColumnClause,
    DropConstraintClause,
    ExpressionClause,
    NotNullClause,
    TypeClause,
)

_INVALID_DEFINITION: Final = "42P16"

_NO_ONLY: Final = "Do not specify the ONLY keyword."


def has_partition(node: HasCatalog, table: TableDef) -> bool:
    """True for a partitioned table that has its default partition."""
    return table.partition_key is not None and len(node.catalog.sharing(table)) > 1


def check_partitions(
    node: HasCatalog, table: TableDef, actions: Sequence[AlterAction], *, only: bool
) -> None:
    """Refuse actions after which a table and its partition would have different columns."""
    if table.partition_of is None and not (only and has_partition(node, table)):
        return
    is_partition = table.partition_of is not None
    for action in actions:
        match action:
            case AddColumnClause():
                if is_partition:
                    raise UsageError(
                        "cannot add column to a partition", sqlstate="42809"
                    )
                raise UsageError(
                    "column must be added to child tables too",
                    sqlstate=_INVALID_DEFINITION,
                )
            case DropColumnClause() if table.column(action.name) is not None:
                if is_partition:
                    raise UsageError(
                        f'cannot drop inherited column "{action.name}"',
                        sqlstate=_INVALID_DEFINITION,
                    )
                raise UsageError(
                    "cannot drop column from only the partitioned table when"
                    " partitions exist",
                    sqlstate=_INVALID_DEFINITION,
                    hint=_NO_ONLY,
                )
            case TypeClause() if table.column(action.name) is not None:
                if is_partition:
                    raise UsageError(
                        f'cannot alter inherited column "{action.name}"',
                        sqlstate=_INVALID_DEFINITION,
                    )
                raise UsageError(
                    f'type of inherited column "{action.name}" must be changed in'
                    " child tables too",
                    sqlstate=_INVALID_DEFINITION,
                )
            case (
                NotNullClause()
                | DefaultClause()
                | ExpressionClause()
                | AddCheckClause()
                | AddKeyClause()
                | DropConstraintClause()
            ):
                raise FeatureNotSupportedError(
                    f'"{table.name}" and its partition cannot have different columns'
                    if not is_partition
                    else f'"{table.name}" is a partition, which cannot be altered'
                    " alone here",
                    hint=_NO_ONLY
                    if not is_partition
                    else "Alter the partitioned table.",
                )
