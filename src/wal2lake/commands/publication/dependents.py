"""Checks the demands that publications make on their tables.

Takes tables and the intended change; raises PostgreSQL's error if the change is not allowed.

    ALTER TABLE ... DROP COLUMN       2BP01 while a column list or row filter has the column;
                                      CASCADE removes the table from the publication
    ALTER TABLE ... TYPE              0A000 while a column list or row filter has the column
    ALTER TABLE ... REPLICA IDENTITY  an index must be the primary key's: there are no others
    UPDATE, DELETE                    the replica identity must identify the row

Source: performMultipleDeletions() in dependency.c; RememberAllDependentForRebuilding() and
ATExecReplicaIdentity() in tablecmds.c; CheckValidResultRel() in execMain.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from wal2lake.catalog import PublishedOperation, TableDef
from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError, UsageError
from wal2lake.local.node import Caller, described, find_table
from wal2lake.local.ports import HasCatalog
from wal2lake.model import ReplicaIdentity
from wal2lake.publish.published import check_replica_identity
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.altering.alterstatements import ReplicaIdentityClause


def check_writable(node: HasCatalog, table: TableDef, verb: str) -> None:
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
    node: HasCatalog,
    caller: Caller,
    table: TableDef,
    dropped: Sequence[tuple[str, Sequence[str]]],
    *,
    cascade: Collection[str],
) -> None:
    """Check DROP COLUMN for columns with the generated columns that go with each.

    ``cascade``: columns that the statement drops with CASCADE."""
    shown = described(table, caller.search_path)
    for column, generated in dropped:
        dependents = [f"column {name} of table {shown}" for name in generated]
        dependents += dict.fromkeys(
            f"publication of table {name} in publication {publication}"
            for each in (column, *generated)
            for name, publication in _publications_with(node, caller, table, each)
        )
        if not dependents:
            continue
        if column not in cascade:
            raise UsageError(
                f"cannot drop column {column} of table {shown} because other objects"
                " depend on it",
                sqlstate="2BP01",
                detail="\n".join(
                    f"{dependent} depends on column {column} of table {shown}"
                    for dependent in dependents
                ),
                hint="Use DROP ... CASCADE to drop the dependent objects too.",
            )
        if len(dependents) == 1:
            caller.notice(Notice(f"drop cascades to {dependents[0]}"))
        else:
            caller.notice(
                Notice(
                    f"drop cascades to {len(dependents)} other objects",
                    detail="\n".join(
                        f"drop cascades to {dependent}" for dependent in dependents
                    ),
                )
            )


def check_retyped_columns(
    node: HasCatalog, caller: Caller, table: TableDef, columns: Sequence[str]
) -> None:
    """Check ALTER COLUMN ... TYPE."""
    for column in columns:
        dependents = _publications_with(node, caller, table, column)
        for name, publication in dependents:
            raise FeatureNotSupportedError(
                "cannot alter type of a column used by a publication WHERE clause",
                detail=f"publication of table {name} in publication {publication}"
                f' depends on column "{column}"',
            )


def _publications_with(
    node: HasCatalog,
    caller: Caller,
    table: TableDef,
    column: str,
) -> Iterator[tuple[str, str]]:
    """Yield the tables and publications whose column list or row filter has the column.

    A partition has the columns of its table."""
    names = {
        t.oid: described(t, caller.search_path)
        for t in node.catalog.tables()
        if t.storage == table.storage
    }
    for publication in node.catalog.publications():
        for row in publication.tables:
            listed = row.columns or ()
            if row.relid in names and column in (*listed, *row.filter_columns):
                yield names[row.relid], publication.name


def replica_identity(
    node: HasCatalog, caller: Caller, table: TableDef, clause: ReplicaIdentityClause
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
    relation = find_table(node.catalog, caller, table.namespace, name)
    if relation is not None:
        raise UsageError(f'"{name}" is not an index', sqlstate="42809")
    for candidate in node.catalog.tables():
        if candidate.oid == table.oid:
            # The statement drops the table's own key.
            continue
        same = candidate.namespace == table.namespace and candidate.key
        if same and candidate.index_name == name:
            text = f'"{name}" is not an index for table "{table.name}"'
            raise UsageError(text, sqlstate="42809")
    raise UndefinedObjectError(text)
