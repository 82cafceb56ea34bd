"""The rows of a table as ALTER TABLE wants them: what is looked at, and how they are written.

In: a plan, the USING of its columns, a version of the table. Out: PostgreSQL's error, or a branch
that has all rows with their next columns. Called by ``altertable``.

Rows that must be written anew are translated as INSERT ... SELECT is, so a value is converted, or
refused, as PostgreSQL would; generated columns are computed behind that.

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
from wal2lake.lake.branch.branches import Branch
from wal2lake.lake.query import relation
from wal2lake.local.node import Caller, EngineParts
from wal2lake.model import INVALID_OID
from wal2lake.pgtypes import format_type
from wal2lake.pgtypes.equality import alike_key
from wal2lake.pgtypes.spark_ddl import identifier
from wal2lake.sql.grammar import quote_identifier
from wal2lake.sql.grammar.constraints.sequences import SEQUENCE_BITS
from wal2lake.sql.query.translate import TableRef
from wal2lake.sql.query.writes import check_default, translate_write

_ANEW: Final = "wal2lake anew"
"""Name that a statement gives to the rows that are written anew."""

_TEXT_CONSTANT: Final = re.compile(r"\s*'(?:[^']|'')*'\s*")

_OF_COLUMN: Final = re.compile(r'column "(.*)" is of type')


def _type(column: ColumnDef) -> str:
    return format_type(column.type_oid, column.typmod)


@dataclass(slots=True)
class Rewriting:
    """The rows of a table with its next columns."""

    node: EngineParts
    caller: Caller
    plan: ColumnPlan
    using: Mapping[str, str]
    place: str
    replaced: bool = False
    """The rows are not there to stay."""

    def check_types(self, state: TableState) -> None:
        """42804 for types that do not become each other."""
        retyped = [one for one in self.plan.columns if one.retyped and not one.computed]
        if retyped:
            self._sql(state, self.plan.columns, self.using)
        for one in retyped:
            if one.column.identity and one.column.type_oid not in SEQUENCE_BITS:
                raise UsageError(
                    "identity column type must be smallint, integer, or bigint",
                    sqlstate="22023",
                )
            default = one.column.default
            # Values of a sequence are given as the column's type, or are too large for it.
            if default is None or one.column.sequence is not None:
                continue
            try:
                if _TEXT_CONSTANT.fullmatch(default):
                    # It has had the type of its column.
                    self._sql(state, [one], {})
                else:
                    check_default(one.column, self.caller.zone)
            except UsageError as error:
                if error.sqlstate != "42804":
                    raise
                kind = format_type(one.column.type_oid, -1)
                raise UsageError(
                    f'default for column "{one.column.name}" cannot be cast'
                    f" automatically to type {kind}",
                    sqlstate="42804",
                ) from None

    def check_nulls(self, state: TableState) -> None:
        """23502 for NULLs in what stays, and for new columns that would have them."""
        if self.replaced:
            return
        names = self._newly_required()
        kept = {
            one.column.name: one.source
            for one in self.plan.columns
            if one.source is not None and not one.retyped and one.column.name in names
        }
        new = [
            one.column.name
            for one in self.plan.columns
            if one.source is None and one.column.not_null and one.default is None
        ]
        # What is computed is looked at with the constraints.
        computed = {name for name, _ in computed_in(self.plan)}
        kept = {name: source for name, source in kept.items() if name not in computed}
        new = [name for name in new if name not in computed]
        if not (kept or new) or is_empty(self.node.tables, state):
            return
        table = relation(state.location, state.version)
        for name in [one.column.name for one in self.plan.columns]:
            if name in new or (
                name in kept and self._any(f"{table} WHERE {_is_null(kept[name])}")
            ):
                raise self._contains_null(name)

    def check_key(self, state: TableState) -> None:
        """23505 for a new key of which rows that stay as they are have one value twice."""
        if self.replaced or not self._has_new_key() or rewrites(self.plan):
            return
        sources = {one.column.name: one.source for one in self.plan.columns}
        key = [sources[name] for name in self.plan.after.key]
        if is_empty(self.node.tables, state) or None in key:
            # A column that is new is null, which has been looked for.
            return
        self._check_unique(
            relation(state.location, state.version),
            state.fields,
            [str(name) for name in key],
        )

    def _has_new_key(self) -> bool:
        sources = {one.column.name: one.source for one in self.plan.columns}
        key = {sources[name] for name in self.plan.after.key}
        return bool(key) and key != set(self.plan.before.key)

    def _check_unique(
        self, table: str, fields: Sequence[FieldSpec], columns: Sequence[str]
    ) -> None:
        """``columns``: what the key's are called in ``table``, which has ``fields``."""
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
        """Write the rows into the branch; ``Anew`` explains it."""
        self._run(self._sql(state, self.plan.columns, self.using))
        compute_in(self.node, self.plan, branch)
        if self.replaced:
            return
        check_written(self.node, self.plan, self.node.branches.state(branch))
        table = relation(branch.location)
        after = self.plan.after
        for one in self.plan.columns:
            changed = one.source is None or one.retyped or one.computed is not None
            if (
                changed
                and one.column.not_null
                and self._any(f"{table} WHERE {_is_null(one.column.name)}")
            ):
                raise self._contains_null(one.column.name)
        retyped = {one.column.name for one in self.plan.columns if one.retyped}
        retyped |= {name for name, _ in computed_in(self.plan)}
        if retyped.intersection(after.key) or self._has_new_key():
            fields = self.node.tables.state(branch.location).fields
            self._check_unique(table, fields, after.key)

    def _newly_required(self) -> set[str]:
        before = {c.name for c in self.plan.before.columns if c.not_null}
        return {
            one.column.name
            for one in self.plan.columns
            if one.column.not_null and one.source not in before
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
        """INSERT INTO the new rows SELECT of the old ones."""
        before, after = self.plan.before, self.plan.after
        names, items = [], []
        for one in columns:
            if one.source is not None and one.computed is None:
                names.append(quote_identifier(one.column.name))
                plain = quote_identifier(one.source)
                items.append(using.get(one.source, plain) if one.retyped else plain)
        rows = replace(
            after,
            oid=INVALID_OID,
            name=_ANEW,
            partition_key=None,
            partition_of=None,
            location=self.place,
            # Looked at when all rows are there, with the words of ALTER TABLE. Rows keep what
            # they have of a sequence.
            columns=tuple(
                replace(
                    one.column,
                    not_null=False,
                    default=one.default,
                    sequence=None,
                    identity="",
                    generated=None,
                )
                for one in self.plan.columns
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
            found = _OF_COLUMN.match(error.message)
            column = None if found is None else after.column(found[1])
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
        found = self.node.queries.run(
            f"SELECT 1 FROM {source} LIMIT 1", job_group=self.caller.job_group
        )
        with found.batches as batches:
            return any(batch.num_rows for batch in batches)

    def _run(self, sql: str) -> None:
        self.node.queries.run(sql, job_group=self.caller.job_group).batches.close()


def _is_null(name: str) -> str:
    return f"{identifier(name)} IS NULL"
