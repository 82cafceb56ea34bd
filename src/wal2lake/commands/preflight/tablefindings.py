"""Judges published tables: facts in, findings out. Pure.

The publications are judged together: if several have a table, one of them may publish operations
that another does not.

Source: PostgreSQL manual, 29.1.1 (replica identity), 29.8 (restrictions), CREATE PUBLICATION;
rd.c and execReplication.c (CheckCmdReplicaIdentity) for what the source refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.commands.preflight.finding import Finding, Level, TableFinding
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.model import ReplicaIdentity
from wal2lake.pg import RemoteTable
from wal2lake.pgtypes.columnnames import check_column_names

OPERATIONS: Final = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")

_PARTITIONED: Final = "p"


@dataclass(frozen=True, slots=True)
class Table:
    """A published table and our privileges on it."""

    remote: RemoteTable
    operations: frozenset[str]
    """The published ones of ``OPERATIONS``."""
    readable: bool
    """True if the role may select from the table."""
    row_security: bool
    """True if row-level security applies to the role."""
    is_partition: bool
    columns: tuple[str, ...]
    """All columns of the table but generated ones."""
    generated: tuple[str, ...]
    filtered: tuple[str, ...] = ()
    """Columns in row filters of publications of UPDATE or DELETE."""

    @property
    def name(self) -> str:
        """``schema.name`` as in PostgreSQL's messages; a statement has to quote it."""
        return f"{self.remote.namespace}.{self.remote.name}"


@dataclass(frozen=True, slots=True)
class UnpublishedTable:
    """A table that a publication covers but does not publish."""

    namespace: str
    table: str
    foreign: bool
    """True for a foreign table, False for an unlogged one."""


def judge_table(table: Table, *, copy: bool = True) -> list[TableFinding]:
    """Judge one table. ``copy``: its existing rows are copied."""
    return [
        *_names(table),
        *(_access(table) if copy else ()),
        *_identity(table),
        *_operations(table),
        *_extent(table),
        *_generated(table),
    ]


def judge_tables(tables: Sequence[Table], *, copy: bool) -> list[TableFinding]:
    """Judge tables, without what CREATE SUBSCRIPTION itself refuses."""
    return [
        finding
        for table in tables
        for finding in judge_table(table, copy=copy)
        if not finding.refused
    ]


def judge_unpublished(tables: Sequence[UnpublishedTable]) -> list[TableFinding]:
    """Judge tables that the publications cover but do not publish."""
    findings = []
    for table in tables:
        name = f"{table.namespace}.{table.table}"
        if table.foreign:
            findings.append(
                TableFinding(
                    Level.NOTE,
                    name,
                    "is a foreign table, so it is not published",
                    "are foreign tables, so they are not published",
                )
            )
        else:
            findings.append(
                TableFinding(
                    Level.NOTE,
                    name,
                    "is not logged, so it is not published",
                    "are not logged, so they are not published",
                    f'ALTER TABLE "{table.namespace}"."{table.table}" SET LOGGED;',
                    "ALTER TABLE ... SET LOGGED;",
                )
            )
    return findings


def _names(table: Table) -> Iterator[TableFinding]:
    try:
        check_column_names((c.name for c in table.remote.columns), table.name)
    except FeatureNotSupportedError as refused:
        yield TableFinding(
            Level.PROBLEM,
            table.name,
            "",
            "",
            refused.hint,
            refused=True,
            message=refused.message,
        )


def _access(table: Table) -> Iterator[TableFinding]:
    if not table.readable:
        grant = "GRANT SELECT ON {} (and USAGE on its schema) TO the connection's role."
        yield TableFinding(
            Level.PROBLEM,
            table.name,
            "cannot be read, so its existing rows cannot be copied",
            "cannot be read, so their existing rows cannot be copied",
            grant.format(table.remote.qualified),
            grant.format("..."),
        )
    if table.row_security:
        hint = "Use a role with BYPASSRLS, or the table's owner."
        yield TableFinding(
            Level.PROBLEM,
            table.name,
            "has row-level security, which hides rows from the copy",
            "have row-level security, which hides rows from the copy",
            hint,
            hint,
        )


def _identity(table: Table) -> Iterator[TableFinding]:
    remote = table.remote
    if not table.operations & {"UPDATE", "DELETE"}:
        return
    needed = table.columns
    if remote.identity is ReplicaIdentity.DEFAULT:
        # The index of a deferrable key does not identify a row.
        needed = () if remote.key_deferral.deferrable else remote.key
    elif remote.identity is not ReplicaIdentity.FULL:
        needed = remote.identity_key
        if remote.identity is not ReplicaIdentity.INDEX:
            # REPLICA IDENTITY NOTHING.
            needed = ()
    if not needed:
        yield _no_identity(table)
    elif not set(needed) <= {c.name for c in remote.columns}:
        yield _unpublished_identity(table)
    elif remote.identity is ReplicaIdentity.FULL:
        if remote.key:
            return
        yield TableFinding(
            Level.NOTE,
            table.name,
            "has no primary key and REPLICA IDENTITY FULL: changes are found by the whole"
            " row",
            "have no primary key and REPLICA IDENTITY FULL: changes are found by the whole"
            " row",
        )
    elif not set(table.filtered) <= set(needed):
        yield _filter_outside_identity(table, needed)


def _no_identity(table: Table) -> TableFinding:
    return TableFinding(
        Level.PROBLEM,
        table.name,
        "has no replica identity: once it is published, the source refuses UPDATE and"
        " DELETE on it",
        "have no replica identity: once they are published, the source refuses UPDATE"
        " and DELETE on them",
        f"Add a primary key, or: ALTER TABLE {table.remote.qualified} REPLICA IDENTITY"
        " USING INDEX (a unique index on NOT NULL columns) or FULL.",
        "Add primary keys, or: ALTER TABLE ... REPLICA IDENTITY USING INDEX (a unique"
        " index on NOT NULL columns) or FULL.",
    )


def _unpublished_identity(table: Table) -> TableFinding:
    hint = "Add the columns of the replica identity to the publication's column list."
    return TableFinding(
        Level.PROBLEM,
        table.name,
        "is published without columns of its replica identity, so the source refuses"
        " UPDATE and DELETE on it",
        "are published without columns of their replica identity, so the source"
        " refuses UPDATE and DELETE on them",
        hint,
        hint,
    )


def _filter_outside_identity(table: Table, needed: Sequence[str]) -> TableFinding:
    hint = (
        "Leave them out of the row filter, or: ALTER TABLE {} REPLICA IDENTITY USING"
        " INDEX (a unique index that has them) or FULL."
    )
    missing = ", ".join(f'"{c}"' for c in table.filtered if c not in needed)
    return TableFinding(
        Level.PROBLEM,
        table.name,
        "is published with a row filter over columns that are not in its replica"
        f" identity ({missing}), so the source refuses UPDATE and DELETE on it",
        "are published with row filters over columns that are not in their replica"
        " identity, so the source refuses UPDATE and DELETE on them",
        hint.format(table.remote.qualified),
        hint.format("..."),
    )


def _operations(table: Table) -> Iterator[TableFinding]:
    missing = [name for name in OPERATIONS if name not in table.operations]
    if missing:
        shown = ", ".join(missing)
        yield TableFinding(
            Level.NOTE,
            table.name,
            f"is published without {shown}: the copy will differ from it after one",
            f"are published without {shown}: the copies will differ from them after one",
            "ALTER PUBLICATION ... SET (publish = 'insert, update, delete, truncate');",
            "ALTER PUBLICATION ... SET (publish = 'insert, update, delete, truncate');",
        )


def _extent(table: Table) -> Iterator[TableFinding]:
    remote = table.remote
    if remote.row_filters:
        filters = " OR ".join(remote.row_filters)
        yield TableFinding(
            Level.INFO,
            table.name,
            f"is published WHERE {filters}",
            "are published with row filters",
        )
    if remote.kind == _PARTITIONED:
        # A publication of the partitions' names does not publish the partitioned table itself.
        yield TableFinding(
            Level.NOTE,
            table.name,
            "is published as one, with its partitions: TRUNCATE, DROP or DETACH of a"
            " partition is not published",
            "are published as one each, with their partitions: TRUNCATE, DROP or DETACH of"
            " a partition is not published",
        )
    elif table.is_partition:
        hint = (
            "After CREATE TABLE ... PARTITION OF: ALTER SUBSCRIPTION ... REFRESH"
            " PUBLICATION; or publish with publish_via_partition_root = true."
        )
        yield TableFinding(
            Level.NOTE,
            table.name,
            "is a partition that is published under its own name: one that is added later"
            " is not received before a refresh",
            "are partitions that are published under their own names: one that is added"
            " later is not received before a refresh",
            hint,
            hint,
        )


def _generated(table: Table) -> Iterator[TableFinding]:
    published = {c.name for c in table.remote.columns}
    missing = [name for name in table.generated if name not in published]
    if not missing or not set(table.columns) <= published:
        # A column list was chosen deliberately.
        return
    shown = ", ".join(f'"{name}"' for name in missing)
    hint = (
        "From PostgreSQL 18 on stored ones are published WITH"
        " (publish_generated_columns = stored)."
    )
    yield TableFinding(
        Level.NOTE,
        table.name,
        f"has generated columns that are not published: {shown}",
        "have generated columns that are not published",
        hint,
        hint,
    )


def judge_toast(tables: Sequence[Table]) -> list[Finding]:
    """Judge TOASTable columns of all tables, in one finding."""
    toasted = [t for t in tables if any(c.toastable for c in t.remote.columns)]
    if not toasted:
        return []
    return [
        Finding(
            Level.INFO,
            f"{len(toasted)} of {len(tables)} tables can hold TOASTed values: an UPDATE"
            " that leaves one unchanged does not send it, and the node keeps the stored"
            " one",
        )
    ]
