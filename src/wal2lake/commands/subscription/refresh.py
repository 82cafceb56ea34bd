"""ALTER SUBSCRIPTION ... REFRESH PUBLICATION, and SET | ADD | DROP PUBLICATION.

In: statements. Out: the command tag. What is published is asked of the publisher; then, under the
DDL lock and the subscription's commit lock, publications, tables and the generation change in one
transaction of the catalog. A receiver with another list of publications than the catalog's is of
an older generation: it is replaced, and takes no snapshot for the tables that have come.

Tables that are no longer published leave the subscription with their rows. Removing and adding a
table again copies it again.

PostgreSQL refuses a copy while two_phase is enabled, for its tables catch up with slots of their
own, which know nothing of what is prepared. Here they catch up from the log, where a prepared
transaction stands at its COMMIT PREPARED. If that is below the copy's snapshot, its rows are in the
copy: a slot is not consistent, and exports nothing, before every transaction that ran or was
prepared when it was being made has ended. If it is above, it is applied from the log, and was
prepared after the slot was being made, by which time its publication had the table and the receiver
the publication.

Source: AlterSubscription(), AlterSubscription_refresh() and merge_publications() in
subscriptioncmds.c, PostgreSQL 18.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from wal2lake.catalog import Subscription, SubscriptionRel, WorkerKind
from wal2lake.commands.preflight.server import Needs
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.owner import altering
from wal2lake.commands.subscription.publisher import (
    check_origin_none,
    connect_publisher,
    look_before,
    tell_format,
    warn_of_missing,
)
from wal2lake.commands.subscription.steps.drop import (
    end_copies,
    refuse_dropping,
)
from wal2lake.commands.subscription.steps.recopy import (
    Asker,
    RecopiedTables,
    check_recopy,
    copy_anew,
)
from wal2lake.commands.subscription.targets import (
    Choices,
    TargetTable,
    WantedTables,
    ask_wanted,
    check_targets,
    follow_from,
    held_still,
    made_targets,
    new_rels,
    present_versions,
)
from wal2lake.errors import DuplicateObjectError, UsageError
from wal2lake.local.node import Caller, EngineParts
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.pg import Publisher
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


def alter_refresh(
    node: EngineParts, caller: Caller, statement: AlterSubscriptionRefresh
) -> str:
    """ALTER SUBSCRIPTION ... REFRESH PUBLICATION."""
    with altering(node, caller, statement.name) as subscription:
        named = {option.name for option in statement.options}
        if "recopy" not in named:
            _check_enabled(subscription)
        options = subscription_options(statement.options, OptionSet.REFRESH)
        if options.recopy:
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
            recopy=options.recopy,
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
    node: EngineParts, caller: Caller, statement: AlterSubscriptionPublication
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
    """The list after the command; PostgreSQL's errors if it cannot be."""
    check_publications(statement.publications)
    if statement.change is PublicationChange.SET:
        return statement.publications
    known = subscription.publications
    for name in statement.publications:
        if statement.change is PublicationChange.ADD and name in known:
            raise DuplicateObjectError(
                f'publication "{name}" is already in subscription "{subscription.name}"'
            )
        if statement.change is PublicationChange.DROP and name not in known:
            raise UsageError(
                f'publication "{name}" is not in subscription "{subscription.name}"',
                sqlstate=_INVALID_DEFINITION,
            )
    if statement.change is PublicationChange.ADD:
        return (*known, *statement.publications)
    left = tuple(name for name in known if name not in statement.publications)
    if not left:
        raise UsageError(
            "cannot drop all the publications from a subscription",
            sqlstate=_INVALID_DEFINITION,
        )
    return left


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
    node: EngineParts,
    caller: Caller,
    subscription: Subscription,
    publications: Sequence[str],
    *,
    copy_data: bool,
    recopy: bool = False,
    validate: Sequence[str],
) -> None:
    """Take what ``publications`` publish now; ``validate`` are named in a WARNING if they do
    not exist. The caller holds the subscription's turn.

    ``recopy``: also tables that are in the subscription are copied."""
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
        if subscription.origin == "none":
            check_origin_none(
                caller,
                publisher,
                subscription.name,
                publications,
                copy_data=copy_data,
                known=[]
                if recopy
                else [(rel.remote_namespace, rel.remote_name) for rel in before],
            )
        if subscription.binary:
            tell_format(caller, publisher, subscription.name, publications)
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
        )
        # Of the others it was told when they came.
        there = {(rel.remote_namespace, rel.remote_name) for rel in before}
        new = {key: one for key, one in wanted.tables.items() if key not in there}
        if new:
            needs = Needs(stream=False, slot=False, copy=copy_data)
            look_before(node, caller, publisher, publications, new, needs)
        maker = _as_owner(node, caller, subscription)
        check_targets(node, caller, wanted, maker=maker)
        if recopy:
            names = wanted.tables.keys()
            kept = [r.relid for r in before if _local(node, r.relid) in names]
            check_recopy(node, subscription, kept)
            copy_anew(
                node,
                Asker(caller.notice, caller.check),
                subscription,
                session,
                lambda: _tables(node, caller, subscription, publications, wanted),
            )
            _tell_tables(node, caller, subscription, before, copied=True, anew=True)
            _tell_paused(node, caller, subscription)
            return
        begins = None if copy_data else _beginning(node, subscription.oid, publisher)
    with (
        node.ddl_lock,
        _made(node, caller, subscription, wanted) as targets,
    ):
        gone = _take(
            node,
            subscription,
            publications,
            targets,
            copy_data=copy_data,
            begins=begins,
        )
    node.changed()
    _tell_tables(node, caller, subscription, before, copied=copy_data)
    if gone:
        end_copies(node, caller, subscription, gone)


def _beginning(node: EngineParts, subid: Oid, publisher: Publisher) -> Lsn | None:
    """Below which position changes of tables that come without a copy are not wanted.

    The rows of before are neither copied nor applied: the receiver may have them already, or may
    still get them. None, where the apply worker stands at an error: the tables take part from
    there on, as at a PostgreSQL subscriber, whose worker has passed nothing by."""
    stands = any(
        one.subid == subid and one.worker is WorkerKind.APPLY
        for one in node.catalog.errors()
    )
    return None if stands else publisher.position()


def _tell_tables(
    node: EngineParts,
    caller: Caller,
    subscription: Subscription,
    before: Sequence[SubscriptionRel],
    *,
    copied: bool,
    anew: bool = False,
) -> None:
    """Which tables have come, gone and are copied. PostgreSQL says the first two at DEBUG1.
    ``anew``: those that were there before are copied, too."""
    known = {rel.relid: rel for rel in before}
    now = {rel.relid: rel for rel in node.catalog.rels(subscription.oid)}
    name = subscription.name
    for relid in sorted(now.keys() | known.keys()):
        table = node.catalog.table_by_oid(relid)
        rel = now.get(relid) or known[relid]
        # One that has been dropped here has only its publisher's name.
        shown = (
            f"{rel.remote_namespace}.{rel.remote_name}"
            if table is None
            else table.qualified
        )
        if relid not in known:
            text = f'table "{shown}" added to subscription "{name}"'
            text += ", and will be copied" if copied else ""
        elif relid not in now:
            text = f'table "{shown}" removed from subscription "{name}"'
        elif anew and not rel.paused:
            text = f'table "{shown}" will be copied again'
        else:
            continue
        caller.notice(Notice(text))


def _tell_paused(node: EngineParts, caller: Caller, subscription: Subscription) -> None:
    """Which tables have not been copied anew with the others."""
    for rel in node.catalog.rels(subscription.oid):
        table = node.catalog.table_by_oid(rel.relid)
        if not rel.paused or table is None:
            continue
        gone = rel.state is SyncState.INIT
        caller.notice(
            Notice(
                f'table "{table.qualified}" stays paused and is not copied now',
                detail="What it has missed is gone: it will be copied when it is resumed."
                if gone
                else None,
                hint=f"SELECT wal2lake.recopy_table({int(table.oid)}) copies it.",
            )
        )


def _local(node: EngineParts, relid: Oid) -> tuple[str, str] | None:
    table = node.catalog.table_by_oid(relid)
    return None if table is None else (table.namespace, table.name)


@contextmanager
def _made(
    node: EngineParts, caller: Caller, subscription: Subscription, wanted: WantedTables
) -> Iterator[list[TargetTable]]:
    """The tables, under the DDL lock: whose they are may have changed."""
    now = node.catalog.subscription(subscription.oid) or subscription
    maker = _as_owner(node, caller, now)
    with made_targets(node, caller, wanted, maker=maker) as targets:
        yield targets


def _as_owner(node: EngineParts, caller: Caller, subscription: Subscription) -> Caller:
    """Return a caller with the owner's role: objects made for a subscription belong to its owner,
    whoever refreshes it."""
    owner = node.catalog.role_by_oid(subscription.owner)
    return caller if owner is None else replace(caller, role=owner)


def _take(
    node: EngineParts,
    subscription: Subscription,
    publications: Sequence[str],
    targets: Sequence[TargetTable],
    *,
    copy_data: bool,
    begins: Lsn | None,
) -> Collection[Oid]:
    """From now on these are the subscription's tables; returns those that were and are not
    any more."""
    with node.locks.of(subscription.oid):
        known = {rel.relid for rel in node.catalog.rels(subscription.oid)}
        new = [t for t in targets if t.table.oid not in known]
        gone = known - {t.table.oid for t in targets}
        with held_still(node, new):
            node.catalog.set_publications(
                subscription.oid,
                publications,
                added=new_rels(
                    node, subscription.oid, new, copy_data=copy_data, begins=begins
                ),
                versions=present_versions(node, new),
                removed=gone,
                distrusted={t.table.oid for t in targets if not t.whole},
            )
        follow_from(node, subscription.oid, new)
    return gone


@contextmanager
def _tables(
    node: EngineParts,
    caller: Caller,
    subscription: Subscription,
    publications: Sequence[str],
    wanted: WantedTables,
) -> Iterator[RecopiedTables]:
    """The same, to be copied anew; made only when that is recorded, which its publisher may
    let wait for long."""
    with (
        _made(node, caller, subscription, wanted) as targets,
        node.locks.of(subscription.oid),
    ):
        known = {rel.relid for rel in node.catalog.rels(subscription.oid)}
        new = [t for t in targets if t.table.oid not in known]
        with held_still(node, new):
            yield RecopiedTables(
                publications,
                added=new_rels(node, subscription.oid, new, copy_data=True),
                versions=present_versions(node, new),
                removed=known - {t.table.oid for t in targets},
                whole={t.table.oid: t.whole for t in targets if t.table.oid in known},
            )
