"""Changes columns to text for values that a copy has met (``value_policies``, widen).

In: the attempt, and the ``Misfit`` of one of its ranges. Out: a table with text columns, whose copy
begins anew in another epoch; or the error that the value causes without the policy.

    note     record it in wal2lake.coercions             after a crash: recorded again, once
    alter    ONE commit of the table, as ALTER TABLE's   after a crash: finished or given up by the
                                                         next start; if given up, the copy meets the
                                                         value again
    void     the copy's epoch, in the transaction that publishes the ALTER TABLE

Only an empty table that no other subscription fills is altered, and only a column that has the type
that this node would give it: a column with another type was altered by a user and keeps the type.
All rows are read again, because files written so far have the old type.

Called by ``group``, in the threads of its ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wal2lake.apply.local.altering import is_empty
from wal2lake.apply.schema.columns import column_like, source_column
from wal2lake.apply.schema.follow import TableAlteration
from wal2lake.catalog import Catalog, ChangeType, ColumnChange, SetDefault, TableDef
from wal2lake.errors import UsageError
from wal2lake.lake import TablePort
from wal2lake.model import Oid
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import RemoteTable
from wal2lake.pgtypes import TypeMappings, ValuePolicies
from wal2lake.tablesync.attempt import Attempt, Halted
from wal2lake.tablesync.copy import Misfit

_TEXT: Final = Oid(25)


class Widening:
    """Widens columns for all copies of a node. Thread-safe."""

    def __init__(
        self, catalog: Catalog, tables: TablePort, alter: TableAlteration
    ) -> None:
        self._catalog = catalog
        self._port = tables
        self._alter = alter
        self._lock = threading.Lock()
        """Taken because several ranges of one table may meet values at the same time."""

    def widen(self, attempt: Attempt, remote: RemoteTable, misfit: Misfit) -> Exception:
        """Change the columns to text. Return the exception that ends the attempt: Halted, because
        the copy begins anew, or the error, if the columns must not become text."""
        with self._lock:
            rel = attempt.rel
            if attempt.over or self._epoch(attempt) != rel.epoch:
                return Halted()
            table = self._catalog.table_by_oid(rel.relid)
            if table is None:
                return Halted()
            names = [coercion.column for coercion in misfit.widened]
            error = misfit.error
            if not self._may_alter(attempt, table, remote, names):
                return error
            self._catalog.note_widened(rel.subid, rel.relid, misfit.widened)
            failpoint("copy.widening_noted")
            try:
                self._alter(table.oid, _as_text(table, names), replaced=False)
            except BaseException as refused:
                self._catalog.forget_widened(rel.subid, rel.relid, names)
                if not isinstance(refused, UsageError):
                    raise
                error.detail = f"The column cannot become text: {refused.message}."
                return error
        for coercion in misfit.widened:
            get_logger().warning(
                f'table "{table.qualified}", column "{coercion.column}" becomes text, as'
                f" value_policies say: {coercion.reason}; its copy begins anew",
                subscription=attempt.subscription.name,
                lsn=coercion.first_lsn,
            )
        return Halted()

    def _epoch(self, attempt: Attempt) -> int | None:
        return self._catalog.epoch(attempt.rel.subid, attempt.rel.relid)

    def _may_alter(
        self,
        attempt: Attempt,
        table: TableDef,
        remote: RemoteTable,
        names: Sequence[str],
    ) -> bool:
        sharing = self._catalog.sharing(table)
        subids = {rel.subid for rel in self._catalog.rels() if rel.relid in sharing}
        if len(subids) > 1 or not is_empty(
            self._port, self._port.state(table.location)
        ):
            return False
        subscription = attempt.subscription
        mappings = TypeMappings.parse(subscription.type_mappings)
        policies = ValuePolicies.parse(subscription.value_policies)
        for attribute in remote.schema.attributes:
            column = table.column(attribute.name)
            if attribute.name not in names:
                continue
            source = source_column(remote.namespace, remote.name, attribute)
            made = column_like(source, attribute, mappings, policies).column
            if column is None or (column.type_oid, column.typmod, column.type_name) != (
                made.type_oid,
                made.typmod,
                made.type_name,
            ):
                return False
        return True


def _as_text(table: TableDef, names: Sequence[str]) -> list[ColumnChange]:
    """Return the changes that make columns text, without a default."""
    changes: list[ColumnChange] = []
    for column in table.columns:
        if column.name not in names:
            continue
        if column.default is not None:
            changes.append(SetDefault(column.name, None))
        text = replace(column, type_oid=_TEXT, typmod=-1, type_name=None)
        changes.append(ChangeType(column.name, text))
    return changes
