"""Checks whether a local table can take the rows of a remote relation. Pure.

Columns are matched by name. The checks are those of PostgreSQL's relation map, with its texts: a
target that lacks a column, or whose key the publisher does not send, stops the first transaction
that needs the column or key. Transactions before it are applied.

Source: relation.c (logicalrep_rel_open, logicalrep_rel_mark_updatable), reference 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.apply.schema.marks import check_sent, check_table
from wal2lake.apply.schema.samekeys import keeps_apart
from wal2lake.catalog import TableDef
from wal2lake.errors import ApplyError
from wal2lake.lake.staging import incompatible_columns
from wal2lake.model import Relation, ReplicaIdentity
from wal2lake.pgtypes import COMPUTED_HERE, COPIED_ANEW

_PREREQUISITE = "55000"


@dataclass(frozen=True, slots=True)
class RelationUse:
    """Use that a batch makes of one relation version."""

    relation: Relation
    changes_rows: bool
    """Whether the changes contain UPDATE or DELETE, which need a key. INSERT and TRUNCATE do
    not."""


def missing_target(relation: Relation) -> ApplyError:
    """Error for changes of a relation that has no local table."""
    return ApplyError(
        f'logical replication target relation "{relation.qualified}" does not exist',
        sqlstate=_PREREQUISITE,
        hint="If the publisher still has the table, ALTER SUBSCRIPTION ... REFRESH"
        " PUBLICATION creates and copies it, and replication goes on. If the publisher has"
        " dropped it, or its changes are to be skipped, create a table of this name here,"
        " with any columns: it takes no part until the next REFRESH PUBLICATION.",
    )


def missing_columns(relation: Relation, table: TableDef) -> list[str]:
    """Return the columns of the relation that ``table`` lacks. A column without a name was
    dropped."""
    names = {c.name for c in table.columns}
    return [c.name for c in relation.columns if c.name and c.name not in names]


def _hint_of_missing(missing: list[str], table: TableDef) -> str:
    present = {c.name.lower() for c in table.columns}
    lower = [name.lower() for name in missing]
    if present & set(lower) or len(set(lower)) < len(lower):
        # Changes in the log keep the column even if the source drops it, so only a copy
        # takes the table past them.
        return (
            "Delta Lake cannot store columns that differ in case only. If the publisher"
            " has both, leave one of them out with a column list of the publication; then"
            f" {COPIED_ANEW}."
        )
    return (
        "ALTER TABLE ... ADD COLUMN on the target lets it go on; rows that are there get"
        f" the column's default. With the publisher's values: {COPIED_ANEW}."
    )


def check_target(
    use: RelationUse, table: TableDef | None, *, keeps_deleted: bool = False
) -> None:
    """Raise ApplyError with PostgreSQL's text unless ``table`` can take the relation.
    ``keeps_deleted``: deleted rows are marked."""
    relation = use.relation
    if table is None:
        raise missing_target(relation)
    if keeps_deleted:
        check_sent(table.qualified, (c.name for c in relation.columns))
        check_table(table)
    missing = missing_columns(relation, table)
    if missing:
        plural = "columns" if len(missing) > 1 else "column"
        shown = ", ".join(f'"{name}"' for name in missing)
        raise ApplyError(
            f'logical replication target relation "{table.qualified}" is missing'
            f" replicated {plural}: {shown}",
            sqlstate=_PREREQUISITE,
            hint=_hint_of_missing(missing, table),
        )
    sent_names = {c.name for c in relation.columns if c.name}
    refused = incompatible_columns(table.qualified, sent_names, table.generated)
    if refused is not None:
        raise ApplyError(refused, sqlstate=_PREREQUISITE, hint=f"{COMPUTED_HERE}.")
    if not use.changes_rows:
        return
    if not table.key and relation.identity is ReplicaIdentity.FULL:
        return
    if not table.key:
        raise ApplyError(
            f'logical replication target relation "{table.qualified}" has neither'
            " REPLICA IDENTITY index nor PRIMARY KEY and published relation does not"
            " have REPLICA IDENTITY FULL",
            sqlstate=_PREREQUISITE,
            hint=f"Give the table a primary key at the source; then {COPIED_ANEW}.",
        )
    sent = {relation.columns[i].name for i in relation.key_positions}
    if not set(table.key) <= sent:
        raise ApplyError(
            "publisher did not send replica identity column expected by the logical"
            f' replication target relation "{table.qualified}"',
            sqlstate=_PREREQUISITE,
            hint=f"The keys of both sides differ: {COPIED_ANEW}, key included.",
        )


def has_unique_key(relation: Relation, table: TableDef) -> bool:
    """Whether the stream proves that no two rows of the publisher have the same key in ``table``.

    A replica identity index is unique, and so is every key that contains its columns. FULL and
    NOTHING prove nothing: the publisher may drop the primary key at any time without sending a
    message. A local type may also consider values equal that the publisher's type tells apart.
    """
    if relation.identity not in (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX):
        return False
    sent = [relation.columns[i] for i in relation.key_positions]
    return keeps_apart({c.name: (c.type_oid, c.typmod) for c in sent}, table)


def error_context(
    *,
    origin: str,
    message_type: str | None = None,
    relation: str | None = None,
    column: str | None = None,
    xid: int | None = None,
    finish_lsn: object | None = None,
) -> str:
    """Build PostgreSQL's apply error context (reference 5.2) from the known facts."""
    text = f'processing remote data for replication origin "{origin}"'
    if message_type is not None:
        text += f' during message type "{message_type}"'
    if relation is not None:
        text += f' for replication target relation "{relation}"'
    if column is not None:
        text += f' column "{column}"'
    if xid is not None:
        text += f" in transaction {xid}"
    if finish_lsn is not None:
        text += f", finished at {finish_lsn}"
    return text
