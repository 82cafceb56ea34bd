"""Which changes of columns a batch needs before it can be applied, and making them.

In: what the receiver has noted of relations (``SentSchema``), what our tables agree with
(``FollowedSchema``). Out: where a batch must end; altered tables, and what was done in
wal2lake.schema_history; rows of a transaction that were sent before it altered their table, as rows
of the table that it has left: renamed, without the columns that are gone, and with the server's own
value for them in those that are new.

    batch ─▶ due: a transaction with other columns ─▶ the batch ends below it
                                                       next step: adopt, then the rest

A table is altered between two batches, when all tables have what commits below the transaction:
ALTER TABLE has excluded every other writer until its commit, so there is no row of the old columns
above. The table's commit, our definition and the vector are one (``alter``); that it agrees
with the publisher's next description is written after it. A crash in between is seen by the
definition, which is no longer the one that the steps began with.

What a step finds done (somebody has added the column here) is left as it is; what it cannot find
either. Where the rows that are here do not tell what the publisher's have (``Difference.unknown``)
the table is copied anew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from wal2lake.apply.schema.columns import column_like, source_column
from wal2lake.apply.schema.diff import (
    Added,
    Difference,
    Dropped,
    Keyed,
    Moved,
    NullsAllowed,
    Renamed,
    Retyped,
    Step,
    difference,
    names_now,
)
from wal2lake.catalog import (
    AddColumn,
    Catalog,
    ChangeType,
    ColumnChange,
    ColumnDef,
    DropColumn,
    FollowedSchema,
    Parsed,
    RenameColumn,
    SchemaChange,
    SetDefault,
    SetKey,
    SetNotNull,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.changelog import Manifest
from wal2lake.changelog.manifest import RowsFile
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.model import (
    INVALID_LSN,
    Column,
    Lsn,
    Oid,
    Relation,
    RemoteAttribute,
    RemoteSchema,
    ReplicaIdentity,
    SentSchema,
)
from wal2lake.observe import get_logger
from wal2lake.pg.quoting import quote_ident, quote_literal
from wal2lake.pgtypes import TypeMappings, ValuePolicies
from wal2lake.pgtypes.registry.pg_type import format_type


class AlterTable(Protocol):
    """Definition, table and vector as one; see ``apply.local.altering``."""

    def __call__(
        self, relid: Oid, changes: Sequence[ColumnChange], *, replaced: bool
    ) -> None:
        """Takes the locks that it needs. Wal2LakeError: nothing has changed. ``replaced``: all
        rows will be, whatever they are. NOT NULL is left out where rows have null."""
        ...

    def is_free(self, relid: Oid) -> bool:
        """Whether it waits for nobody, called under the commit lock of the subscription that has
        the table: no other subscription has it, nor a prepared transaction of this node."""
        ...


@dataclass(frozen=True, slots=True)
class Due:
    """A description that a table of ours does not agree with yet."""

    rel: SubscriptionRel
    sent: SentSchema | None
    """None: columns become NOT NULL, for what has come before has been applied."""
    at: Lsn
    """The first transaction that needs it."""


class SchemaFollower:
    """Of one subscription. For its worker's thread."""

    def __init__(self, catalog: Catalog, subid: Oid, alter: AlterTable) -> None:
        self._catalog = catalog
        self._subid = subid
        self._alter = alter
        self._sent: list[SentSchema] = []
        self._parsed: Parsed = {}
        self._followed: dict[Oid, FollowedSchema] = {}

    def refresh(self, subscription: Subscription) -> None:
        """Read what the receiver has noted, before segments are chosen: what they need was
        noted before they were written."""
        if subscription.follows_schema:
            self._sent = self._catalog.sent_schemas(self._subid, self._parsed)
            self._followed = self._catalog.followed_schemas(self._subid)
            if self._is_behind(subscription.floor):
                self._catalog.trim_sent(self._subid, subscription.floor)
        elif self._sent or self._followed:
            self._sent, self._followed, self._parsed = [], {}, {}

    def _is_behind(self, floor: Lsn) -> bool:
        """Is there something that nobody will ask for?"""
        newest = {one.relation.relid: one.at for one in self._sent}
        return any(
            one.at < min(floor, newest[one.relation.relid]) for one in self._sent
        )

    def due(self, rels: Sequence[SubscriptionRel], end: Lsn) -> Due | None:
        """The first that a batch of these tables, up to ``end``, cannot do without."""
        by_name: defaultdict[tuple[str, str], list[SubscriptionRel]] = defaultdict(list)
        for rel in rels:
            by_name[rel.remote_namespace, rel.remote_name].append(rel)
        by_relid = {rel.relid: rel for rel in rels}
        owners = {one.schema.relid: ours for ours, one in self._followed.items()}
        first: Due | None = None
        for relid, followed in self._followed.items():
            at = followed.settles
            if not followed.required or relid not in by_relid or at >= end:
                continue
            if first is None or at < first.at:
                first = Due(by_relid[relid], None, at)
        for sent in self._sent:
            if sent.at >= end or (first is not None and sent.at > first.at):
                continue
            if first is not None and sent.at == first.at and first.sent is not None:
                continue
            owner = owners.get(sent.relation.relid)
            if owner is None:
                # Of a table that nobody has followed; its name has to do.
                named = by_name[sent.relation.namespace, sent.relation.name]
            else:
                # Under whatever name; a table of ours that has had this one is another's.
                named = [by_relid[owner]] if owner in by_relid else []
            for rel in named:
                known = self._followed.get(rel.relid)
                if known is None or sent.at >= known.begins:
                    first = Due(rel, sent, sent.at)
                    break
        return first

    def is_free(self, due: Due) -> bool:
        """Whether the alteration can be carried out within a batch, under the commit lock: it waits
        for nobody, and the table's rows go on under the same name."""
        rel, sent = due.rel, due.sent
        if sent is not None:
            name = (sent.relation.namespace, sent.relation.name)
            if name != (rel.remote_namespace, rel.remote_name):
                return False
        return self._alter.is_free(rel.relid)

    # ---- a transaction that altered its table ------------------------------------------

    def translated(self, manifests: Sequence[Manifest]) -> Sequence[Manifest]:
        """Rows that were sent before their transaction altered the table, as rows of the table
        that it has left: a column that is gone has no name."""
        altered = {
            one.schema.relid: (one.previous, one.schema)
            for one in self._followed.values()
            if one.previous is not None
        }
        if not altered:
            return manifests
        return [
            replace(one, files=tuple(_translated(file, altered) for file in one.files))
            for one in manifests
        ]

    # ---- making it -----------------------------------------------------------------------

    def adopt_for_copy(
        self,
        subscription: Subscription,
        rel: SubscriptionRel,
        table: TableDef,
        schema: RemoteSchema,
        at: Lsn,
    ) -> bool:
        """As ``adopt``, before a table is copied that has these columns at the publisher now.
        False: ours has them."""
        self.refresh(subscription)
        followed = self._followed.get(rel.relid)
        if followed is not None and schema.identity is None:
            # As a Relation message without one is taken.
            schema = replace(schema, identity=followed.schema.identity)
        if followed is None or followed.schema == schema:
            return False
        relation = Relation(
            schema.relid,
            schema.namespace,
            schema.name,
            ReplicaIdentity.DEFAULT,
            tuple(
                Column(
                    a.name,
                    a.declared_oid,
                    a.declared_typmod,
                    is_key=a.number in (schema.identity or ()),
                )
                for a in schema.attributes
            ),
        )
        due = Due(rel, SentSchema(at, relation, schema), at)
        self.adopt(subscription, due, table, copied=True)
        return True

    def adopt(
        self,
        subscription: Subscription,
        due: Due,
        table: TableDef,
        *,
        trusted: Callable[[], bool] = lambda: False,
        finishing: AbstractContextManager[object] | None = None,
        copied: bool = False,
    ) -> None:
        """Where every table has what commits below. Wal2LakeError: it cannot be done, and the
        subscription stops there. ``trusted``, asked when it is done: has the table nobody else's
        rows? ``finishing``: held from there on until that is written; the commit lock, for a table
        that others may write or that may have to be copied. ``copied``: whoever calls
        copies it, so nothing has to be copied anew."""
        rel, sent = due.rel, due.sent
        followed = self._followed.get(rel.relid)
        if sent is None:
            if followed is not None:
                self._require(subscription, due, table, followed, finishing)
            return
        known = followed is not None and followed.schema.relid == sent.relation.relid
        if followed is None or not known:
            # Nothing is known of what came before: the names have to do.
            self._catalog.steps_made(
                self._subid,
                rel.relid,
                FollowedSchema(sent.schema, Lsn(sent.at + 1)),
                (),
                at=sent.at,
            )
            self.refresh(subscription)
            return
        found = difference(followed.schema, sent)
        if copied:
            # It is no message of some moment: the server has said it of the copy's snapshot.
            found = replace(found, after=sent.schema)
        if found.unknown is not None and not copied:
            self._refuse_shared(table, found.unknown)
        made = followed.making is not None and followed.making != _definition(table)
        late = sent.settled > sent.at
        changes = _Changes(
            subscription,
            table,
            found,
            followed.required,
            sent.settled if late else None,
        )
        if changes.wanted and not made:
            self._catalog.begin_steps(self._subid, rel.relid, _definition(table))
            try:
                self._alter(
                    table.oid,
                    changes.wanted,
                    replaced=rel.replaces if copied else found.unknown is not None,
                )
            except Wal2LakeError:
                # Nothing was done: a definition that is another one later is its user's work.
                self._catalog.begin_steps(self._subid, rel.relid, None)
                raise
        changes.look(self._catalog.table_by_oid(table.oid))
        name = (found.after.namespace, found.after.name)
        moved = name != (rel.remote_namespace, rel.remote_name)
        with finishing if finishing is not None else nullcontext():
            if not copied and not self._is_member(rel):
                # Paused meanwhile: what was made is known by the definition when it comes back.
                return
            self._catalog.steps_made(
                self._subid,
                rel.relid,
                FollowedSchema(
                    found.after,
                    Lsn(sent.at + 1),
                    followed.schema,
                    required=changes.required,
                    settles=sent.settled if changes.required else INVALID_LSN,
                ),
                changes.noted,
                at=sent.at,
                remote=name if moved else None,
                trusted=bool(changes.wanted) and trusted(),
                recopy=found.unknown is not None and not copied,
            )
        _tell(subscription, table, changes.noted, sent.at)
        self.refresh(subscription)

    def _is_member(self, rel: SubscriptionRel) -> bool:
        return any(
            now.relid == rel.relid and now.epoch == rel.epoch and not now.paused
            for now in self._catalog.rels(self._subid)
        )

    def _refuse_shared(self, table: TableDef, why: str) -> None:
        """A copy would take the place of another subscription's rows."""
        names = self._catalog.sharing(table)
        subids = {r.subid for r in self._catalog.rels() if r.relid in names}
        if len(subids) > 1:
            raise UsageError(
                f'cannot follow the publisher\'s ALTER TABLE of "{table.qualified}":'
                " another subscription fills the table, too",
                sqlstate="55000",
                detail=f"{why[0].upper()}{why[1:]}, so the table would have to be copied"
                " anew, and the rows of the other subscription would be gone.",
                hint="Let one of the two have the table (ALTER SUBSCRIPTION ... DROP"
                " PUBLICATION), or alter it here by hand, fill its rows, and set"
                " schema_changes = manual for this subscription.",
            )

    def _require(
        self,
        subscription: Subscription,
        due: Due,
        table: TableDef,
        followed: FollowedSchema,
        finishing: AbstractContextManager[object] | None,
    ) -> None:
        """Columns become NOT NULL. Made twice, after a crash, it changes nothing."""
        changes = _Changes(
            subscription, table, Difference((), followed.schema), (), None
        )
        changes.require(followed.required)
        if changes.wanted:
            self._alter(table.oid, changes.wanted, replaced=False)
            changes.look(self._catalog.table_by_oid(table.oid))
        with finishing if finishing is not None else nullcontext():
            self._catalog.steps_made(
                self._subid,
                due.rel.relid,
                replace(followed, required=(), settles=INVALID_LSN),
                changes.noted,
                at=due.at,
            )
        _tell(subscription, table, changes.noted, due.at)
        self.refresh(subscription)


def _tell(
    subscription: Subscription,
    table: TableDef,
    noted: Sequence[SchemaChange],
    at: Lsn,
) -> None:
    for one in noted:
        get_logger().info(
            f'subscription "{subscription.name}" follows its publisher: table'
            f' "{table.qualified}", {one.change}: {one.outcome}',
            lsn=at,
        )


def _translated(
    file: RowsFile, altered: Mapping[Oid, tuple[RemoteSchema, RemoteSchema]]
) -> RowsFile:
    before, now = altered.get(file.relation.relid, (None, None))
    if before is None or now is None:
        return file
    names = names_now(before, file.relation, now)
    if names is None:
        return file
    columns = [
        replace(column, name=name)
        for column, name in zip(file.relation.columns, names, strict=True)
    ]
    # What the rows that were there have in a new column, these have, too.
    added = [
        one
        for one in now.attributes
        if one.number > before.numbers_taken and one.name not in names
    ]
    columns += [
        Column(
            one.name,
            one.declared_oid,
            one.declared_typmod,
            is_key=one.number in (now.identity or ()),
        )
        for one in added
    ]
    relation = replace(
        file.relation, namespace=now.namespace, name=now.name, columns=tuple(columns)
    )
    constants = tuple(one.missing for one in added)
    return replace(file, relation=relation, constants=constants)


class _Changes:
    """Steps at the publisher as changes of our table, as far as it needs them."""

    def __init__(
        self,
        subscription: Subscription,
        table: TableDef,
        found: Difference,
        required: tuple[int, ...],
        settled: Lsn | None,
    ) -> None:
        """``required``: see ``FollowedSchema``, of before. ``settled``: rows up to there may have
        what NOT NULL forbids; None: none has."""
        self._mappings = TypeMappings.parse(subscription.type_mappings)
        self._policies = ValuePolicies.parse(subscription.value_policies)
        self._found = found
        self._columns = {column.name: column for column in table.columns}
        self._key = list(table.key)
        self._had_key = bool(table.key)
        self.wanted: list[ColumnChange] = []
        self.noted: list[SchemaChange] = []
        self._settled = settled
        still = {a.number: a for a in found.after.attributes if a.not_null}
        self._waiting = {n for n in required if n in still}
        """Columns, by number, that become NOT NULL later."""
        self._strict: list[tuple[str, int]] = []
        """Columns that are to be NOT NULL, and where that is noted."""
        self._new_key: tuple[tuple[str, ...], int] | None = None
        """Columns that are to be the key, and where that is noted."""
        for step in found.steps:
            outcome = self._step(step)
            if outcome is not None:
                self._note(_words(step), outcome)
        if settled is None:
            self.require(self.required)
            self._waiting.clear()
        for partition in found.partitions:
            self._note(partition, "nothing: rows that come or go with it are not sent")
        if found.unknown is not None:
            self._note(found.unknown, "the table is copied anew")

    @property
    def required(self) -> tuple[int, ...]:
        """See ``FollowedSchema``."""
        return tuple(sorted(self._waiting))

    def require(self, numbers: Sequence[int]) -> None:
        """These columns are NOT NULL from now on."""
        for number in numbers:
            attribute = self._found.after.attribute(number)
            if attribute is not None:
                step = NullsAllowed(attribute.name, False)
                self._note(_words(step), self._nulls(step))

    def look(self, now: TableDef | None) -> None:
        """The table as it is when they were made: what was left out is not noted as done."""
        if self._new_key is not None and now is not None:
            key, index = self._new_key
            if set(now.key) != set(key):
                outcome = "left out: rows that are here have null, or one value twice"
                self.noted[index] = replace(self.noted[index], outcome=outcome)
        for name, index in self._strict:
            column = None if now is None else now.column(name)
            if column is None or column.not_null:
                continue
            one = self.noted[index]
            self.noted[index] = replace(
                one,
                outcome="left out: rows that are here have null"
                if one.outcome == "changed"
                else f"{one.outcome}; NOT NULL is left out: rows that are here have null",
            )

    def _note(self, change: str, outcome: str) -> None:
        self.noted.append(SchemaChange(change, outcome))

    def _step(self, step: Step) -> str | None:
        """What is done about it; None: it does not concern the table."""
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
            case Moved():
                return "rows are taken under the new name"
            case Keyed():
                return self._keyed(step)

    def _like(self, attribute: RemoteAttribute) -> ColumnDef:
        after = self._found.after
        source = source_column(after.namespace, after.name, attribute)
        return column_like(source, attribute, self._mappings, self._policies).column

    def _add(self, attribute: RemoteAttribute) -> str:
        here = self._columns.get(attribute.name)
        if here is not None:
            # By whoever: by us, before a crash, perhaps.
            if attribute.not_null and not here.not_null:
                self._waiting.add(attribute.number)
            return "the column is there already"
        column = self._like(attribute)
        if column.not_null and self._settled is not None:
            self._waiting.add(attribute.number)
            column = replace(column, not_null=False)
        missing = attribute.missing
        there = None if missing is None else quote_literal(missing)
        self.wanted.append(AddColumn(replace(column, default=there)))
        if column.default != there:
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
                a.number for a in self._found.after.attributes if a.name == step.name
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


def _definition(table: TableDef) -> str:
    return json.dumps([table.key, [asdict(column) for column in table.columns]])


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
        case Moved():
            return f"RENAME TO {quote_ident(step.namespace)}.{quote_ident(step.name)}"


def _type(step: Added | Retyped) -> str:
    attribute = step.attribute
    if attribute.domain is not None:
        return attribute.domain
    return format_type(int(attribute.type_oid), attribute.typmod)
