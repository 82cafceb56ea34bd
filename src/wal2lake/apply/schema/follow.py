"""Finds the schema changes that a batch needs, and carries them out.

In: the schemas that the receiver has recorded (``SentSchema``), the schemas that the local tables
agree with (``FollowedSchema``). Out: the position where a batch must end; altered tables, with
their entries in wal2lake.schema_history. A transaction may send rows before it alters their table.
Such rows are translated to the altered table: renamed, without dropped columns, and with the
server's missing value in new columns.

    batch ─▶ agree: schemas that change nothing here
          ─▶ due: a transaction with other columns ─▶ the batch ends below it
                                                       next step: adopt, then the rest

A table is altered when it has everything that commits below the transaction. ALTER TABLE excludes
every other writer until its commit, so no row above has the old columns. The table's commit, the
local definition and the vector change as one (``alter``); the catalog records afterwards that the
table agrees with the new schema. A crash in between is detected by the definition, which is no
longer the one that the steps began with.

A step that is already done (a user has added the column here) changes nothing, and neither does a
step whose column does not exist. If the new values of the local rows are not known
(``SchemaDifference.unknown``), the table is copied anew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from wal2lake.apply.schema.additions import Addition, additions
from wal2lake.apply.schema.diff import (
    SchemaDifference,
    difference,
    names_now,
)
from wal2lake.apply.schema.making import definition_text, is_made, run_begun
from wal2lake.apply.schema.marks import check_sent
from wal2lake.apply.schema.schemasteps import SchemaChanges
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
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg.quoting import quote_literal


class TableAlteration(Protocol):
    """Alters definition, table and vector as one, as ``apply.local.altering`` does."""

    def __call__(
        self, relid: Oid, changes: Sequence[ColumnChange], *, replaced: bool
    ) -> None:
        """Alter a table; takes the locks that it needs. ``replaced``: all rows will be replaced.
        NOT NULL is left out for columns that contain null. Raises Wal2LakeError, and then nothing
        has changed."""
        ...

    def is_free(self, relid: Oid) -> bool:
        """Whether the table can be altered without waiting: no other subscription and no prepared
        transaction of this node has it. Called under the commit lock of the subscription."""
        ...


@dataclass(frozen=True, slots=True)
class DueAlteration:
    """An alteration that a local table needs."""

    rel: SubscriptionRel
    sent: SentSchema | None
    """The schema to adopt. None if columns become NOT NULL, because all earlier rows have been
    applied."""
    lsn: Lsn
    """First transaction that needs the alteration. 0 if it is needed at once."""
    renames: tuple[LabelRename, ...] = ()
    """Renamed labels of enum types that local rows may contain. Then ``sent`` is None."""


class SchemaFollower:
    """Follows the publisher's schema for one subscription. Used by the apply worker's thread."""

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
        """For each table, the LSN up to which renames of labels are not followed."""

    def refresh(self, subscription: Subscription) -> None:
        """Read the schemas that the receiver has recorded. Called after segments are listed: a
        schema is recorded before the segments that need it are written."""
        if subscription.follows_schema:
            self._sent = self._catalog.sent_schemas(self._subid, self._parsed)
            self._followed = self._catalog.followed_schemas(self._subid, self._schemas)
            # Read last: a rename is recorded before any schema that is sent later.
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
            Oid(int(relid)): Lsn(lsn)
            for relid, lsn in json.loads(options.get(LABELS_LEFT, "{}")).items()
        }

    def _renamed(self, relid: Oid, followed: FollowedSchema) -> tuple[LabelRename, ...]:
        """Return the renames of labels that the table's rows may lack."""
        left_below = self._labels_left.get(relid, INVALID_LSN)
        return tuple(
            rename
            for rename in self._renames
            if rename.noticed_lsn >= followed.begins
            and rename.noticed_lsn > left_below
            and rename.concerns(followed.schema)
        )

    def _is_behind(self, floor: Lsn) -> bool:
        """Whether there are recorded schemas that no batch will need again."""
        newest = {sent.relation.relid: sent.commit_lsn for sent in self._sent}
        return any(
            sent.commit_lsn < min(floor, newest[sent.relation.relid])
            for sent in self._sent
        )

    def relabelled(self, rels: Sequence[SubscriptionRel]) -> DueAlteration | None:
        """Return an alteration for a table whose rows may have renamed labels, or None. Called
        between batches: a table that is copied anew takes no part in a batch."""
        if self._renames:
            for rel in rels:
                followed = self._followed.get(rel.relid)
                renames = () if followed is None else self._renamed(rel.relid, followed)
                if renames:
                    return DueAlteration(rel, None, INVALID_LSN, renames)
        return None

    def due(self, rels: Sequence[SubscriptionRel], end: Lsn) -> DueAlteration | None:
        """Return the first alteration that a batch of these tables, up to ``end``, needs."""
        by_name: defaultdict[tuple[str, str], list[SubscriptionRel]] = defaultdict(list)
        for rel in rels:
            by_name[rel.remote_namespace, rel.remote_name].append(rel)
        by_relid = {rel.relid: rel for rel in rels}
        owners = {
            owned.schema.relid: relid_here
            for relid_here, owned in self._followed.items()
        }
        first: DueAlteration | None = None
        for relid, followed in self._followed.items():
            settles = followed.settles
            if not followed.required or relid not in by_relid or settles >= end:
                continue
            if first is None or settles < first.lsn:
                first = DueAlteration(by_relid[relid], None, settles)
        for sent in self._sent:
            if sent.commit_lsn >= end or (
                first is not None and sent.commit_lsn > first.lsn
            ):
                continue
            if (
                first is not None
                and sent.commit_lsn == first.lsn
                and first.sent is not None
            ):
                continue
            owner = owners.get(sent.relation.relid)
            if owner is None:
                # No table follows this relation yet, so tables are found by name.
                candidates = by_name[sent.relation.namespace, sent.relation.name]
            else:
                # The owner may have another name. A local table of this name belongs to another
                # relation.
                candidates = [by_relid[owner]] if owner in by_relid else []
            for rel in candidates:
                followed_schema = self._followed.get(rel.relid)
                if followed_schema is None or sent.commit_lsn >= followed_schema.begins:
                    first = DueAlteration(rel, sent, sent.commit_lsn)
                    break
        return first

    def agree(
        self, subscription: Subscription, rels: Sequence[SubscriptionRel], end: Lsn
    ) -> None:
        """Adopt each table's next schemas below ``end`` that change nothing here: of the first
        Relation message behind a copy, of one behind a TRUNCATE. The catalog records them in one
        transaction. Called under the commit lock, for members of the subscription.

        The table need not have everything below such a schema: rows on both sides of it have the
        same columns. The schema before the last alteration is kept, because rows of the
        transaction that altered the table may not have been applied yet."""
        agreed: dict[Oid, FollowedSchema] = {}
        for rel in rels:
            while (followed := self._unchanged(subscription, rel, end)) is not None:
                agreed[rel.relid] = self._followed[rel.relid] = followed
        if agreed:
            self._catalog.agreed(self._subid, agreed)
            failpoint("schemas.agreed")

    def _unchanged(
        self, subscription: Subscription, rel: SubscriptionRel, end: Lsn
    ) -> FollowedSchema | None:
        """Return what the table agrees with after its next schema below ``end``, if that changes
        nothing here."""
        followed = self._followed.get(rel.relid)
        if followed is None or followed.making is not None or followed.required:
            return None
        due = self.due([rel], end)
        if due is None or due.sent is None or subscription.keeps_deleted:
            return None
        sent = due.sent
        if followed.schema.relid != sent.relation.relid:
            return None
        steps = difference(followed.schema, sent)
        if steps.steps or steps.partitions or steps.unknown is not None:
            return None
        return replace(followed, schema=steps.after, begins=Lsn(sent.commit_lsn + 1))

    def is_free(self, due: DueAlteration) -> bool:
        """Whether the alteration can be carried out within a batch, under the commit lock: it need
        not wait, and the publisher keeps the table's name."""
        rel, sent = due.rel, due.sent
        if sent is not None:
            name = (sent.relation.namespace, sent.relation.name)
            if name != (rel.remote_namespace, rel.remote_name):
                return False
        return self._alter.is_free(rel.relid)

    def additions(
        self, subscription: Subscription, due: DueAlteration, table: TableDef, end: Lsn
    ) -> tuple[Addition, ...]:
        """Return the alterations of a table from ``due`` on and below ``end`` that only add columns
        which take every value."""
        followed = self._followed.get(due.rel.relid)
        if followed is None or due.sent is None or subscription.keeps_deleted:
            return ()
        names = {column.name for column in table.columns}
        return self._additions(subscription, followed, names, end)

    def _additions(
        self,
        subscription: Subscription,
        followed: FollowedSchema,
        columns: Collection[str],
        end: Lsn,
    ) -> tuple[Addition, ...]:
        if followed.required:
            return ()
        schema = followed.schema
        waiting = []
        for sent in self._sent:
            if not followed.begins <= sent.commit_lsn < end:
                continue
            if sent.relation.relid == schema.relid:
                waiting.append(sent)
            elif (sent.relation.namespace, sent.relation.name) == (
                schema.namespace,
                schema.name,
            ):
                # Another table took the name.
                break
        return additions(followed.schema, waiting, subscription, columns)

    # ---- a transaction that altered its table ------------------------------------------

    def translated(self, manifests: Sequence[Manifest]) -> Sequence[Manifest]:
        """Translate rows that a transaction sent before it altered their table to the altered
        table. A dropped column gets an empty name."""
        altered = {
            entry.schema.relid: (entry.previous, entry.schema)
            for entry in self._followed.values()
            if entry.previous is not None
        }
        if not altered:
            return manifests
        return [
            replace(
                entry, files=tuple(_translated(file, altered) for file in entry.files)
            )
            for entry in manifests
        ]

    # ---- making it -----------------------------------------------------------------------

    def adopt_for_copy(
        self,
        subscription: Subscription,
        rel: SubscriptionRel,
        table: TableDef,
        schema: RemoteSchema,
        lsn: Lsn,
    ) -> bool:
        """Adopt the publisher's present columns, as ``adopt`` does, before a table is copied.
        Return False if the local table has them already."""
        self.refresh(subscription)
        followed = self._followed.get(rel.relid)
        if followed is None:
            # The receiver has not begun to follow the table. Local columns are matched by name.
            present = schema.with_columns({c.name for c in table.columns})
            self._catalog.start_following(self._subid, {rel.relid: present}, lsn)
            self.refresh(subscription)
            followed = self._followed[rel.relid]
        if schema.identity is None:
            # Treated like a Relation message without a key: the old identity stays.
            schema = replace(schema, identity=followed.schema.identity)
        if followed.schema == schema:
            return False
        due = DueAlteration(rel, SentSchema(lsn, schema.as_relation(), schema), lsn)
        self.adopt(subscription, due, table, copied=True)
        return True

    def adopt(
        self,
        subscription: Subscription,
        due: DueAlteration,
        table: TableDef,
        *,
        trusted: Callable[[], bool] = lambda: False,
        finishing: AbstractContextManager[object] | None = None,
        copied: bool = False,
        through: Lsn = INVALID_LSN,
    ) -> None:
        """Carry out an alteration, once the table has everything that commits below it.

        ``through``: the last of the ``additions`` that are carried out at once. The caller has
        evaluated the rows below it without the new columns, and none has failed.
        ``trusted`` is called after the alteration and returns whether the table has no rows of
        other writers. ``finishing`` is held from that call until the result is recorded: the commit
        lock, for a table that others may write or that may have to be copied. ``copied``: the
        caller copies the table, so it need not be copied anew. Raises Wal2LakeError if the
        alteration is impossible; then the subscription stops at its position."""
        rel, sent = due.rel, due.sent
        followed = self._followed.get(rel.relid)
        if due.renames:
            self._take_labels(subscription, due, table, finishing)
            return
        if sent is None:
            if followed is not None:
                self._require(subscription, due, table, followed, finishing)
            return
        if followed is None or followed.schema.relid != sent.relation.relid:
            # The previous schema is not known, so the columns are taken as they are, by name.
            self._catalog.steps_made(
                self._subid,
                rel.relid,
                FollowedSchema(sent.schema, Lsn(sent.commit_lsn + 1)),
                (),
                lsn=sent.commit_lsn,
            )
            self.refresh(subscription)
            return
        holding = finishing if finishing is not None else nullcontext()
        begun = None if copied else run_begun(followed, table)
        before = table
        if begun is not None:
            # A crash came between the table's commit and the record.
            through = begun.through
            names = set(begun.columns)
            there = [column for column in table.columns if column.name in names]
            before = replace(table, columns=tuple(there))
        names = {column.name for column in before.columns}
        run = self._additions(subscription, followed, names, Lsn(through + 1))
        if len(run) > 1:
            self._adopt_additions(
                subscription,
                rel,
                before,
                followed,
                trusted,
                holding,
                run,
                made=begun is not None,
            )
            return
        # Other options may have come since the crash. Columns that are there are left alone.
        self._adopt_schema(
            subscription, rel, sent, table, followed, trusted, holding, copied
        )

    def _adopt_schema(
        self,
        subscription: Subscription,
        rel: SubscriptionRel,
        sent: SentSchema,
        table: TableDef,
        followed: FollowedSchema,
        trusted: Callable[[], bool],
        finishing: AbstractContextManager[object],
        copied: bool,
    ) -> None:
        """Alter the table from the followed schema to the sent one, and record that."""
        if subscription.keeps_deleted:
            check_sent(table.qualified, (c.name for c in sent.relation.columns))
        steps = difference(followed.schema, sent)
        if copied:
            # The schema is not from a message: the server read it in the copy's snapshot.
            steps = replace(steps, after=sent.schema)
        if steps.unknown is not None and not copied:
            self._refuse_shared(table, steps.unknown)
        changes = SchemaChanges(
            subscription,
            table,
            steps,
            followed.required,
            sent.settled if sent.settled > sent.commit_lsn else None,
        )
        replaced = rel.replaces if copied else steps.unknown is not None
        self._alter_once(rel, table, followed, changes.wanted, replaced=replaced)
        changes.correct_notes(self._catalog.table_by_oid(table.oid))
        name = (steps.after.namespace, steps.after.name)
        moved = name != (rel.remote_namespace, rel.remote_name)
        with finishing:
            if not copied and not self._is_member(rel):
                # The table was paused meanwhile. When it comes back, its definition shows that
                # the steps were made.
                return
            self._catalog.steps_made(
                self._subid,
                rel.relid,
                FollowedSchema(
                    steps.after,
                    Lsn(sent.commit_lsn + 1),
                    followed.schema,
                    required=changes.required,
                    settles=sent.settled if changes.required else INVALID_LSN,
                ),
                changes.noted,
                lsn=sent.commit_lsn,
                remote=name if moved else None,
                trusted=bool(changes.wanted) and trusted(),
                recopy=steps.unknown is not None and not copied,
            )
        _log_steps(subscription, table, changes.noted, sent.commit_lsn)
        self.refresh(subscription)

    def _adopt_additions(
        self,
        subscription: Subscription,
        rel: SubscriptionRel,
        table: TableDef,
        followed: FollowedSchema,
        trusted: Callable[[], bool],
        finishing: AbstractContextManager[object],
        run: Sequence[Addition],
        *,
        made: bool,
    ) -> None:
        """Add the columns of several alterations at once, and record each of them. ``table``: as it
        was before the first one. ``made``: it has the columns."""
        planned = [
            (entry, SchemaChanges(subscription, table, entry.steps, (), None))
            for entry in run
        ]
        wanted = [change for _, changes in planned for change in changes.wanted]
        if not made:
            self._alter_once(
                rel,
                table,
                followed,
                wanted,
                replaced=False,
                through=run[-1].sent.commit_lsn,
            )
        noted = [(entry.sent.commit_lsn, changes.noted) for entry, changes in planned]
        with finishing:
            if not self._is_member(rel):
                return
            *earlier, (last, changes) = noted
            self._catalog.steps_made(
                self._subid,
                rel.relid,
                FollowedSchema(run[-1].steps.after, Lsn(last + 1), followed.schema),
                changes,
                lsn=last,
                earlier=earlier,
                trusted=trusted(),
            )
        for lsn, changes in noted:
            _log_steps(subscription, table, changes, lsn)
        self.refresh(subscription)

    def _alter_once(
        self,
        rel: SubscriptionRel,
        table: TableDef,
        followed: FollowedSchema,
        wanted: Sequence[ColumnChange],
        *,
        replaced: bool,
        through: Lsn = INVALID_LSN,
    ) -> None:
        """Alter the table, unless it was altered before a crash. ``through``: the last of several
        alterations."""
        if not wanted or is_made(followed, table):
            return
        making = definition_text(table, through)
        self._catalog.begin_steps(self._subid, rel.relid, making)
        try:
            self._alter(table.oid, wanted, replaced=replaced)
        except Wal2LakeError:
            # Nothing has changed. If the definition differs later, a user changed it.
            self._catalog.begin_steps(self._subid, rel.relid, None)
            raise

    def _is_member(self, rel: SubscriptionRel) -> bool:
        return any(
            now.relid == rel.relid and now.epoch == rel.epoch and not now.paused
            for now in self._catalog.rels(self._subid)
        )

    def _is_shared(self, table: TableDef) -> bool:
        """Whether another subscription fills the table, too."""
        names = self._catalog.sharing(table)
        subids = {r.subid for r in self._catalog.rels() if r.relid in names}
        return len(subids) > 1

    def _refuse_shared(self, table: TableDef, reason: str) -> None:
        """Refuse a copy that would replace another subscription's rows."""
        if self._is_shared(table):
            raise UsageError(
                f'cannot follow the publisher\'s ALTER TABLE of "{table.qualified}":'
                " another subscription fills the table, too",
                sqlstate="55000",
                detail=f"{reason[0].upper()}{reason[1:]}, so the table would have to be copied"
                " anew, and the rows of the other subscription would be gone.",
                hint="Let one of the two have the table (ALTER SUBSCRIPTION ... DROP"
                " PUBLICATION), or alter it here by hand, fill its rows, and set"
                " schema_changes = manual for this subscription.",
            )

    def _take_labels(
        self,
        subscription: Subscription,
        due: DueAlteration,
        table: TableDef,
        finishing: AbstractContextManager[object] | None,
    ) -> None:
        """Copy a table anew because its rows have renamed labels. If another subscription fills the
        table, too, its rows would be lost, so the labels stay."""
        rel, followed = due.rel, self._followed[due.rel.relid]
        newest = max(rename.noticed_lsn for rename in due.renames)
        shared = self._is_shared(table)
        outcome = "the table is copied anew"
        if shared:
            outcome = "left out: another subscription fills the table, too"
        noted = [
            SchemaChange(
                f"ALTER TYPE {rename.type_name} RENAME VALUE"
                f" {quote_literal(rename.before)} TO {quote_literal(rename.after)}",
                outcome,
            )
            for rename in due.renames
        ]
        with finishing if finishing is not None else nullcontext():
            if not self._is_member(rel):
                return
            if shared:
                left_below = {
                    int(rename): int(to) for rename, to in self._labels_left.items()
                }
                left_below[int(rel.relid)] = int(newest)
                self._catalog.set_options(
                    self._subid, {LABELS_LEFT: json.dumps(left_below)}
                )
            self._catalog.steps_made(
                self._subid,
                rel.relid,
                followed,
                noted,
                # A copy includes all other changes below ``at``. Without a copy they are still
                # due.
                lsn=Lsn(max(followed.begins - 1, 0)) if shared else newest,
                recopy=not shared,
            )
        _log_steps(subscription, table, noted, newest)
        self.refresh(subscription)

    def _require(
        self,
        subscription: Subscription,
        due: DueAlteration,
        table: TableDef,
        followed: FollowedSchema,
        finishing: AbstractContextManager[object] | None,
    ) -> None:
        """Make columns NOT NULL. A repetition after a crash changes nothing."""
        changes = SchemaChanges(
            subscription, table, SchemaDifference((), followed.schema), (), None
        )
        changes.require(followed.required)
        if changes.wanted:
            self._alter(table.oid, changes.wanted, replaced=False)
            changes.correct_notes(self._catalog.table_by_oid(table.oid))
        with finishing if finishing is not None else nullcontext():
            self._catalog.steps_made(
                self._subid,
                due.rel.relid,
                replace(followed, required=(), settles=INVALID_LSN),
                changes.noted,
                lsn=due.lsn,
            )
        _log_steps(subscription, table, changes.noted, due.lsn)
        self.refresh(subscription)


def _log_steps(
    subscription: Subscription,
    table: TableDef,
    noted: Sequence[SchemaChange],
    lsn: Lsn,
) -> None:
    for entry in noted:
        get_logger().info(
            f'subscription "{subscription.name}" follows its publisher: table'
            f' "{table.qualified}", {entry.change}: {entry.outcome}',
            lsn=lsn,
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
    # These rows get the same value in a new column as the rows that existed before.
    added = [
        attribute
        for attribute in now.attributes
        if attribute.number > before.numbers_taken and attribute.name not in names
    ]
    columns += [
        Column(
            attribute.name,
            attribute.declared_oid,
            attribute.declared_typmod,
            is_key=attribute.number in (now.identity or ()),
        )
        for attribute in added
    ]
    relation = replace(
        file.relation, namespace=now.namespace, name=now.name, columns=tuple(columns)
    )
    constants = tuple(attribute.missing for attribute in added)
    return replace(file, relation=relation, constants=constants)
