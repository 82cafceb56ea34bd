"""Checks the demands that publications make on their tables.

In: tables, and what is to be done to them. Out: nothing, or PostgreSQL's refusal.

    ALTER TABLE ... DROP COLUMN       2BP01 while a column list or row filter has it; CASCADE
                                      takes the table out of the publication
    ALTER TABLE ... TYPE              0A000 the same
    ALTER TABLE ... REPLICA IDENTITY  an index is the primary key's: there are no others
    UPDATE, DELETE                    the replica identity must tell which row is meant

Source: performMultipleDeletions() in dependency.c; RememberAllDependentForRebuilding() and
ATExecReplicaIdentity() in tablecmds.c; CheckValidResultRel() in execMain.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from wal2lake.catalog import PublishedOperation, TableDef
from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError, UsageError
from wal2lake.local.node import Caller, EngineParts, described, find_table
from wal2lake.model import ReplicaIdentity
from wal2lake.publish.publications import check_replica_identity
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.altering.statements import ReplicaIdentityClause


def check_writable(node: EngineParts, table: TableDef, verb: str) -> None:
    """Raise if a published table's UPDATE or DELETE could not be sent."""
    if verb not in ("UPDATE", "DELETE"):
        return
    catalog = node.catalog
    publications = catalog.publications()
    if publications:
        check_replica_identity(
            table,
            PublishedOperation(verb.lower()),
            publications,
            catalog.tables(),
            catalog.namespaces(),
        )


def check_dropped_columns(
    node: EngineParts,
    caller: Caller,
    table: TableDef,
    dropped: Sequence[tuple[str, Sequence[str]]],
    *,
    cascade: Collection[str],
) -> None:
    """Check DROP COLUMN: columns, and the generated ones that go with each; ``cascade``: those that
    the statement drops with CASCADE."""
    shown = described(table, caller.search_path)
    for column, generated in dropped:
        of = [f"column {name} of table {shown}" for name in generated]
        of += dict.fromkeys(
            f"publication of table {name} in publication {publication}"
            for each in (column, *generated)
            for name, publication in _having(node, caller, table, each)
        )
        if not of:
            continue
        if column not in cascade:
            raise UsageError(
                f"cannot drop column {column} of table {shown} because other objects"
                " depend on it",
                sqlstate="2BP01",
                detail="\n".join(
                    f"{one} depends on column {column} of table {shown}" for one in of
                ),
                hint="Use DROP ... CASCADE to drop the dependent objects too.",
            )
        if len(of) == 1:
            caller.notice(Notice(f"drop cascades to {of[0]}"))
        else:
            caller.notice(
                Notice(
                    f"drop cascades to {len(of)} other objects",
                    detail="\n".join(f"drop cascades to {one}" for one in of),
                )
            )


def check_retyped_columns(
    node: EngineParts, caller: Caller, table: TableDef, columns: Sequence[str]
) -> None:
    """Check ALTER COLUMN ... TYPE."""
    for column in columns:
        found = _having(node, caller, table, column)
        for name, publication in found:
            raise FeatureNotSupportedError(
                "cannot alter type of a column used by a publication WHERE clause",
                detail=f"publication of table {name} in publication {publication}"
                f' depends on column "{column}"',
            )


def _having(
    node: EngineParts,
    caller: Caller,
    table: TableDef,
    column: str,
) -> Iterator[tuple[str, str]]:
    """The tables and publications whose column list or row filter has it. A partition has the
    columns of its table."""
    names = {
        t.oid: described(t, caller.search_path)
        for t in node.catalog.tables()
        if t.storage == table.storage
    }
    for publication in node.catalog.publications():
        for one in publication.tables:
            listed = one.columns or ()
            if one.relid in names and column in (*listed, *one.filter_columns):
                yield names[one.relid], publication.name


def replica_identity(
    node: EngineParts, caller: Caller, table: TableDef, clause: ReplicaIdentityClause
) -> ReplicaIdentity:
    """Return the identity to keep for ALTER TABLE ... REPLICA IDENTITY."""
    name = clause.index
    if name is None:
        return clause.identity
    if table.key and name == table.index_name:
        if table.key_deferral.deferrable:
            raise UsageError(
                f'cannot use non-immediate index "{name}" as replica identity',
                sqlstate="0A000",
            )
        return clause.identity
    text = f'index "{name}" for table "{table.name}" does not exist'
    other = find_table(node.catalog, caller, table.namespace, name)
    if other is not None:
        raise UsageError(f'"{name}" is not an index', sqlstate="42809")
    for candidate in node.catalog.tables():
        if candidate.oid == table.oid:
            # Its key is dropped by the same statement.
            continue
        same = candidate.namespace == table.namespace and candidate.key
        if same and candidate.index_name == name:
            text = f'"{name}" is not an index for table "{table.name}"'
            raise UsageError(text, sqlstate="42809")
    raise UndefinedObjectError(text)
