"""ALTER TABLE's checks of existing rows, and the rewrite of rows.

Takes a plan, the USING expressions by column and a version of the table. Raises PostgreSQL's
error, or fills a branch with all rows in their next columns. Called by ``altertable``.

Rows that must be rewritten are translated as INSERT ... SELECT is, so each value is converted, or
refused, as PostgreSQL would. Generated columns are computed afterwards.
Source: ATRewriteTable() in tablecmds.c.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wal2lake.apply.local.altering import computed_in, is_empty, rewrites
from wal2lake.catalog import ColumnDef, ColumnPlan, PlannedColumn
from wal2lake.commands.constraints.checkconstraints import check_written
from wal2lake.commands.constraints.generatedcolumns import compute_in
from wal2lake.errors import UsageError
from wal2lake.lake import FieldSpec, TableState
from wal2lake.lake.spark import Branch, relation
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasBranches
from wal2lake.model import INVALID_OID
from wal2lake.pgtypes import format_type
from wal2lake.pgtypes.equality import alike_key
from wal2lake.pgtypes.spark_ddl import identifier
from wal2lake.sql.grammar import quote_identifier
from wal2lake.sql.grammar.constraints.sequenceoptions import SEQUENCE_BITS
from wal2lake.sql.query.translate import TableRef
from wal2lake.sql.query.writes import check_default, translate_write

_ANEW: Final = "wal2lake anew"
"""Name of the new rows' table in the translated statement."""

_TEXT_CONSTANT: Final = re.compile(r"\s*'(?:[^']|'')*'\s*")

_OF_COLUMN: Final = re.compile(r'column "(.*)" is of type')


def _type(column: ColumnDef) -> str:
    return format_type(column.type_oid, column.typmod)


@dataclass(slots=True)
class Rewriting:
    """The rows of a table under its next column definitions."""

    node: HasBranches
    caller: Caller
    plan: ColumnPlan
    using: Mapping[str, str]
    place: str
    replaced: bool = False
    """True if a copy will replace the rows."""

    def check_types(self, state: TableState) -> None:
        """Raise 42804 for a type change without an automatic conversion."""
        retyped = [
            planned
            for planned in self.plan.columns
            if planned.retyped and not planned.computed
        ]
        if retyped:
            self._sql(state, self.plan.columns, self.using)
        for planned in retyped:
            if planned.column.identity and planned.column.type_oid not in SEQUENCE_BITS:
                raise UsageError(
                    "identity column type must be smallint, integer, or bigint",
                    sqlstate="22023",
                )
            default = planned.column.default
            # Values of a sequence have the column's type or are out of its range.
            if default is None or planned.column.sequence is not None:
                continue
            try:
                if _TEXT_CONSTANT.fullmatch(default):
                    # A text constant was converted to the column's former type.
                    self._sql(state, [planned], {})
                else:
                    check_default(planned.column, self.caller.zone)
            except UsageError as error:
                if error.sqlstate != "42804":
                    raise
                kind = format_type(planned.column.type_oid, -1)
                raise UsageError(
                    f'default for column "{planned.column.name}" cannot be cast'
                    f" automatically to type {kind}",
                    sqlstate="42804",
                ) from None

    def check_nulls(self, state: TableState) -> None:
        """Raise 23502 for NULLs in unrewritten columns, and for new columns without a value."""
        if self.replaced:
            return
        names = self._newly_required()
        kept = {
            planned.column.name: planned.source
            for planned in self.plan.columns
            if planned.source is not None
            and not planned.retyped
            and planned.column.name in names
        }
        new = [
            planned.column.name
            for planned in self.plan.columns
            if planned.source is None
            and planned.column.not_null
            and planned.default is None
        ]
        # Generated columns are checked with the constraints.
        computed = {name for name, _ in computed_in(self.plan)}
        kept = {name: source for name, source in kept.items() if name not in computed}
        new = [name for name in new if name not in computed]
        if not (kept or new) or is_empty(self.node.tables, state):
            return
        table = relation(state.location, state.version)
        for name in [planned.column.name for planned in self.plan.columns]:
            if name in new or (
                name in kept and self._any(f"{table} WHERE {_is_null(kept[name])}")
            ):
                raise self._contains_null(name)

    def check_key(self, state: TableState) -> None:
        """Raise 23505 if a new key has duplicates among rows that are not rewritten."""
        if self.replaced or not self._has_new_key() or rewrites(self.plan):
            return
        sources = {planned.column.name: planned.source for planned in self.plan.columns}
        key = [sources[name] for name in self.plan.after.key]
        if is_empty(self.node.tables, state) or None in key:
            # A new column is null, which ``check_nulls`` has refused.
            return
        self._check_unique(
            relation(state.location, state.version),
            state.fields,
            [str(name) for name in key],
        )

    def _has_new_key(self) -> bool:
        sources = {planned.column.name: planned.source for planned in self.plan.columns}
        key = {sources[name] for name in self.plan.after.key}
        return bool(key) and key != set(self.plan.before.key)

    def _check_unique(
        self, table: str, fields: Sequence[FieldSpec], columns: Sequence[str]
    ) -> None:
        """``columns``: names of the key columns in ``table``; ``fields``: the table's fields."""
        key = ", ".join(alike_key(fields, columns))
        if not self._any(f"{table} GROUP BY {key} HAVING count(*) > 1"):
            return
        after = self.plan.after
        name = after.index_name
        raise UsageError(
            f'could not create unique index "{name}"',
            sqlstate="23505",
            detail=f"Key ({', '.join(map(quote_identifier, after.key))}) is duplicated.",
        )

    def fill(self, branch: Branch, state: TableState) -> None:
        """Write the rows into the branch, as ``Anew`` specifies."""
        self._run(self._sql(state, self.plan.columns, self.using))
        compute_in(self.node, self.plan, branch)
        if self.replaced:
            return
        check_written(self.node, self.plan, self.node.branches.state(branch))
        table = relation(branch.location)
        after = self.plan.after
        for planned in self.plan.columns:
            changed = (
                planned.source is None
                or planned.retyped
                or planned.computed is not None
            )
            if (
                changed
                and planned.column.not_null
                and self._any(f"{table} WHERE {_is_null(planned.column.name)}")
            ):
                raise self._contains_null(planned.column.name)
        retyped = {
            planned.column.name for planned in self.plan.columns if planned.retyped
        }
        retyped |= {name for name, _ in computed_in(self.plan)}
        if retyped.intersection(after.key) or self._has_new_key():
            fields = self.node.tables.state(branch.location).fields
            self._check_unique(table, fields, after.key)

    def _newly_required(self) -> set[str]:
        before = {c.name for c in self.plan.before.columns if c.not_null}
        return {
            planned.column.name
            for planned in self.plan.columns
            if planned.column.not_null and planned.source not in before
        }

    def _contains_null(self, column: str) -> UsageError:
        return UsageError(
            f'column "{column}" of relation "{self.plan.before.name}" contains null'
            " values",
            sqlstate="23502",
        )

    def _sql(
        self,
        state: TableState,
        columns: Sequence[PlannedColumn],
        using: Mapping[str, str],
    ) -> str:
        """Translate the INSERT INTO the new rows SELECT FROM the old rows."""
        before, after = self.plan.before, self.plan.after
        names, items = [], []
        for planned in columns:
            if planned.source is not None and planned.computed is None:
                names.append(quote_identifier(planned.column.name))
                plain = quote_identifier(planned.source)
                items.append(
                    using.get(planned.source, plain) if planned.retyped else plain
                )
        rows = replace(
            after,
            oid=INVALID_OID,
            name=_ANEW,
            partition_key=None,
            partition_of=None,
            location=self.place,
            # NOT NULL is checked on the complete rows, with ALTER TABLE's messages. Rows keep
            # the sequence values they have.
            columns=tuple(
                replace(
                    planned.column,
                    not_null=False,
                    default=planned.default,
                    sequence=None,
                    identity="",
                    generated=None,
                )
                for planned in self.plan.columns
            ),
        )

        def resolve(schema: str | None, name: str) -> TableRef:
            if name == _ANEW:
                return TableRef(rows, None)
            old = replace(before, partition_key=None, partition_of=None)
            return TableRef(old, state.version)

        sql = (
            f"INSERT INTO {quote_identifier(_ANEW)} ({', '.join(names)}) SELECT"
            f" {', '.join(items)} FROM {quote_identifier(before.name)}"
        )
        try:
            return translate_write(sql, resolve, (), self.caller.zone).sql
        except UsageError as error:
            match = _OF_COLUMN.match(error.message)
            column = None if match is None else after.column(match[1])
            if error.sqlstate != "42804" or column is None:
                raise
            raise self._not_cast(column) from None

    def _not_cast(self, column: ColumnDef) -> UsageError:
        name, kind = column.name, format_type(column.type_oid, -1)
        if name in self.using:
            return UsageError(
                f'result of USING clause for column "{name}" cannot be cast'
                f" automatically to type {kind}",
                sqlstate="42804",
                hint="You might need to add an explicit cast.",
            )
        return UsageError(
            f'column "{name}" cannot be cast automatically to type {kind}',
            sqlstate="42804",
            hint=f'You might need to specify "USING {quote_identifier(name)}::'
            f'{_type(column)}".',
        )

    def _any(self, source: str) -> bool:
        result = self.node.queries.run(
            f"SELECT 1 FROM {source} LIMIT 1", job_group=self.caller.job_group
        )
        with result.batches as batches:
            return any(batch.num_rows for batch in batches)

    def _run(self, sql: str) -> None:
        self.node.queries.run(sql, job_group=self.caller.job_group).batches.close()


def _is_null(name: str) -> str:
    return f"{identifier(name)} IS NULL"
