"""CREATE SUBSCRIPTION, in the order of its durable steps. Each is undone if a later one fails:

    ask the publisher (publications, tables, definitions),
      warn of problems, refuse what is impossible           nothing durable
    record the plan to create the slot                       catalog
    create the slot                                          publisher
    under the DDL lock:
      create missing schemas and tables                      storage, catalog
      record the subscription and its relation states,
        remove the plan                                      ONE catalog transaction

The DDL lock is not held during the conversation with the publisher. Existing objects and the
caller's permissions are therefore checked again under the lock. Two commands that create the same
name run one after the other, and so do two that create or take a slot of the same name.

After a crash only the plan refers to the slot, which would retain the publisher's WAL without a
reader: ``unfinished`` drops it. It also drops the slot if the command was cancelled or lost its
connection, so that its creation is uncertain. (PostgreSQL leaves such a slot to the user.) Tables
that an interrupted command created remain, empty, and the repeated command takes them over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from wal2lake.catalog import (
    MADE_SLOT,
    REMOTE_TYPES,
    PlannedSlot,
    Subscription,
)
from wal2lake.commands.preflight.server import Needs
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.expressions import check_expressions
from wal2lake.commands.subscription.owner import (
    check_conninfo,
    check_may_create,
)
from wal2lake.commands.subscription.publisher import (
    check_origin_none,
    connect_ordinary,
    connect_publisher,
    create_slot,
    notify_format,
    run_preflight,
    slot_refused,
    warn_of_missing,
)
from wal2lake.commands.subscription.steps.unfinished import drop_planned
from wal2lake.commands.subscription.targets import (
    Choices,
    TargetTable,
    WantedTables,
    ask_wanted,
    check_targets,
    follow_from,
    made_targets,
    new_rels,
    present_versions,
    tables_unchanged,
    writes_blocked,
)
from wal2lake.errors import (
    DuplicateObjectError,
    PublisherError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.local.node import Caller
from wal2lake.local.ports import (
    Definitions,
    HasCatalog,
    HasSettings,
    SubscriptionCommands,
    TableDefinitions,
    TableLocks,
)
from wal2lake.model import INVALID_LSN, DeleteMode, Lsn
from wal2lake.observe import failpoint
from wal2lake.pg import Publisher, nudged, parse_conninfo
from wal2lake.pgtypes import RemoteType, check_tracked, remote_types_to_json
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar import (
    OptionSet,
    SubscriptionOptions,
    check_publications,
    subscription_options,
)
from wal2lake.sql.grammar.statements import CreateSubscription


def create_subscription(
    node: SubscriptionCommands, caller: Caller, statement: CreateSubscription
) -> str:
    """CREATE SUBSCRIPTION."""
    options = subscription_options(statement.options, OptionSet.CREATE)
    check_tracked(
        options.conflict_resolution,
        tracked=node.settings.apply.track_commit_timestamp,
    )
    check_expressions(node, options.conflict_resolution)
    if options.create_slot:
        outside_block(caller, "CREATE SUBSCRIPTION ... WITH (create_slot = true)")
    check_may_create(node, caller, options)
    with caller.turn(node.turns.creating, statement.name):
        _check_name(node, statement.name)
        parse_conninfo(statement.conninfo)
        must_use_password = check_conninfo(
            caller,
            statement.conninfo,
            owner_is_superuser=caller.role.superuser,
            password_required=options.password_required,
        )
        check_publications(statement.publications)
        if not options.connect:
            _create_unconnected(node, caller, statement, options)
            return "CREATE SUBSCRIPTION"
        _create_connected(
            node, caller, statement, options, must_use_password=must_use_password
        )
        failpoint("subscription.recorded")
    node.changed()
    return "CREATE SUBSCRIPTION"


def _create_unconnected(
    node: TableDefinitions,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
) -> None:
    slot = _slot_name(statement, options)
    state = _two_phase(options, tables=False)
    with _slot_turn(node, caller, slot), node.ddl_lock:
        now = _check_again(node, caller, statement, options)
        _record(node, now, statement, options, [], INVALID_LSN, (), state)
    caller.notice(
        Notice(
            "subscription was created, but is not connected",
            severity="WARNING",
            sqlstate="01000",
            hint="To initiate replication, you must manually create the"
            " replication slot, enable the subscription, and refresh the"
            " subscription.",
        )
    )


def _create_connected(
    node: SubscriptionCommands,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
    *,
    must_use_password: bool,
) -> None:
    slot = _slot_name(statement, options)
    with connect_publisher(
        node,
        statement.name,
        statement.conninfo,
        check=caller.check,
        must_use_password=must_use_password,
    ) as session:
        publisher = Publisher(session)
        facts = _ask(caller, statement, options, publisher)
        _check_publisher(
            node,
            caller,
            statement,
            options,
            publisher,
            facts.wanted,
            must_use_password=must_use_password,
        )
        check_targets(node, caller, facts.wanted)
        with _slot_turn(node, caller, slot):
            if options.create_slot and slot is not None:
                _create_with_slot(
                    node,
                    caller,
                    statement,
                    options,
                    publisher,
                    facts,
                    slot,
                    must_use_password=must_use_password,
                )
            else:
                _take_effect(node, caller, statement, options, facts, INVALID_LSN)


@dataclass(frozen=True, slots=True)
class _PublisherFacts:
    """The publisher's answers."""

    wanted: WantedTables
    types: tuple[RemoteType, ...]
    two_phase: str
    """Value of subtwophasestate."""


def _ask(
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
    publisher: Publisher,
) -> _PublisherFacts:
    names = statement.publications
    warn_of_missing(caller, publisher, names)
    if options.origin == "none":
        check_origin_none(
            caller, publisher, statement.name, names, copy_data=options.copy_data
        )
    types: tuple[RemoteType, ...] = ()
    if options.binary:
        types = notify_format(caller, publisher, statement.name, names)
    wanted = ask_wanted(
        publisher,
        names,
        create_tables=options.create_tables,
        choices=Choices.of(options.type_mappings, options.value_policies),
        origin=options.origin,
        history=options.history,
        keeps_deleted=options.delete_mode is DeleteMode.SOFT,
    )
    two_phase_state = _two_phase(options, tables=bool(wanted.tables))
    if publisher.session.server_version < 150000 and two_phase_state == "e":
        # Its pgoutput does not support two_phase, so the state is pending.
        two_phase_state = "p"
    return _PublisherFacts(wanted, types, two_phase_state)


def _check_publisher(
    node: HasSettings,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
    publisher: Publisher,
    wanted: WantedTables,
    *,
    must_use_password: bool,
) -> None:
    """Warn of problems; raise the publisher's refusal of the slot before it is requested."""
    slot = _slot_name(statement, options) if options.create_slot else None
    refusal = run_preflight(
        node,
        caller,
        publisher,
        statement.publications,
        wanted.tables,
        Needs(slot=slot is not None, copy=options.copy_data),
        ordinary=lambda seconds: connect_ordinary(
            node,
            statement.name,
            statement.conninfo,
            seconds,
            check=caller.check,
            must_use_password=must_use_password,
        ),
    )
    if refusal is None or slot is None:
        return
    # A slot that this command left before a crash is dropped and so makes room. If the slot
    # exists, the publisher reports that before it reports a lack of room.
    left = {
        (planned.slot_name, planned.conninfo)
        for planned in node.catalog.planned_slots()
    }
    if (slot, statement.conninfo) not in left and publisher.slot(slot) is None:
        raise slot_refused(slot, refusal)


def _create_with_slot(
    node: SubscriptionCommands,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
    publisher: Publisher,
    facts: _PublisherFacts,
    slot: str,
    *,
    must_use_password: bool,
) -> None:
    planned = _plan_slot(
        node, publisher, statement, slot, must_use_password=must_use_password
    )
    start = _make_slot(
        node,
        caller,
        publisher,
        statement,
        planned,
        two_phase=facts.two_phase == "e",
        failover=options.failover,
        must_use_password=must_use_password,
    )
    try:
        _take_effect(node, caller, statement, options, facts, start)
    except BaseException:
        _undo_slot(node, publisher, planned)
        raise


def _slot_turn(
    node: Definitions, caller: Caller, slot: str | None
) -> AbstractContextManager[None]:
    """Keep others from dropping, as a left-over, the slot that this command creates or takes."""
    return nullcontext() if slot is None else caller.turn(node.turns.making, slot)


def _take_effect(
    node: SubscriptionCommands,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
    facts: _PublisherFacts,
    start: Lsn,
) -> None:
    """Create tables and subscription, after checking again what may have changed meanwhile."""
    with node.ddl_lock:
        now = _check_again(node, caller, statement, options)
        with made_targets(node, now, facts.wanted) as targets:
            check_expressions(
                node, options.conflict_resolution, [target.table for target in targets]
            )
            _record(
                node,
                now,
                statement,
                options,
                targets,
                start,
                facts.types,
                facts.two_phase,
            )


def _check_again(
    node: HasCatalog,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
) -> Caller:
    """Check again, under the DDL lock, what may have changed; return the caller's present role."""
    # An ALTER ... RENAME may have taken the name.
    _check_name(node, statement.name)
    role = node.catalog.role_by_oid(caller.role.oid)
    if role is None:
        # Source: shdepLockAndCheckObject().
        raise UndefinedObjectError(f"role {caller.role.oid} was concurrently dropped")
    now = replace(caller, role=role)
    check_may_create(node, now, options)
    check_conninfo(
        now,
        statement.conninfo,
        owner_is_superuser=role.superuser,
        password_required=options.password_required,
    )
    return now


def _check_name(node: HasCatalog, name: str) -> None:
    if node.catalog.subscription_named(name) is not None:
        raise DuplicateObjectError(f'subscription "{name}" already exists')


def _plan_slot(
    node: HasCatalog,
    publisher: Publisher,
    statement: CreateSubscription,
    slot: str,
    *,
    must_use_password: bool,
) -> PlannedSlot:
    """Record the plan to create a slot.

    Raises the publisher's error if a slot of that name exists: this command must not drop it, so
    it must not be planned."""
    for left in node.catalog.planned_slots():
        # A slot of this command, which a crash interrupted.
        if (left.slot_name, left.conninfo) == (slot, statement.conninfo):
            drop_planned(node, publisher, left)
    if publisher.slot(slot) is not None:
        raise slot_refused(
            slot,
            PublisherError(
                f'replication slot "{slot}" already exists', sqlstate="42710"
            ),
        )
    planned = PlannedSlot(
        slot,
        statement.conninfo,
        statement.name,
        publisher.identify().position,
        must_use_password,
    )
    node.catalog.plan_slot(planned)
    failpoint("subscription.slot_planned")
    return planned


def _make_slot(
    node: HasCatalog,
    caller: Caller,
    publisher: Publisher,
    statement: CreateSubscription,
    planned: PlannedSlot,
    *,
    two_phase: bool,
    failover: bool,
    must_use_password: bool,
) -> Lsn:
    """Create the slot and return its consistent point."""
    try:
        with nudged(
            statement.conninfo,
            statement.name,
            must_use_password=must_use_password,
        ):
            return create_slot(
                caller.notice,
                publisher,
                planned.slot_name,
                two_phase=two_phase,
                failover=failover,
            )
    except PublisherError:
        # The publisher refused, so there is no slot of ours. If the connection broke or the
        # command was cancelled, that is uncertain, and the slot stays planned.
        if publisher.session.is_alive():
            node.catalog.forget_planned(planned)
        raise


def _undo_slot(node: HasCatalog, publisher: Publisher, planned: PlannedSlot) -> None:
    """Drop the slot of a failed command.

    If that fails, or the command was cancelled, the slot stays planned."""
    try:
        publisher.drop_slot(planned.slot_name, missing_ok=True)
    except (PublisherError, UsageError):
        return
    node.catalog.forget_planned(planned)


def _two_phase(options: SubscriptionOptions, *, tables: bool) -> str:
    """Return subtwophasestate.

    With a copy, two_phase is enabled once all tables are ready. Without tables it is enabled later,
    since a table that joins then must be copied first."""
    if not options.two_phase:
        return "d"
    made_here = options.connect and options.create_slot
    return "e" if made_here and tables and not options.copy_data else "p"


def _slot_name(
    statement: CreateSubscription, options: SubscriptionOptions
) -> str | None:
    if "slot_name" in options.stated:
        return options.slot_name
    return statement.name


def _record(
    node: TableLocks,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
    targets: Sequence[TargetTable],
    start: Lsn,
    types: Sequence[RemoteType],
    two_phase: str,
) -> None:
    oid = node.catalog.new_oid()
    enabled = options.enabled and options.connect
    slot = _slot_name(statement, options)
    subscription = Subscription(
        oid=oid,
        name=statement.name,
        owner=caller.role.oid,
        enabled=enabled,
        conninfo=statement.conninfo,
        slot_name=slot,
        publications=tuple(statement.publications),
        synchronous_commit=options.synchronous_commit,
        create_tables=options.create_tables,
        floor=start,
        options={
            **options.stored(),
            "two_phase": two_phase,
            REMOTE_TYPES: remote_types_to_json(types),
            **({MADE_SLOT: slot} if start and slot is not None else {}),
        },
    )
    with writes_blocked(node, targets):
        present = present_versions(node, targets)
        rels = new_rels(node, oid, targets, copy_data=options.copy_data)
        node.catalog.create_subscription(subscription, rels, present)
    if caller.block is not None:
        caller.block.under_lock.append(partial(tables_unchanged, targets, present))
    follow_from(node, oid, targets)
