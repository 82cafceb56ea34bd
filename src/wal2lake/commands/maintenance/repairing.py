"""REPAIR: writes the rows of the source over the rows that VERIFY has listed.

Takes the parsed statement; returns a row for each table. For each table, until its list is empty:

    slot     a temporary slot at the publisher exports a snapshot; its consistent point is S
    read     the rows of listed keys are looked up in the snapshot, nothing else is read
    write    the apply worker ends a batch at S and writes them, before it takes the next batch
    list     the rows are taken from wal2lake.differences, and counted

A crash before the write changes nothing; one after it leaves rows listed that are right by now, and
another REPAIR writes them once more. Rows of more than some megabytes are written in parts, each
with its own S.

The caller needs what ALTER SUBSCRIPTION needs. PostgreSQL has no counterpart.

Source: docs/decisions/0037-repair.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from wal2lake.apply.step.repairs.sourcerows import (
    RepairedRow,
    RowRepair,
    keyed_relation,
)
from wal2lake.catalog import NotedDifference, Subscription, SubscriptionRel, TableDef
from wal2lake.commands.maintenance.comparedsource import ComparedSource
from wal2lake.commands.maintenance.states import PREREQUISITE, state_at_snapshot
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.owner import check_may_change
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.lake.plain import PlainRead
from wal2lake.local.node import Caller, EngineParts, need_table
from wal2lake.model import Lsn, Relation
from wal2lake.pg import RemoteTable, Session
from wal2lake.pg.quoting import quote_ident, quote_literal
from wal2lake.pgtypes import arrow_from_ddl
from wal2lake.sql.backend import Outcome, ResultBatch
from wal2lake.sql.grammar.maintenance import RepairTables
from wal2lake.verify import NotComparable, form_of, published_rows, text_of
from wal2lake.wire.frontback import FieldDescription

_TEXT, _INT8 = 25, 20

REPAIRED: Final = (
    FieldDescription("subscription", _TEXT),
    FieldDescription("table", _TEXT),
    FieldDescription("repaired_rows", _INT8),
    FieldDescription("differing_rows", _INT8),
)
"""The columns of the answer. ``differing_rows``: how many are known to be left."""

_LOOKED_UP: Final = 200
"""Rows that one query looks up. Each is a condition of its own, so a few hundred are cheap."""

_MOST_CHARACTERS: Final = 4 << 20
"""Characters of values from which a part is written before more rows are read."""

Key = tuple[tuple[str, str | None], ...]


def repair(node: EngineParts, caller: Caller, statement: RepairTables) -> Outcome:
    """Execute REPAIR."""
    outside_block(caller, "REPAIR")
    chosen = [
        _subscribed(node, caller, need_table(node.catalog, caller, n.schema, n.name))
        for n in statement.tables
    ]
    rows: list[tuple[str, str, str, str]] = []
    for subscription, rel, table in chosen:
        repaired = repair_table(node, caller, subscription, rel, table)
        left = sum(
            verification.differing_rows
            for verification in node.catalog.verifications()
            if (verification.subid, verification.relid) == (rel.subid, rel.relid)
        )
        rows.append((subscription.name, table.qualified, str(repaired), str(left)))
    columns = tuple(
        [value.encode() for value in column] for column in zip(*rows, strict=True)
    )
    return Outcome("REPAIR", REPAIRED, iter((ResultBatch(len(rows), columns),)))


def _subscribed(
    node: EngineParts, caller: Caller, table: TableDef
) -> tuple[Subscription, SubscriptionRel, TableDef]:
    """Return the only subscription that fills a table. VERIFY compares no other tables."""
    rels = [rel for rel in node.catalog.rels() if rel.relid == table.oid]
    subscriptions = {s.oid: s for s in node.catalog.subscriptions()}
    if not rels or rels[0].subid not in subscriptions:
        raise UsageError(
            f'table "{table.qualified}" does not belong to any subscription',
            sqlstate=PREREQUISITE,
            hint="SELECT * FROM pg_subscription_rel lists the tables that do.",
        )
    subscription = subscriptions[rels[0].subid]
    check_may_change(node, caller, subscription)
    return subscription, rels[0], table


def repair_table(
    node: EngineParts,
    caller: Caller,
    subscription: Subscription,
    rel: SubscriptionRel,
    table: TableDef,
) -> int:
    """Repair the listed rows of a table. Return their number.

    Raises FeatureNotSupportedError (0A000) with the reason if rows of the table cannot be repaired,
    and the errors of ``state_at_snapshot``; parts written before stay."""
    try:
        return _TableRepair(node, caller, subscription, rel, table).run()
    except NotComparable as error:
        raise FeatureNotSupportedError(
            f'rows of table "{table.qualified}" cannot be repaired',
            detail=f"Reason: {error.message}.",
        ) from None


class _TableRepair:
    """Repairs the listed rows of one table."""

    def __init__(
        self,
        node: EngineParts,
        caller: Caller,
        subscription: Subscription,
        rel: SubscriptionRel,
        table: TableDef,
    ) -> None:
        self._node = node
        self._caller = caller
        self._subscription = subscription
        self._rel = rel
        self._table = table
        self._source = ComparedSource(node, caller, subscription)

    def run(self) -> int:
        """Repair the rows. Return their number."""
        repaired = 0
        while listed := self._listed():
            repaired += self._repair_some(listed)
        return repaired

    def _listed(self) -> list[NotedDifference]:
        return [
            noted
            for noted in self._node.catalog.differences()
            if (noted.subid, noted.relid) == (self._rel.subid, self._rel.relid)
        ]

    def _repair_some(self, listed: Sequence[NotedDifference]) -> int:
        """Repair the first rows of the list, in one commit. Return their number."""
        node = self._node
        taken: list[NotedDifference] = []

        def read(session: Session, lsn: Lsn) -> RowRepair | None:
            taken.clear()
            with self._source.locked(session, self._rel) as remote:
                self._check(remote)
                reader = _RowReader(session, node, self._table, remote)
                rows: list[RepairedRow] = []
                size = 0
                for start in range(0, len(listed), _LOOKED_UP):
                    self._caller.check()
                    part = listed[start : start + _LOOKED_UP]
                    for row in reader.rows(part):
                        size += sum(len(value or "") for value in row.values)
                        rows.append(row)
                    taken.extend(part)
                    if size > _MOST_CHARACTERS:
                        break
            return RowRepair(self._rel.relid, lsn, reader.relation, tuple(rows))

        self._source.check_comparable()
        with ExitStack() as open_sessions:
            state_at_snapshot(
                node.apply,
                self._subscription,
                self._source.exported,
                self._source.imported,
                self._caller.check,
                open_sessions,
                read=read,
            )
        node.catalog.note_repaired(self._rel.subid, self._rel.relid, taken)
        return len(taken)

    def _check(self, remote: RemoteTable) -> None:
        """Raise NotComparable (0A000) if rows cannot be repaired one by one."""
        vector = self._node.catalog.newest_vector(self._rel.subid)
        if vector is None:
            raise NotComparable("its copy is not complete")
        self._source.comparable(self._rel, vector)
        if not remote.key:
            raise NotComparable(
                "it has no primary key, so nothing says which row is meant"
            )
        names = {column.name for column in remote.columns}
        if set(remote.key) != set(self._table.key) or not set(remote.key) <= names:
            raise NotComparable("its primary key is not that of the source")


class _RowReader:
    """Looks up rows of a table at the source by listed keys."""

    def __init__(
        self, session: Session, node: EngineParts, table: TableDef, remote: RemoteTable
    ) -> None:
        self._session = session
        self._rows = published_rows(remote)
        self._filtered = bool(remote.row_filters)
        self._names = tuple(column.name for column in remote.columns)
        self._key = remote.key
        version = node.tables.state(table.location).version
        read = PlainRead.of(node.tables, table.location, version, list(remote.key))
        if read is None:
            raise NotComparable("only Spark can read its files")
        types = {column.name: column for column in remote.columns}
        self._key_forms = [
            form_of(
                arrow_from_ddl(field.spark_ddl),
                types[name].type_oid,
                types[name].typmod,
            )
            for name, field in zip(remote.key, read.fields, strict=True)
        ]
        self.relation: Relation = keyed_relation(remote)

    def rows(self, listed: Sequence[NotedDifference]) -> Iterator[RepairedRow]:
        """Yield what makes the rows of these keys those of the source."""
        present = self._present([noted.difference.key for noted in listed])
        for noted in listed:
            key = noted.difference.key
            values = present.get(key)
            if values is None or noted.difference.kind == "extra":
                named = dict(key)
                yield RepairedRow("D", tuple(named.get(name) for name in self._names))
            if values is not None:
                yield RepairedRow(
                    "U" if noted.difference.kind == "changed" else "I", values
                )

    def _present(self, keys: Sequence[Key]) -> Mapping[Key, tuple[str | None, ...]]:
        """Return the values of the rows that have exactly these keys, by key."""
        key = [quote_ident(name) for name in self._key]
        literals = ", ".join(
            "(" + ", ".join(quote_literal(str(value)) for _, value in pairs) + ")"
            for pairs in keys
        )
        shown = [
            text_of(form.expression(name))
            for form, name in zip(self._key_forms, key, strict=True)
        ]
        values = [text_of(quote_ident(name)) for name in self._names]
        word = "AND" if self._filtered else "WHERE"
        statement = (
            f"SELECT {', '.join((*shown, *values))} FROM {self._rows} {word}"
            f" ({', '.join(key)}) IN ({literals})"
        )
        rows = self._session.query(statement, patient=True)
        count = len(self._key)
        return {
            tuple(zip(self._key, row[:count], strict=True)): tuple(row[count:])
            for row in rows
        }
