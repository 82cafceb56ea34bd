"""Converts one batch of log rows to staged changes of one target table.

Comes in: a record batch in log layout, of one relation version, and the target. Goes out: a typed
table in the layout of ``staging.layout``, a summary of its contents, and the rows that cannot be
applied. Pure; called inside Spark's Python workers by ``stage``.

Decided here, once for both ways of applying:

- Columns are matched by name. A replicated column that the target lacks is PostgreSQL's error. A
  column of the target that is not replicated gets its default in an INSERT and keeps its value in
  an UPDATE; if it is generated, it is computed.
- The key of an event is the new one, or the old one of a DELETE. An UPDATE whose old key was
  sent and differs (as values, not as text) has *moved* its row.
- An unchanged TOAST value is known if a sent old row has it.
- In a table without a primary key the whole old row identifies the row (REPLICA IDENTITY FULL).

Sources: PostgreSQL relation.c (logicalrep_rel_open, logicalrep_report_missing_attrs), worker.c
(check_relation_updatable), heapam.c (ExtractReplicaIdentity).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.origins import BatchCommits
from wal2lake.lake.partitions import (
    EMPTY_TEXT,
    EMPTY_TEXT_REMEDY,
    text_partitions,
)
from wal2lake.lake.port import FieldSpec, PhysicalField
from wal2lake.lake.staging.convert import (
    NO_RULES,
    BadValue,
    ConversionRules,
    Converted,
    Mask,
    SentColumn,
    convert_column,
    mapping_of,
    not_filled,
    nulls_refused,
)
from wal2lake.lake.staging.defaults import Fills, behind, filled
from wal2lake.lake.staging.generated import computed, inputs_of
from wal2lake.lake.staging.layout import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    RowFailure,
    Seq,
)
from wal2lake.lake.staging.wholerows import refused_by_checks, with_generated
from wal2lake.model import Coercion, Generated, Lsn, Relation, ReplicaIdentity
from wal2lake.pgtypes import RemoteTypes, TypeMapping
from wal2lake.pgtypes.moments import numbered


@dataclass(frozen=True, slots=True)
class StageTarget:
    """The table for which rows are staged; picklable."""

    namespace: str
    name: str
    location: str
    fields: tuple[FieldSpec, ...]
    physical: tuple[PhysicalField, ...]
    """Same order as ``fields``."""
    key: tuple[str, ...]
    """Primary key columns; empty: ``content`` identifies a row."""
    types: RemoteTypes = field(default_factory=dict)
    """The publisher's types that are not built in, for values in binary format."""
    rules: ConversionRules = NO_RULES
    content: tuple[str, ...] = ()
    """Without a key: the columns that the batch's relation sends."""
    fills: Fills = field(default_factory=dict)
    """Values that inserts put into columns that are not sent."""
    commits: BatchCommits | None = None
    """Transactions of the batch, whose writer is added to rows that go into the table as they
    are."""

    def behind(self, inserts: int) -> StageTarget:
        """Return the target for the rows after so many inserts."""
        fills = behind(self.fills, inserts)
        return self if fills is self.fills else replace(self, fills=fills)

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self.key or self.content

    @property
    def identity_positions(self) -> tuple[int, ...]:
        """Their positions in ``fields``; a key's columns in key order."""
        names = [f.name for f in self.fields]
        return tuple(names.index(k) for k in self.identity)

    @property
    def partition_texts(self) -> frozenset[str]:
        """The text columns by which the table is partitioned."""
        return text_partitions(self.fields, self.physical)

    @property
    def qualified(self) -> str:
        """``schema.table`` as messages print it."""
        return f"{self.namespace}.{self.name}"


@dataclass(slots=True)
class StagedContents:
    """Summary of staged rows; can be added up over batches."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    unchanged: set[int] = field(default_factory=set)
    moved: bool = False
    last_truncate: Seq | None = None
    coercions: list[Coercion] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return self.inserts + self.updates + self.deletes + self.truncates

    def add(self, part: StagedContents) -> None:
        """Add the summary of another part of the same batch of transactions."""
        self.inserts += part.inserts
        self.updates += part.updates
        self.deletes += part.deletes
        self.truncates += part.truncates
        self.unchanged |= part.unchanged
        self.moved |= part.moved
        self.coercions += part.coercions
        both = [s for s in (self.last_truncate, part.last_truncate) if s is not None]
        self.last_truncate = max(both, default=None)


def columns_wanted(
    relation: Relation, target: StageTarget, present: Collection[str]
) -> list[str]:
    """Return the columns of a file in log layout that these functions read."""
    names = []
    for i, column in enumerate(relation.columns):
        if not column.name:
            continue
        names += [f"c{i}", f"u{i}", f"b{i}", f"ob{i}"]
        # With REPLICA IDENTITY FULL the old rows are as large as the new ones.
        if column.name in target.identity or f"u{i}" in present:
            names.append(f"o{i}")
    return [name for name in names if name in present]


def check_columns(relation: Relation, target: StageTarget) -> tuple[str, str] | None:
    """Return (SQLSTATE, message) if the target lacks a replicated column, or if the relation's
    columns are not those that identify a row: a batch must not find rows by fewer columns than it
    was sent."""
    names = {f.name for f in target.fields}
    sent = [c.name for c in relation.columns if c.name]
    missing = [name for name in sent if name not in names]
    refused = incompatible_columns(target.qualified, sent, target.rules.generated)
    if not missing and refused is not None:
        return "55000", refused
    if not missing:
        if target.content and set(sent) != set(target.content):
            return (
                "55000",
                f'the replicated columns of "{target.qualified}", which has no primary'
                " key, have changed",
            )
        return None
    word = "column" if len(missing) == 1 else "columns"
    listed = ", ".join(f'"{name}"' for name in missing)
    return (
        "55000",
        f'logical replication target relation "{target.qualified}" is missing '
        f"replicated {word}: {listed}",
    )


def incompatible_columns(
    table: str, sent: Collection[str], generated: Generated
) -> str | None:
    """Return PostgreSQL's message about replicated columns that are generated in the target,
    ``schema.table``; None if there are none."""
    columns = [name for name, _ in generated if name in sent]
    if not columns:
        return None
    word = "column" if len(columns) == 1 else "columns"
    listed = ", ".join(f'"{name}"' for name in columns)
    return (
        f'logical replication target relation "{table}" has incompatible generated'
        f" {word}: {listed}"
    )


def insert_rows(
    batch: pa.RecordBatch, relation: Relation, target: StageTarget
) -> tuple[pa.Table, StagedContents, tuple[RowFailure, ...]]:
    """Convert a batch of INSERTs to rows of the target, with its columns in its order."""
    rows = _Rows(batch, relation, target)
    arrays = []
    bad: list[BadValue] = []
    every = np.ones(batch.num_rows, np.bool_)
    for spec in target.fields:
        position = rows.position(spec)
        mapping = mapping_of(spec)
        if position is None:
            array = rows.default(spec, mapping, every, bad)
        else:
            converted = rows.convert(rows.new(position), spec, mapping)
            array = converted.array
            bad += converted.bad
        bad += rows.nulls(array, spec, every, bad)
        bad += rows.empty_texts(array, spec, every, bad)
        arrays.append(array)
    table = pa.Table.from_arrays(arrays, names=[f.name for f in target.fields])
    table = rows.generated(table, every, bad)
    bad += rows.unchecked(table, every, bad)
    if target.commits is not None:
        lsn = batch.column("commit_lsn").to_numpy()
        table = target.commits.of(lsn).appended(table)
    contents = StagedContents(inserts=batch.num_rows, coercions=rows.coercions)
    return table, contents, rows.located(bad)


def change_rows(
    batch: pa.RecordBatch, relation: Relation, target: StageTarget
) -> tuple[pa.Table, StagedContents, tuple[RowFailure, ...]]:
    """Convert a batch of any events to staged changes."""
    rows = _Rows(batch, relation, target)
    keys = target.identity_positions
    bad = rows.without_identity()
    old_keys, moved = rows.old_keys(bad) if target.key else rows.old_rows(bad)
    deleted = rows.op == DELETE
    news, flags = [], {}
    for i, spec in enumerate(target.fields):
        mapping = mapping_of(spec)
        position = rows.position(spec)
        if position is None:
            array = rows.default(spec, mapping, rows.op == INSERT, bad)
            unchanged = rows.op == UPDATE
        else:
            sent = rows.new(position)
            unchanged = rows.unchanged(position)
            if i in keys:
                old = rows.old(position)
                if old is not None:
                    named = deleted | unchanged if target.key else unchanged
                    sent = sent.filled(named, old)
                unchanged = np.zeros(batch.num_rows, np.bool_)
            elif unchanged.any():
                old = rows.old(position)
                if old is not None:
                    sent = sent.filled(unchanged, old)
                    unchanged &= sent.values.is_null().to_numpy(zero_copy_only=False)
            converted = rows.convert(sent, spec, mapping)
            array = converted.array
            bad += converted.bad
            if not target.key and i in old_keys:
                array = pc.if_else(pa.array(deleted), old_keys[i], array)
        written = (rows.op == INSERT) | ((rows.op == UPDATE) & ~unchanged)
        if spec.name in target.key:
            written = rows.op != TRUNCATE
        bad += rows.nulls(array, spec, written, bad)
        bad += rows.empty_texts(array, spec, written, bad)
        news.append(array)
        if unchanged.any():
            flags[i] = unchanged
    new_rows = pa.Table.from_arrays(news, names=[f.name for f in target.fields])
    new_rows = rows.generated(new_rows, rows.op == INSERT, bad)
    new_rows = _compute_for_updates(new_rows, target, rows.op == UPDATE, flags)
    # The row that an UPDATE makes is known once its old row is found (``upsert.checking``).
    bad += rows.unchecked(new_rows, rows.op == INSERT, bad)
    columns = {
        "lsn": batch.column("commit_lsn"),
        "ord": batch.column("ordinal"),
        "op": pa.array(rows.op.view(np.int8)),
        "moved": pa.array(moved),
        **{f"n{i}": array for i, array in enumerate(new_rows.columns)},
        **{f"u{i}": pa.array(mask) for i, mask in sorted(flags.items())},
    }
    if moved.any():
        still = pa.array(~moved)
        for i, array in old_keys.items():
            columns[f"o{i}"] = pc.if_else(still, pa.scalar(None, array.type), array)
    table = pa.table(columns)
    contents = rows.contents(set(flags), moved)
    contents.coercions = rows.coercions
    return table, contents, rows.located(bad)


def _compute_for_updates(
    rows: pa.Table, target: StageTarget, updates: Mask, flags: dict[int, Mask]
) -> pa.Table:
    """Compute the generated columns of UPDATEs that send all columns from which they are computed,
    and adjust ``flags``. A value that cannot be computed is null; it is checked when the row is
    found (``upsert.checking``)."""
    generated = target.rules.generated
    if not generated or not updates.any():
        return rows
    names = [field.name for field in target.fields]
    unknown = np.zeros(len(updates), np.bool_)
    for name in inputs_of(generated):
        unknown |= flags.get(names.index(name), unknown)
    rows, _ = computed(generated, target.fields, rows, updates & ~unknown)
    for name, _ in generated:
        flags.pop(names.index(name), None)
        if unknown.any():
            flags[names.index(name)] = unknown
    return rows


class _Rows:
    """A batch of one relation version, as staging reads it."""

    __slots__ = (
        "_batch",
        "_names",
        "_relation",
        "_target",
        "coercions",
        "op",
        "sent_old",
    )

    def __init__(
        self, batch: pa.RecordBatch, relation: Relation, target: StageTarget
    ) -> None:
        self._batch = batch
        self._names = {c.name: i for i, c in enumerate(relation.columns)}
        self._relation = relation
        self._target = target
        self.coercions: list[Coercion] = []
        """Values of converted columns that policies have changed."""
        self.op = batch.column("op").to_numpy()
        self.sent_old = batch.column("old").to_numpy() != 0

    def convert(
        self, sent: SentColumn, spec: FieldSpec, mapping: TypeMapping
    ) -> Converted:
        """Convert a column to stored values, under its policy."""
        rules, relation = self._target.rules, self._relation
        policy = rules.policy(relation.namespace, relation.name, spec, sent)
        converted = convert_column(sent, spec, mapping, policy, rules)
        for change in converted.changes:
            # Rows are in log order.
            first, last = (self._seq(int(change.rows[index])) for index in (0, -1))
            self.coercions.append(
                Coercion(
                    spec.name,
                    change.policy.value,
                    change.reason,
                    len(change.rows),
                    Lsn(first.commit_lsn),
                    Lsn(last.commit_lsn),
                    change.example,
                )
            )
        return converted

    def default(
        self, spec: FieldSpec, mapping: TypeMapping, where: Mask, bad: list[BadValue]
    ) -> pa.Array:
        """Return a column that is not sent, with its default ``where`` rows are inserted."""
        fill = self._target.fills.get(spec.name)
        first = int(np.argmax(where)) if where.any() else None
        bad += not_filled(fill, spec.name, first)
        return filled(fill, where, mapping.arrow_type)

    def position(self, spec: FieldSpec) -> int | None:
        """Return the position of the relation's column of that name; None if there is none."""
        return self._names.get(spec.name)

    def new(self, position: int) -> SentColumn:
        """Return a column of the new tuples, null where none was sent."""
        values = self._batch.column(f"c{position}")
        return self._sent(position, values, f"b{position}")

    def old(self, position: int) -> SentColumn | None:
        """Return a column of the old tuples, null where none was sent; None if no old tuple has
        it."""
        values = self._optional(f"o{position}")
        if values is None:
            return None
        return self._sent(position, values, f"ob{position}")

    def _sent(self, position: int, values: pa.Array, flags: str) -> SentColumn:
        column = self._relation.columns[position]
        return SentColumn(
            values,
            self._flags(flags),
            column.type_oid,
            column.typmod,
            self._target.types,
        )

    def unchanged(self, position: int) -> Mask:
        """Mark the new tuples that have an unchanged TOAST value."""
        flags = self._flags(f"u{position}")
        return np.zeros(self._batch.num_rows, np.bool_) if flags is None else flags

    def _flags(self, name: str) -> Mask | None:
        flags = self._optional(name)
        if flags is None:
            return None
        mask: Mask = flags.to_numpy(zero_copy_only=False)
        return mask.astype(np.bool_)

    def old_keys(self, bad: list[BadValue]) -> tuple[dict[int, pa.Array], Mask]:
        """Return typed old keys by target position, and the UPDATEs that changed the key."""
        candidates = (self.op == UPDATE) & self.sent_old
        moved = np.zeros(len(self.op), np.bool_)
        if not candidates.any():
            return {}, moved
        typed = {}
        for i in self._target.identity_positions:
            spec = self._target.fields[i]
            position = self.position(spec)
            before = None if position is None else self.old(position)
            if position is None or before is None:
                continue
            after = self.new(position).filled(self.unchanged(position), before)
            mapping = mapping_of(spec)
            converted = convert_column(before, spec, mapping)
            old = converted.array
            bad += [b for b in converted.bad if candidates[b.row]]
            typed[i] = old
            alike = before.binary is None and after.binary is None
            # Bytes can be compared only if both are text.
            differs = candidates
            if alike:
                differs = _differ(before.values, after.values) & candidates
            exact = alike and mapping.arrow_type.equals(pa.string())
            if differs.any() and not exact:
                # A row does not move if the values are equal, such as 1.0 and 1.00.
                new = convert_column(after, spec, mapping).array
                differs = differs & _differ(old, new)
            moved |= differs
        return typed, moved

    def old_rows(self, bad: list[BadValue]) -> tuple[dict[int, pa.Array], Mask]:
        """Return typed old rows by target position, of each UPDATE and DELETE; and the UPDATEs.

        They are converted under the columns' policies, as the stored rows were, but not counted
        again.
        """
        typed = {}
        for i in self._target.identity_positions:
            spec = self._target.fields[i]
            position = self.position(spec)
            old = None if position is None else self.old(position)
            if old is None:
                continue
            rules, relation = self._target.rules, self._relation
            policy = rules.policy(relation.namespace, relation.name, spec, old)
            converted = convert_column(old, spec, mapping_of(spec), policy, rules)
            typed[i] = converted.array
            bad += converted.bad
        return typed, self.op == UPDATE

    def without_identity(self) -> list[BadValue]:
        """Return the first event that identifies its row by a key that the target does not
        have."""
        needs = (self.op == UPDATE) | (self.op == DELETE)
        identity = {c.name for c in self._relation.columns if c.is_key}
        if self._target.key and set(self._target.key) <= identity:
            unnamed = (self.op == DELETE) & ~self.sent_old
            for i in self._target.identity_positions:
                position = self._names[self._target.fields[i].name]
                unnamed |= self.unchanged(position) & ~self.sent_old
            needs = unnamed
        elif self._by_content:
            needs &= ~self.sent_old
        positions = np.flatnonzero(needs)
        if not positions.size:
            return []
        name = self._target.qualified
        if self._target.key or self._by_content:
            message = (
                "publisher did not send replica identity column expected by the "
                f'logical replication target relation "{name}"'
            )
        else:
            message = (
                f'logical replication target relation "{name}" has neither REPLICA '
                "IDENTITY index nor PRIMARY KEY and published relation does not have "
                "REPLICA IDENTITY FULL"
            )
        return [BadValue(int(positions[0]), "", "55000", message)]

    @property
    def _by_content(self) -> bool:
        return not self._target.key and self._relation.identity is ReplicaIdentity.FULL

    def nulls(
        self, array: pa.Array, spec: FieldSpec, where: Mask, bad: Sequence[BadValue]
    ) -> list[BadValue]:
        """Return the first null in a column that must not be null, unless its row is already
        bad."""
        if any(spec.name == name for name, _ in self._target.rules.generated):
            # A generated column is checked when it is computed.
            return []
        sent = self.position(spec) is not None
        if spec.generation is not None and not sent:
            # So is one of Delta's own.
            return []
        takes = self._target.rules.takes_null(spec, sent=sent)
        if takes and spec.name not in self._target.key:
            return []
        refused = nulls_refused(array, spec, self._target.name, where)
        return [r for r in refused if all(r.row != b.row for b in bad)]

    def empty_texts(
        self, array: pa.Array, spec: FieldSpec, where: Mask, bad: Sequence[BadValue]
    ) -> list[BadValue]:
        """Return the first empty text in a column by which the table is partitioned, where Delta
        reads it as NULL."""
        if spec.name not in self._target.partition_texts:
            return []
        empty = pc.fill_null(pc.equal(array, ""), False)
        rows = np.flatnonzero(empty.to_numpy(zero_copy_only=False) & where)
        return [
            BadValue(int(row), spec.name, "0A000", EMPTY_TEXT, hint=EMPTY_TEXT_REMEDY)
            for row in rows[:1]
            if all(row != b.row for b in bad)
        ]

    def generated(self, rows: pa.Table, where: Mask, bad: list[BadValue]) -> pa.Table:
        """Compute the generated columns of rows ``where``, except of rows that are already bad."""
        target = self._target
        rows, refused = with_generated(
            target.rules, target.name, target.fields, rows, bad, where
        )
        bad += refused
        computed = {name for name, _ in target.rules.generated}
        for spec in target.fields:
            if spec.name in computed:
                values = rows.column(spec.name).combine_chunks()
                bad += self.empty_texts(values, spec, where, bad)
        return rows

    def unchecked(
        self, rows: pa.Table, where: Mask, bad: Sequence[BadValue]
    ) -> list[BadValue]:
        """Return the first row ``where`` a CHECK is violated, unless it is already bad."""
        target = self._target
        return refused_by_checks(
            target.rules, target.name, target.fields, rows, bad, where
        )

    def contents(self, unchanged: set[int], moved: Mask) -> StagedContents:
        """Summarize the batch."""
        counts = np.bincount(self.op, minlength=256)
        truncates = np.flatnonzero(self.op == TRUNCATE)
        return StagedContents(
            inserts=int(counts[INSERT]),
            updates=int(counts[UPDATE]),
            deletes=int(counts[DELETE]),
            truncates=int(counts[TRUNCATE]),
            unchanged=unchanged,
            moved=bool(moved.any()),
            last_truncate=self._seq(int(truncates[-1])) if truncates.size else None,
        )

    def located(self, bad: Sequence[BadValue]) -> tuple[RowFailure, ...]:
        """Return bad rows by their position in the log, ascending."""
        failures = [
            RowFailure(
                self._seq(b.row),
                b.column or None,
                b.sqlstate,
                b.message,
                detail=b.detail,
                hint=b.hint,
                op=int(self.op[b.row]),
            )
            for b in bad
        ]
        return tuple(sorted(failures, key=lambda f: f.seq))

    def _seq(self, row: int) -> Seq:
        lsn = self._batch.column("commit_lsn")[row].as_py()
        return Seq(lsn, self._batch.column("ordinal")[row].as_py())

    def _optional(self, name: str) -> pa.Array | None:
        index = self._batch.schema.get_field_index(name)
        return None if index < 0 else self._batch.column(index)


def _differ(left: pa.Array, right: pa.Array) -> Mask:
    """Mark where two arrays differ; null equals null."""
    if pa.types.is_list(left.type):
        # Arrow cannot compare lists, and Python lacks some dates.
        left, right = numbered(left), numbered(right)
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.fromiter((a != b for a, b in pairs), np.bool_, len(left))
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    nulls = pc.xor(left.is_null(), right.is_null())
    mask: Mask = pc.or_(unequal, nulls).to_numpy(zero_copy_only=False)
    return mask
