"""Translates the publisher's schema steps into changes of the local table.

In: a ``SchemaDifference``, the local table, the subscription's options. Out: ``ColumnChange``
values, and the entry of wal2lake.schema_history for each step. Called by ``follow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wal2lake.apply.schema.columns import column_like, source_column
from wal2lake.apply.schema.diff import (
    Added,
    Dropped,
    Keyed,
    NullsAllowed,
    RelationMoved,
    Renamed,
    Retyped,
    SchemaDifference,
    Step,
)
from wal2lake.catalog import (
    AddColumn,
    ChangeType,
    ColumnChange,
    ColumnDef,
    DropColumn,
    RenameColumn,
    SchemaChange,
    SetDefault,
    SetKey,
    SetNotNull,
    Subscription,
    TableDef,
)
from wal2lake.model import Lsn, RemoteAttribute
from wal2lake.pg.quoting import quote_ident, quote_literal
from wal2lake.pgtypes import TypeMappings, ValuePolicies
from wal2lake.pgtypes.registry.pg_type import format_type


class SchemaChanges:
    """Changes of the local table that the publisher's steps require."""

    def __init__(
        self,
        subscription: Subscription,
        table: TableDef,
        difference: SchemaDifference,
        required: tuple[int, ...],
        settled: Lsn | None,
    ) -> None:
        """``required``: the previous ``FollowedSchema.required``. ``settled``: rows up to this LSN
        may contain nulls that NOT NULL forbids. None if no row does."""
        self._mappings = TypeMappings.parse(subscription.type_mappings)
        self._policies = ValuePolicies.parse(subscription.value_policies)
        self._difference = difference
        self._columns = {column.name: column for column in table.columns}
        self._key = list(table.key)
        self._had_key = bool(table.key)
        self.wanted: list[ColumnChange] = []
        self.noted: list[SchemaChange] = []
        self._settled = settled
        still = {a.number: a for a in difference.after.attributes if a.not_null}
        self._waiting = {n for n in required if n in still}
        """Numbers of the columns that become NOT NULL later."""
        self._strict: list[tuple[str, int]] = []
        """Columns to become NOT NULL, each with the index of its entry in ``noted``."""
        self._new_key: tuple[tuple[str, ...], int] | None = None
        """Columns of the new key, and the index of its entry in ``noted``."""
        for step in difference.steps:
            outcome = self._step(step)
            if outcome is not None:
                self._note(_words(step), outcome)
        if settled is None:
            self.require(self.required)
            self._waiting.clear()
        for partition in difference.partitions:
            self._note(partition, "nothing: rows that come or go with it are not sent")
        if difference.unknown is not None:
            self._note(difference.unknown, "the table is copied anew")

    @property
    def required(self) -> tuple[int, ...]:
        """Numbers of the columns that become NOT NULL later, as in ``FollowedSchema``."""
        return tuple(sorted(self._waiting))

    def require(self, numbers: Sequence[int]) -> None:
        """Make these columns NOT NULL now."""
        for number in numbers:
            attribute = self._difference.after.attribute(number)
            if attribute is not None:
                step = NullsAllowed(attribute.name, False)
                self._note(_words(step), self._nulls(step))

    def correct_notes(self, altered_table: TableDef | None) -> None:
        """Compare the altered table with the plan, and correct the notes of changes that were left
        out."""
        if self._new_key is not None and altered_table is not None:
            key, index = self._new_key
            if set(altered_table.key) != set(key):
                outcome = "left out: rows that are here have null, or one value twice"
                self.noted[index] = replace(self.noted[index], outcome=outcome)
        for name, index in self._strict:
            column = None if altered_table is None else altered_table.column(name)
            if column is None or column.not_null:
                continue
            entry = self.noted[index]
            self.noted[index] = replace(
                entry,
                outcome="left out: rows that are here have null"
                if entry.outcome == "changed"
                else f"{entry.outcome}; NOT NULL is left out: rows that are here have null",
            )

    def _note(self, change: str, outcome: str) -> None:
        self.noted.append(SchemaChange(change, outcome))

    def _step(self, step: Step) -> str | None:
        """Plan the changes for a step. Return the outcome, or None if the step does not concern the
        table."""
        match step:
            case Added():
                return self._add(step.attribute)
            case Dropped():
                return self._drop(step.name)
            case Renamed():
                return self._rename(step)
            case Retyped():
                return self._retype(step.attribute)
            case NullsAllowed():
                return self._nulls(step)
            case RelationMoved():
                return "rows are taken under the new name"
            case Keyed():
                return self._keyed(step)

    def _like(self, attribute: RemoteAttribute) -> ColumnDef:
        after = self._difference.after
        source = source_column(after.namespace, after.name, attribute)
        return column_like(source, attribute, self._mappings, self._policies).column

    def _add(self, attribute: RemoteAttribute) -> str:
        existing = self._columns.get(attribute.name)
        if existing is not None:
            # Added by a user, or by this node before a crash.
            if attribute.not_null and not existing.not_null:
                self._waiting.add(attribute.number)
            return "the column is there already"
        column = self._like(attribute)
        if column.not_null and self._settled is not None:
            self._waiting.add(attribute.number)
            column = replace(column, not_null=False)
        missing = attribute.missing
        missing_literal = None if missing is None else quote_literal(missing)
        self.wanted.append(AddColumn(replace(column, default=missing_literal)))
        if column.default != missing_literal:
            self.wanted.append(SetDefault(column.name, column.default))
        self._columns[column.name] = column
        if column.not_null:
            self._strict.append((column.name, len(self.noted)))
        if attribute.missing is None:
            return "added"
        return (
            f"added, with {quote_literal(attribute.missing)} in the rows that are here"
        )

    def _drop(self, name: str) -> str:
        if name not in self._columns:
            return "there is no such column"
        self.wanted.append(DropColumn(name))
        del self._columns[name]
        if name in self._key:
            self._key = []
        return "dropped"

    def _rename(self, step: Renamed) -> str:
        column = self._columns.get(step.before)
        if column is None:
            return "there is no such column"
        if step.after in self._columns:
            return "there is a column of the new name already"
        self.wanted.append(RenameColumn(step.before, step.after))
        del self._columns[step.before]
        self._columns[step.after] = replace(column, name=step.after)
        self._key = [step.after if k == step.before else k for k in self._key]
        return "renamed"

    def _retype(self, attribute: RemoteAttribute) -> str:
        column = self._columns.get(attribute.name)
        if column is None:
            return "there is no such column"
        like = self._like(attribute)
        kind = (like.type_oid, like.typmod, like.type_name, like.domain)
        if kind == (column.type_oid, column.typmod, column.type_name, column.domain):
            return "the column takes it as it is"
        self.wanted.append(ChangeType(attribute.name, like))
        self._columns[attribute.name] = replace(like, not_null=column.not_null)
        return "changed"

    def _nulls(self, step: NullsAllowed) -> str:
        column = self._columns.get(step.name)
        if column is None:
            return "there is no such column"
        if column.not_null is not step.allowed or column.name in self._key:
            return "nothing to do"
        if not step.allowed and self._settled is not None:
            self._waiting.update(
                a.number
                for a in self._difference.after.attributes
                if a.name == step.name
            )
            return f"put off until all rows below {self._settled} have come"
        if not step.allowed:
            self._strict.append((step.name, len(self.noted)))
        self.wanted.append(SetNotNull(step.name, not step.allowed))
        return "changed"

    def _keyed(self, step: Keyed) -> str | None:
        if set(step.columns) == set(self._key):
            return None
        if self._key and set(step.before or ()) != set(self._key):
            return "left out: the key here is another"
        if step.before and not self._had_key:
            return "left out: there is no key here"
        if not step.whole:
            return "left out: of a key whose columns are not all published, not all is known"
        if not set(step.columns) <= self._columns.keys():
            return "left out: there are not all of its columns"
        self.wanted.append(SetKey(step.columns))
        self._key = list(step.columns)
        self._new_key = (step.columns, len(self.noted))
        return "changed"


def _words(step: Step) -> str:
    match step:
        case Added():
            return f"ADD COLUMN {quote_ident(step.attribute.name)} {_type(step)}"
        case Dropped():
            return f"DROP COLUMN {quote_ident(step.name)}"
        case Renamed():
            return (
                f"RENAME COLUMN {quote_ident(step.before)} TO {quote_ident(step.after)}"
            )
        case Retyped():
            return f"ALTER COLUMN {quote_ident(step.attribute.name)} TYPE {_type(step)}"
        case NullsAllowed():
            verb = "DROP" if step.allowed else "SET"
            return f"ALTER COLUMN {quote_ident(step.name)} {verb} NOT NULL"
        case Keyed():
            return f"REPLICA IDENTITY ({', '.join(map(quote_ident, step.columns))})"
        case RelationMoved():
            return f"RENAME TO {quote_ident(step.namespace)}.{quote_ident(step.name)}"


def _type(step: Added | Retyped) -> str:
    attribute = step.attribute
    if attribute.domain is not None:
        return attribute.domain
    return format_type(int(attribute.type_oid), attribute.typmod)
