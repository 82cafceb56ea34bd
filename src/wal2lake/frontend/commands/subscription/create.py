"""CREATE SUBSCRIPTION, in the order of its durable steps, each undone if a later one fails:

    ask the publisher (publications, tables, definitions)   nothing durable
    create missing schemas and tables                        storage, catalog
    note which slot is going to be made                      catalog
    create the slot                                          publisher
    record the subscription and its relation states,
      forget the note                                        ONE catalog transaction

After a crash the note is all that knows of the slot, which would hold the publisher's WAL for
nobody: ``unfinished`` drops it. (PostgreSQL leaves it to be dropped by hand.) Tables that were
made stay, empty, and the repeated command takes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.catalog import (
    MADE_SLOT,
    REMOTE_TYPES,
    PlannedSlot,
    Subscription,
    TableDef,
)
from wal2lake.errors import DuplicateObjectError, PublisherError
from wal2lake.frontend.backend import Notice
from wal2lake.frontend.commands.node import Caller, Node
from wal2lake.frontend.commands.subscription.blocks import outside_block
from wal2lake.frontend.commands.subscription.owner import (
    check_conninfo,
    check_may_create,
)
from wal2lake.frontend.commands.subscription.publisher import (
    check_origin_none,
    connect_publisher,
    create_slot,
    tell_format,
    warn_of_missing,
)
from wal2lake.frontend.commands.subscription.steps.unfinished import drop_planned
from wal2lake.frontend.commands.subscription.targets import (
    Choices,
    Target,
    drop_made,
    find_targets,
    new_rel,
    present_versions,
)
from wal2lake.frontend.grammar import (
    OptionSet,
    SubscriptionOptions,
    check_publications,
    subscription_options,
)
from wal2lake.frontend.grammar.statements import CreateSubscription
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import failpoint
from wal2lake.pg import Publisher, nudged, parse_conninfo
from wal2lake.pgtypes import RemoteType, remote_types_to_json


def create_subscription(
    node: Node, caller: Caller, statement: CreateSubscription
) -> str:
    """CREATE SUBSCRIPTION."""
    options = subscription_options(statement.options, OptionSet.CREATE)
    outside_block(
        caller,
        "CREATE SUBSCRIPTION",
        refused_as="CREATE SUBSCRIPTION ... WITH (create_slot = true)"
        if options.create_slot
        else None,
    )
    check_may_create(node, caller, options)
    with node.ddl_lock:
        if node.catalog.subscription_named(statement.name) is not None:
            raise DuplicateObjectError(
                f'subscription "{statement.name}" already exists'
            )
        parse_conninfo(statement.conninfo)
        must_use_password = check_conninfo(
            statement.conninfo,
            owner_is_superuser=caller.role.superuser,
            password_required=options.password_required,
        )
        check_publications(statement.publications)
        if not options.connect:
            state = _two_phase(options, tables=False)
            _record(node, caller, statement, options, [], INVALID_LSN, (), state)
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
            return "CREATE SUBSCRIPTION"
        with connect_publisher(
            statement.name,
            statement.conninfo,
            must_use_password=must_use_password,
        ) as session:
            publisher = Publisher(session)
            warn_of_missing(caller, publisher, statement.publications)
            if options.origin == "none":
                check_origin_none(
                    caller,
                    publisher,
                    statement.name,
                    statement.publications,
                    copy_data=options.copy_data,
                )
            types: tuple[RemoteType, ...] = ()
            if options.binary:
                types = tell_format(
                    caller, publisher, statement.name, statement.publications
                )
            made: list[TableDef] = []
            try:
                targets = find_targets(
                    node,
                    caller,
                    publisher,
                    statement.publications,
                    create_tables=options.create_tables,
                    choices=Choices.of(options.type_mappings, options.value_policies),
                    origin=options.origin,
                    made=made,
                )
                state = _two_phase(options, tables=bool(targets))
                if session.server_version < 150000 and state == "e":
                    # Its pgoutput cannot: the state says what is.
                    state = "p"
                start, planned = INVALID_LSN, None
                slot = _slot_name(statement, options)
                if options.create_slot and slot is not None:
                    planned = _plan_slot(node, publisher, statement, slot)
                    start = _make_slot(
                        node,
                        caller,
                        publisher,
                        statement,
                        slot,
                        planned,
                        two_phase=state == "e",
                        failover=options.failover,
                        must_use_password=must_use_password,
                    )
                try:
                    _record(
                        node, caller, statement, options, targets, start, types, state
                    )
                except BaseException:
                    if planned is not None:
                        _take_back(node, publisher, planned)
                    raise
            except BaseException:
                drop_made(node, made)
                raise
        failpoint("subscription.recorded")
    node.changed()
    return "CREATE SUBSCRIPTION"


def _plan_slot(
    node: Node, publisher: Publisher, statement: CreateSubscription, slot: str
) -> PlannedSlot | None:
    """Note that a slot is going to be made; None if there is one of that name, which is not
    this command's (and which the publisher will refuse to make again)."""
    for left in node.catalog.planned_slots():
        # Of this very command, before a crash.
        if (left.slot_name, left.conninfo) == (slot, statement.conninfo):
            drop_planned(node, publisher, left)
    if publisher.slot(slot) is not None:
        return None
    planned = PlannedSlot(
        slot, statement.conninfo, statement.name, publisher.identify().position
    )
    node.catalog.plan_slot(planned)
    failpoint("subscription.slot_planned")
    return planned


def _make_slot(
    node: Node,
    caller: Caller,
    publisher: Publisher,
    statement: CreateSubscription,
    slot: str,
    planned: PlannedSlot | None,
    *,
    two_phase: bool,
    failover: bool,
    must_use_password: bool,
) -> Lsn:
    """Create the slot; returns its consistent point."""
    if publisher.in_recovery():
        caller.notice(
            Notice(
                "publisher is a standby server",
                detail="A replication slot is created on it once its primary has logged"
                " the running transactions, and so is each snapshot that tables are"
                " copied under. A primary logs them by itself while it is written to.",
                hint="Execute pg_log_standby_snapshot() on the primary.",
            )
        )
    try:
        with (
            caller.cancelling(publisher.session.cancel),
            nudged(
                statement.conninfo,
                statement.name,
                must_use_password=must_use_password,
            ),
        ):
            return create_slot(
                caller.notice, publisher, slot, two_phase=two_phase, failover=failover
            )
    except PublisherError:
        # Refused: there is none of ours. If the connection broke, nobody knows yet.
        if planned is not None and publisher.session.is_alive():
            node.catalog.forget_planned(planned)
        raise


def _take_back(node: Node, publisher: Publisher, planned: PlannedSlot) -> None:
    """Drop the slot of a command that failed; what cannot be dropped now stays planned."""
    try:
        publisher.drop_slot(planned.slot_name, missing_ok=True)
    except PublisherError:
        return
    node.catalog.forget_planned(planned)


def _two_phase(options: SubscriptionOptions, *, tables: bool) -> str:
    """subtwophasestate. With a copy it is enabled once all tables are ready, and without
    tables later: a table that joins then has to be copied before."""
    if not options.two_phase:
        return "d"
    made_here = options.connect and options.create_slot
    return "e" if made_here and tables and not options.copy_data else "p"


def _slot_name(
    statement: CreateSubscription, options: SubscriptionOptions
) -> str | None:
    if "slot_name" in options.given:
        return options.slot_name
    return statement.name


def _record(
    node: Node,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
    targets: Sequence[Target],
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
    rels = [
        new_rel(node, oid, target, copy_data=options.copy_data) for target in targets
    ]
    node.catalog.create_subscription(
        subscription, rels, present_versions(node, targets)
    )
