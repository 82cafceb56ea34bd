"""The columns of a CREATE TABLE, with the sequences that they own.

Takes the statement; returns definitions, and a sequence for each serial and identity column.

Source: transformColumnDefinition() and generateSerialExtraStmts() in parse_utilcmd.c.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

from wal2lake.catalog import Catalog, ColumnDef, OwnedSequence
from wal2lake.commands.constraints.defaulttexts import with_shown_default
from wal2lake.model import INVALID_OID
from wal2lake.pgtypes.columnnames import derived_name
from wal2lake.sql.grammar.constraints.sequenceoptions import nextval
from wal2lake.sql.grammar.statements import CreateTable


def owned_columns(
    catalog: Catalog, schema: str, statement: CreateTable, zone: str
) -> tuple[tuple[ColumnDef, ...], tuple[OwnedSequence, ...]]:
    """Return columns and sequences; the sequences' table is not known yet."""
    taken = {t.name for t in catalog.tables() if t.namespace == schema}
    taken |= {s.name for s in catalog.sequences() if s.namespace == schema}
    taken.add(statement.table.name)
    columns, sequences = [], []
    for c in statement.columns:
        column = ColumnDef(
            c.name, c.type_oid, c.typmod, not_null=c.not_null, default=c.default
        )
        if c.sequence is not None:
            name = _free_name(statement.table.name, c.name, taken)
            taken.add(name)
            sequence = OwnedSequence(
                catalog.new_oid(),
                schema,
                name,
                INVALID_OID,
                c.type_oid,
                c.sequence.start,
                c.sequence.increment,
            )
            sequences.append(sequence)
            column = replace(
                column, sequence=sequence.oid, identity=c.sequence.identity
            )
            if not c.sequence.identity:
                column = replace(column, default=nextval(schema, name))
        columns.append(with_shown_default(column, zone))
    return tuple(columns), tuple(sequences)


def _free_name(table: str, column: str, taken: Collection[str]) -> str:
    """Choose a name like ChooseRelationName(); numbered if the name is taken."""
    for number in itertools.count():
        name = derived_name(table, column, f"seq{number or ''}")
        if name not in taken:
            return name
    raise AssertionError
