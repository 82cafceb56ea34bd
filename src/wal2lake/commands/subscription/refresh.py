"""ALTER SUBSCRIPTION ... REFRESH PUBLICATION, and SET | ADD | DROP PUBLICATION.

Takes statements; returns the command tag. The publisher is asked what is published. Then, under the
DDL lock and the subscription's commit lock, publications, tables and the generation change in one
catalog transaction. A receiver whose list of publications differs from the catalog's belongs to an
older generation. It is replaced, and takes no snapshot for the new tables.

Tables that are no longer published leave the subscription and keep their rows. A table that is
removed and added again is copied again.

PostgreSQL refuses a copy while two_phase is enabled, because its tables catch up through slots of
their own, which don't know the prepared transactions. Here tables catch up from the log, which has
a prepared transaction at its COMMIT PREPARED. If that position is below the copy's snapshot, the
copy has the rows: a slot becomes consistent, and exports a snapshot, only after the end of every
transaction that was running or prepared at its creation. If the position is above, the log has the
rows: the transaction was prepared after the slot's creation began, and by then the publication had
the table and the receiver had the publication.

Source: AlterSubscription(), AlterSubscription_refresh() and merge_publications() in
subscriptioncmds.c, PostgreSQL 18.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from wal2lake.apply.local.histories import finish_all
from wal2lake.catalog import (
    LookedAt,
    SchemaChange,
    Subscription,
    SubscriptionRel,
    WorkerKind,
)
from wal2lake.commands.preflight.server import Needs
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.owner import altering
from wal2lake.commands.subscription.publisher import (
    check_origin_none,
    connect_publisher,
    notify_format,
    run_preflight,
    warn_of_missing,
)
from wal2lake.commands.subscription.steps.drop import (
    end_copies,
    refuse_dropping,
)
from wal2lake.commands.subscription.steps.recopy import (
    RecopiedTables,
    Requester,
    check_recopy,
    copy_anew,
)
from wal2lake.commands.subscription.targets import (
    NOT_SEEN,
    Choices,
    TargetTable,
    WantedTables,
    ask_wanted,
    check_targets,
    follow_from,
    is_unwritten,
    made_targets,
    new_rels,
    present_versions,
    writes_blocked,
)
from wal2lake.errors import DuplicateObjectError, UsageError
from wal2lake.local.node import Caller
from wal2lake.local.ports import (
    HasCatalog,
    SubscriptionCommands,
    TableDefinitions,
    TableLocks,
)
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe import failpoint
from wal2lake.pg import Publisher, Session
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar import (
    OptionSet,
    check_publications,
    subscription_options,
)
from wal2lake.sql.grammar.statements import (
    AlterSubscriptionPublication,
    AlterSubscriptionRefresh,
    PublicationChange,
)

_PREREQUISITE: Final = "55000"
_INVALID_DEFINITION: Final = "42P17"
_COMMAND: Final = "ALTER SUBSCRIPTION"

STAYS: Final = "the table gets no further changes; its rows stay"
"""Outcome in wal2lake.schema_history for a table that left without a command."""


def alter_refresh(
    node: SubscriptionCommands, caller: Caller, statement: AlterSubscriptionRefresh
) -> str:
    """ALTER SUBSCRIPTION ... REFRESH PUBLICATION."""
    with altering(node, caller, statement.name) as subscription:
        named = {option.name for option in statement.options}
        if not named & {"recopy", "heal"}:
            _check_enabled(subscription)
        options = subscription_options(statement.options, OptionSet.REFRESH)
        if options.recopy or options.heal:
            refuse_dropping(subscription)
        else:
            _check_enabled(subscription)
        outside_block(caller, "ALTER SUBSCRIPTION ... REFRESH")
        _refresh(
            node,
            caller,
            subscription,
            subscription.publications,
            copy_data=options.copy_data,
            recopy=options.recopy or options.heal,
            heals=options.heal,
            validate=(),
        )
    return _COMMAND


def _check_enabled(subscription: Subscription) -> None:
    if not subscription.enabled:
        raise UsageError(
            "ALTER SUBSCRIPTION ... REFRESH is not allowed for disabled subscriptions",
            sqlstate=_PREREQUISITE,
        )


def alter_publication(
    node: SubscriptionCommands, caller: Caller, statement: AlterSubscriptionPublication
) -> str:
    """ALTER SUBSCRIPTION ... SET | ADD | DROP PUBLICATION."""
    with altering(node, caller, statement.name) as subscription:
        options = subscription_options(statement.options, OptionSet.PUBLICATION)
        publications = _changed(subscription, statement)
        if not options.refresh:
            node.catalog.set_publications(subscription.oid, publications)
            node.changed()
        else:
            _check_refresh(subscription, statement.change)
            outside_block(caller, "ALTER SUBSCRIPTION with refresh")
            dropping = statement.change is PublicationChange.DROP
            _refresh(
                node,
                caller,
                subscription,
                publications,
                copy_data=options.copy_data,
                validate=() if dropping else statement.publications,
            )
    return _COMMAND


def _changed(
    subscription: Subscription, statement: AlterSubscriptionPublication
) -> tuple[str, ...]:
    """Return the publications after the command, or raise PostgreSQL's error."""
    check_publications(statement.publications)
    if statement.change is PublicationChange.SET:
        return statement.publications
    present = subscription.publications
    for name in statement.publications:
        if statement.change is PublicationChange.ADD and name in present:
            raise DuplicateObjectError(
                f'publication "{name}" is already in subscription "{subscription.name}"'
            )
        if statement.change is PublicationChange.DROP and name not in present:
            raise UsageError(
                f'publication "{name}" is not in subscription "{subscription.name}"',
                sqlstate=_INVALID_DEFINITION,
            )
    if statement.change is PublicationChange.ADD:
        return (*present, *statement.publications)
    remaining = tuple(name for name in present if name not in statement.publications)
    if not remaining:
        raise UsageError(
            "cannot drop all the publications from a subscription",
            sqlstate=_INVALID_DEFINITION,
        )
    return remaining


def _check_refresh(subscription: Subscription, change: PublicationChange) -> None:
    if not subscription.enabled:
        command = f"ALTER SUBSCRIPTION ... {change.value} PUBLICATION"
        hint = f"Use {command} ... WITH (refresh = false)"
        raise UsageError(
            "ALTER SUBSCRIPTION with refresh is not allowed for disabled subscriptions",
            sqlstate=_PREREQUISITE,
            hint=f"{hint}." if change is PublicationChange.SET else f"{hint} instead.",
        )


def _refresh(
    node: SubscriptionCommands,
    caller: Caller,
    subscription: Subscription,
    publications: Sequence[str],
    *,
    copy_data: bool,
    recopy: bool = False,
    heals: bool = False,
    validate: Sequence[str],
) -> None:
    """Change the subscription to what ``publications`` publish now.

    Names in ``validate`` get a WARNING if they don't exist. ``recopy``: existing tables are copied
    again, too. The caller holds the subscription's turn."""
    before = node.catalog.rels(subscription.oid)
    with connect_publisher(
        node,
        subscription.name,
        subscription.conninfo,
        check=caller.check,
        must_use_password=node.catalog.must_use_password(subscription),
    ) as session:
        publisher = Publisher(session)
        if validate:
            warn_of_missing(caller, publisher, validate)
        wanted = _ask_published(
            node,
            caller,
            subscription,
            publisher,
            publications,
            before,
            copy_data=copy_data,
            recopy=recopy,
        )
        if recopy:
            _recopy(
                node,
                caller,
                subscription,
                session,
                publications,
                wanted,
                before,
                heals=heals,
            )
            return
        begins = None if copy_data else _beginning(node, subscription.oid, publisher)
    with (
        node.ddl_lock,
        _created_targets(node, caller, subscription, wanted) as targets,
    ):
        removed = _record_tables(
            node,
            subscription,
            publications,
            targets,
            copy_data=copy_data,
            begins=begins,
        )
    node.changed()
    _notify_tables(node, caller, subscription, before, copied=copy_data)
    if removed:
        end_copies(node, caller, subscription, removed)


@dataclass(frozen=True, slots=True)
class JoiningTables:
    """Tables that join a subscription without a command, because they joined its publications."""

    seen_as: Mapping[tuple[str, str], str]
    """How they are published, by the publisher's name."""
    lsn: Lsn
    """A position of the publisher at which they were published."""
    returning: AbstractSet[Oid] = frozenset()
    """Tables that were in the subscription before; their copy replaces all rows."""


def join_tables(
    node: SubscriptionCommands,
    caller: Caller,
    subscription: Subscription,
    publisher: Publisher,
    joining: JoiningTables,
) -> None:
    """Add published tables to the subscription and have them copied, as REFRESH PUBLICATION does.

    The other tables of the subscription do not change. The caller holds the subscription's turn,
    and has the privileges of its owner."""
    before = node.catalog.rels(subscription.oid)
    wanted = _ask_published(
        node,
        caller,
        subscription,
        publisher,
        subscription.publications,
        before,
        copy_data=True,
        recopy=False,
        only=joining.seen_as.keys(),
    )
    with node.ddl_lock:
        joined = replace(joining, returning=_returning(node, subscription, wanted))
        with _created_targets(node, caller, subscription, wanted) as targets:
            failpoint("refresh.targets_made")
            _record_tables(
                node,
                subscription,
                subscription.publications,
                targets,
                copy_data=True,
                begins=None,
                joined=joined,
            )
    failpoint("refresh.recorded")
    node.changed()
    _notify_tables(node, caller, subscription, before, copied=True)


def _returning(
    node: TableDefinitions, subscription: Subscription, wanted: WantedTables
) -> AbstractSet[Oid]:
    """Return the tables that left the subscription earlier. Needs the DDL lock.

    A command names a subscription, so REFRESH PUBLICATION takes any table that has the name. No
    command says so here: 42P07 for a table with rows that are not the subscription's."""
    left: dict[Oid, bool] = {}
    for noted in node.catalog.schema_history():
        if noted.subid == subscription.oid:
            left[noted.relid] = noted.outcome == STAYS
    filled = {rel.relid: rel.subid for rel in node.catalog.rels()}
    names = {s.oid: s.name for s in node.catalog.subscriptions()}
    returning = set()
    for namespace, name in wanted.tables:
        table = node.catalog.table(namespace, name)
        if table is None or not subscription.create_tables:
            continue
        fillers = [filled[oid] for oid in node.catalog.sharing(table) if oid in filled]
        if fillers:
            raise DuplicateObjectError(
                f'table "{table.qualified}" is filled by subscription'
                f' "{names.get(fillers[0])}"',
                sqlstate="42P07",
                hint="Leave it out of one of the publications, or let both fill it: ALTER"
                " SUBSCRIPTION ... REFRESH PUBLICATION.",
            )
        if left.get(table.oid):
            returning.add(table.oid)
        elif not is_unwritten(node, table):
            raise DuplicateObjectError(
                f'relation "{table.qualified}" already exists',
                sqlstate="42P07",
                detail="A table with this name joined the publication, and rows are here that"
                " did not come from there.",
                hint="Rename or drop the table here, and it is created and copied. To add the"
                " publisher's rows to it: ALTER SUBSCRIPTION ... REFRESH PUBLICATION.",
            )
    return returning


def _noted_joins(new: Sequence[TargetTable], joined: JoiningTables) -> LookedAt:
    return LookedAt(
        joined.lsn,
        noted={
            target.table.oid: [
                SchemaChange(
                    "published",
                    "the table comes back, and its copy replaces its rows"
                    if target.table.oid in joined.returning
                    else "the table joins, and is copied",
                )
            ]
            for target in new
        },
    )


def _ask_published(
    node: HasCatalog,
    caller: Caller,
    subscription: Subscription,
    publisher: Publisher,
    publications: Sequence[str],
    before: Sequence[SubscriptionRel],
    *,
    copy_data: bool,
    recopy: bool,
    only: Collection[tuple[str, str]] | None = None,
) -> WantedTables:
    """Return the published tables, after all checks that need the publisher.

    ``only``: tables that join, if the others are of no concern."""
    present = [(rel.remote_namespace, rel.remote_name) for rel in before]
    if subscription.origin == "none":
        check_origin_none(
            caller,
            publisher,
            subscription.name,
            publications,
            copy_data=copy_data,
            excluded=[] if recopy else present,
        )
    if subscription.binary:
        notify_format(caller, publisher, subscription.name, publications)
    wanted = ask_wanted(
        publisher,
        publications,
        create_tables=subscription.create_tables,
        choices=Choices.of(
            subscription.type_mappings,
            subscription.value_policies,
            {rel.relid for rel in before},
        ),
        origin=subscription.origin,
        subid=subscription.oid,
        follows=subscription.follows_schema,
        only=only,
        history=subscription.history,
        keeps_deleted=subscription.keeps_deleted,
    )
    # The client got the findings about other tables when they were added.
    new = {key: table for key, table in wanted.tables.items() if key not in present}
    if new:
        needs = Needs(stream=False, slot=False, copy=copy_data)
        run_preflight(node, caller, publisher, publications, new, needs)
    maker = _as_owner(node, caller, subscription)
    check_targets(node, caller, wanted, maker=maker)
    return wanted


def _recopy(
    node: SubscriptionCommands,
    caller: Caller,
    subscription: Subscription,
    session: Session,
    publications: Sequence[str],
    wanted: WantedTables,
    before: Sequence[SubscriptionRel],
    *,
    heals: bool,
) -> None:
    names = wanted.tables.keys()
    kept = [r.relid for r in before if _local(node, r.relid) in names]
    check_recopy(node, subscription, kept)
    copy_anew(
        node,
        Requester(caller.notice, caller.check),
        subscription,
        session,
        lambda: _recopied_tables(node, caller, subscription, publications, wanted),
        heals=heals,
    )
    _notify_tables(
        node, caller, subscription, before, copied=True, anew=True, heals=heals
    )
    _notify_paused(node, caller, subscription)


def _beginning(node: HasCatalog, subid: Oid, publisher: Publisher) -> Lsn | None:
    """Return the position below which tables added without a copy take no changes.

    Earlier rows are neither copied nor applied, whether or not the receiver already has them. None
    if the apply worker is stopped at an error: the tables then take part from there on, as at a
    PostgreSQL subscriber, whose worker has not passed anything."""
    has_error = any(
        entry.subid == subid and entry.worker is WorkerKind.APPLY
        for entry in node.catalog.errors()
    )
    return None if has_error else publisher.position()


def _notify_tables(
    node: HasCatalog,
    caller: Caller,
    subscription: Subscription,
    before: Sequence[SubscriptionRel],
    *,
    copied: bool,
    anew: bool = False,
    heals: bool = False,
) -> None:
    """Send notices of tables added, removed and copied. PostgreSQL logs the first two at DEBUG1.

    ``anew``: earlier tables are copied, too. ``heals``: by their differing rows."""
    rels_before = {rel.relid: rel for rel in before}
    rels_after = {rel.relid: rel for rel in node.catalog.rels(subscription.oid)}
    name = subscription.name
    for relid in sorted(rels_after.keys() | rels_before.keys()):
        table = node.catalog.table_by_oid(relid)
        rel = rels_after.get(relid) or rels_before[relid]
        # A table that was dropped here has only its publisher's name.
        shown = (
            f"{rel.remote_namespace}.{rel.remote_name}"
            if table is None
            else table.qualified
        )
        if relid not in rels_before:
            text = f'table "{shown}" added to subscription "{name}"'
            text += ", and will be copied" if copied else ""
        elif relid not in rels_after:
            text = f'table "{shown}" removed from subscription "{name}"'
        elif anew and not rel.paused:
            text = f'table "{shown}" will be ' + (
                "compared with the source, and differing rows copied"
                if heals
                else "copied again"
            )
        else:
            continue
        caller.notice(Notice(text))


def _notify_paused(
    node: HasCatalog, caller: Caller, subscription: Subscription
) -> None:
    """Send notices of paused tables, which are not copied with the others."""
    for rel in node.catalog.rels(subscription.oid):
        table = node.catalog.table_by_oid(rel.relid)
        if not rel.paused or table is None:
            continue
        is_gone = rel.state is SyncState.INIT
        caller.notice(
            Notice(
                f'table "{table.qualified}" stays paused and is not copied now',
                detail="The log lacks changes that it missed: it will be copied when resumed."
                if is_gone
                else None,
                hint=f"SELECT wal2lake.recopy_table({int(table.oid)}) copies it.",
            )
        )


def _local(node: HasCatalog, relid: Oid) -> tuple[str, str] | None:
    table = node.catalog.table_by_oid(relid)
    return None if table is None else (table.namespace, table.name)


@contextmanager
def _created_targets(
    node: TableDefinitions,
    caller: Caller,
    subscription: Subscription,
    wanted: WantedTables,
) -> Iterator[list[TargetTable]]:
    """Yield the tables. Needs the DDL lock; the owner is read again, as it may have changed."""
    now = node.catalog.subscription(subscription.oid) or subscription
    maker = _as_owner(node, caller, now)
    with made_targets(node, caller, wanted, maker=maker) as targets:
        yield targets


def _as_owner(node: HasCatalog, caller: Caller, subscription: Subscription) -> Caller:
    """Return a caller with the owner's role.

    Objects created for a subscription belong to its owner, whichever role refreshes it."""
    owner = node.catalog.role_by_oid(subscription.owner)
    return caller if owner is None else replace(caller, role=owner)


def _record_tables(
    node: TableLocks,
    subscription: Subscription,
    publications: Sequence[str],
    targets: Sequence[TargetTable],
    *,
    copy_data: bool,
    begins: Lsn | None,
    joined: JoiningTables | None = None,
) -> Collection[Oid]:
    """Make these the subscription's tables; returns the tables that left.

    ``joined``: the tables are added to those that are there."""
    with node.locks.of(subscription.oid):
        present = {rel.relid for rel in node.catalog.rels(subscription.oid)}
        new = [t for t in targets if t.table.oid not in present]
        removed: Collection[Oid] = present - {t.table.oid for t in targets}
        looked = None
        if joined is not None:
            removed, looked = (), _noted_joins(new, joined)
        finish_all(node.catalog, node.tables, subscription.oid, removed)
        with writes_blocked(node, new):
            node.catalog.set_publications(
                subscription.oid,
                publications,
                added=new_rels(
                    node,
                    subscription.oid,
                    new,
                    copy_data=copy_data,
                    begins=begins,
                    replaced=joined.returning if joined is not None else (),
                    seen_as=joined.seen_as if joined is not None else NOT_SEEN,
                ),
                looked=looked,
                versions=present_versions(node, new),
                removed=removed,
                distrusted={t.table.oid for t in targets if not t.whole},
            )
        follow_from(node, subscription.oid, new)
    return removed


@contextmanager
def _recopied_tables(
    node: TableDefinitions,
    caller: Caller,
    subscription: Subscription,
    publications: Sequence[str],
    wanted: WantedTables,
) -> Iterator[RecopiedTables]:
    """Yield the tables for a re-copy.

    They are created only when the re-copy is recorded, which may come long after the request."""
    with (
        _created_targets(node, caller, subscription, wanted) as targets,
        node.locks.of(subscription.oid),
    ):
        present = {rel.relid for rel in node.catalog.rels(subscription.oid)}
        new = [t for t in targets if t.table.oid not in present]
        with writes_blocked(node, new):
            yield RecopiedTables(
                publications,
                added=new_rels(node, subscription.oid, new, copy_data=True),
                versions=present_versions(node, new),
                removed=present - {t.table.oid for t in targets},
                whole={t.table.oid: t.whole for t in targets if t.table.oid in present},
            )
