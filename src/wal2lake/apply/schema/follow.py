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
either. Where the rows that are here do not tell what the publisher's have
(``SchemaDifference.unknown``) the table is copied anew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from wal2lake.apply.schema.changes import SchemaChanges
from wal2lake.apply.schema.diff import (
    SchemaDifference,
    difference,
    names_now,
)
from wal2lake.catalog import (
    ENUM_LABELS,
    LABELS_LEFT,
    Catalog,
    ColumnChange,
    FollowedSchema,
    Parsed,
    ParsedSchemas,
    SchemaChange,
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
    KnownLabels,
    LabelRename,
    Lsn,
    Oid,
    RemoteSchema,
    SentSchema,
)
from wal2lake.observe import get_logger
from wal2lake.pg.quoting import quote_literal


class TableAlteration(Protocol):
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
    """The first transaction that needs it; 0: it is needed at once."""
    renames: tuple[LabelRename, ...] = ()
    """Labels of enum types that the publisher has renamed in rows that are here. Then ``sent`` is
    None."""


class SchemaFollower:
    """Follows the publisher's schema for one subscription. For its worker's thread."""

    def __init__(self, catalog: Catalog, subid: Oid, alter: TableAlteration) -> None:
        self._catalog = catalog
        self._subid = subid
        self._alter = alter
        self._sent: list[SentSchema] = []
        self._parsed: Parsed = {}
        self._schemas: ParsedSchemas = {}
        self._followed: dict[Oid, FollowedSchema] = {}
        self._renames: tuple[LabelRename, ...] = ()
        self._labels_left: dict[Oid, Lsn] = {}
        """By table: renames that were noticed up to there are not followed."""

    def refresh(self, subscription: Subscription) -> None:
        """Read what the receiver has noted, before segments are chosen: what they need was
        noted before they were written."""
        if subscription.follows_schema:
            self._sent = self._catalog.sent_schemas(self._subid, self._parsed)
            self._followed = self._catalog.followed_schemas(self._subid, self._schemas)
            # After these: a rename is recorded before what is sent later is noted.
            self._read_renames()
            if self._is_behind(subscription.floor):
                self._catalog.trim_sent(self._subid, subscription.floor)
        elif self._sent or self._followed:
            self._sent, self._followed, self._parsed = [], {}, {}
            self._schemas = {}
            self._renames, self._labels_left = (), {}

    def _read_renames(self) -> None:
        subscription = self._catalog.subscription(self._subid)
        options = {} if subscription is None else subscription.options
        self._renames = KnownLabels.parse(options.get(ENUM_LABELS)).renames
        self._labels_left = {
            Oid(int(relid)): Lsn(at)
            for relid, at in json.loads(options.get(LABELS_LEFT, "{}")).items()
        }

    def _renamed(self, relid: Oid, followed: FollowedSchema) -> tuple[LabelRename, ...]:
        """Renames that rows of the table may not have."""
        left = self._labels_left.get(relid, INVALID_LSN)
        return tuple(
            one
            for one in self._renames
            if one.at >= followed.begins
            and one.at > left
            and one.concerns(followed.schema)
        )

    def _is_behind(self, floor: Lsn) -> bool:
        """Is there something that nobody will ask for?"""
        newest = {one.relation.relid: one.at for one in self._sent}
        return any(
            one.at < min(floor, newest[one.relation.relid]) for one in self._sent
        )

    def relabelled(self, rels: Sequence[SubscriptionRel]) -> Due | None:
        """One of the tables whose rows have labels that the publisher has renamed. Asked between
        batches: a table that is copied anew takes no part in one."""
        if self._renames:
            for rel in rels:
                followed = self._followed.get(rel.relid)
                renames = () if followed is None else self._renamed(rel.relid, followed)
                if renames:
                    return Due(rel, None, INVALID_LSN, renames)
        return None

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
        """Adopt a schema, as ``adopt`` does, before a table is copied that has these columns at the
        publisher now. False: our table has them already."""
        self.refresh(subscription)
        followed = self._followed.get(rel.relid)
        if followed is None:
            # The receiver has not begun to follow yet. Names tell which columns are here.
            known = schema.with_columns({c.name for c in table.columns})
            self._catalog.start_following(self._subid, {rel.relid: known}, at)
            self.refresh(subscription)
            followed = self._followed[rel.relid]
        if schema.identity is None:
            # As a Relation message without one is taken.
            schema = replace(schema, identity=followed.schema.identity)
        if followed.schema == schema:
            return False
        due = Due(rel, SentSchema(at, schema.as_relation(), schema), at)
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
        if due.renames:
            self._take_labels(subscription, due, table, finishing)
            return
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
        changes = SchemaChanges(
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

    def _is_shared(self, table: TableDef) -> bool:
        """Does another subscription fill it, too?"""
        names = self._catalog.sharing(table)
        subids = {r.subid for r in self._catalog.rels() if r.relid in names}
        return len(subids) > 1

    def _refuse_shared(self, table: TableDef, why: str) -> None:
        """A copy would take the place of another subscription's rows."""
        if self._is_shared(table):
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

    def _take_labels(
        self,
        subscription: Subscription,
        due: Due,
        table: TableDef,
        finishing: AbstractContextManager[object] | None,
    ) -> None:
        """The table is copied anew, for its rows have labels that were renamed; if it is also
        another subscription's, whose rows the copy would remove, they stay."""
        rel, followed = due.rel, self._followed[due.rel.relid]
        at = max(one.at for one in due.renames)
        shared = self._is_shared(table)
        outcome = "the table is copied anew"
        if shared:
            outcome = "left out: another subscription fills the table, too"
        noted = [
            SchemaChange(
                f"ALTER TYPE {one.type_name} RENAME VALUE"
                f" {quote_literal(one.before)} TO {quote_literal(one.after)}",
                outcome,
            )
            for one in due.renames
        ]
        with finishing if finishing is not None else nullcontext():
            if not self._is_member(rel):
                return
            if shared:
                left = {int(one): int(to) for one, to in self._labels_left.items()}
                left[int(rel.relid)] = int(at)
                self._catalog.set_options(self._subid, {LABELS_LEFT: json.dumps(left)})
            self._catalog.steps_made(
                self._subid,
                rel.relid,
                followed,
                noted,
                # A copy takes whatever else was sent below it; otherwise that is still due.
                at=Lsn(max(followed.begins - 1, 0)) if shared else at,
                recopy=not shared,
            )
        _tell(subscription, table, noted, at)
        self.refresh(subscription)

    def _require(
        self,
        subscription: Subscription,
        due: Due,
        table: TableDef,
        followed: FollowedSchema,
        finishing: AbstractContextManager[object] | None,
    ) -> None:
        """Columns become NOT NULL. Made twice, after a crash, it changes nothing."""
        changes = SchemaChanges(
            subscription, table, SchemaDifference((), followed.schema), (), None
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


def _definition(table: TableDef) -> str:
    return json.dumps([table.key, [asdict(column) for column in table.columns]])
