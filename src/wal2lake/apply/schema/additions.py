"""Finds consecutive ADD COLUMNs of a table that can be carried out as one alteration. Pure.

In: the schema that the local table agrees with, the schemas sent afterwards. Out: the differences
from each to the next, as far as each only adds columns whose values cannot be refused: rows that
the table takes without the new columns are taken with them, too. ``follow`` carries them out at
once, and ``applier`` has evaluated the rows in between before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wal2lake.apply.batch import TableChanges, divide
from wal2lake.apply.schema.columns import column_like, source_column
from wal2lake.apply.schema.diff import Added, SchemaDifference, difference
from wal2lake.catalog import Subscription, SubscriptionRel
from wal2lake.changelog.manifest import Manifest, RowsFile
from wal2lake.model import RemoteAttribute, RemoteSchema, SentSchema
from wal2lake.pgtypes import TypeMappings, ValuePolicies

_ALWAYS_FITTING: Final = frozenset({16, 20, 21, 23, 700, 701, 2950})
"""OIDs of the types whose values always fit a column of the same type: boolean, bigint, smallint,
integer, real, double precision, uuid. Others have values that no column holds, or a limit of
length."""


@dataclass(frozen=True, slots=True)
class Addition:
    """A sent schema that only adds columns."""

    sent: SentSchema
    steps: SchemaDifference
    """Steps from the schema before it."""


def additions(
    before: RemoteSchema,
    waiting: Sequence[SentSchema],
    subscription: Subscription,
    columns: Collection[str],
) -> tuple[Addition, ...]:
    """Return the first schemas of ``waiting``, in the order of their transactions, that only add
    columns. ``columns``: names that the local table has already. Columns that become NOT NULL are
    not among them."""
    mappings = TypeMappings.parse(subscription.type_mappings)
    policies = ValuePolicies.parse(subscription.value_policies)
    taken = set(columns)
    run: list[Addition] = []
    for sent in waiting:
        if run and sent.commit_lsn <= run[-1].sent.commit_lsn:
            break
        steps = difference(before, sent)
        if steps.unknown is not None or steps.partitions:
            break
        added = [step.attribute for step in steps.steps if isinstance(step, Added)]
        if len(added) < len(steps.steps) or any(
            column.name in taken
            or not _always_fits(steps.after, column, mappings, policies)
            for column in added
        ):
            break
        taken.update(column.name for column in added)
        run.append(Addition(sent, steps))
        before = steps.after
    return tuple(run)


def without_columns(
    manifests: Sequence[Manifest],
    rel: SubscriptionRel,
    run: Sequence[Addition],
) -> TableChanges:
    """Return the table's rows from the first transaction of ``run`` on and below the last, without
    the columns that the run adds: as if they were dropped, they have an empty name."""
    first, last = run[0].sent.commit_lsn, run[-1].sent.commit_lsn
    added = {
        step.attribute.name
        for addition in run
        for step in addition.steps.steps
        if isinstance(step, Added)
    }
    batch = divide(
        manifests,
        positions={(rel.remote_namespace, rel.remote_name): (rel.relid, first)},
        end=last,
    )
    return TableChanges(
        rel.relid,
        first,
        tuple(
            _without(file, added)
            for changes in batch.tables
            for file in changes.below(last)
        ),
    )


def _without(file: RowsFile, added: Collection[str]) -> RowsFile:
    columns = (
        replace(column, name="") if column.name in added else column
        for column in file.relation.columns
    )
    return replace(file, relation=replace(file.relation, columns=tuple(columns)))


def _always_fits(
    schema: RemoteSchema,
    column: RemoteAttribute,
    mappings: TypeMappings,
    policies: ValuePolicies,
) -> bool:
    """Whether the local column takes each value of the publisher's."""
    if column.not_null or column.domain is not None:
        return False
    source = source_column(schema.namespace, schema.name, column)
    local = column_like(source, column, mappings, policies).column
    return int(column.type_oid) in _ALWAYS_FITTING and local.type_oid == column.type_oid
