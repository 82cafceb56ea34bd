"""ALTER SUBSCRIPTION: ENABLE, DISABLE, CONNECTION, SET (options), SKIP, RENAME TO.

Takes statements; returns the command tag. If workers must notice the change, the subscription gets
a new generation. The forms with PUBLICATION are in ``refresh``.

None of these connects to the publisher, except for SET when it changes the slot there. As in
PostgreSQL, the receiver checks at its next start whether the publisher supports the new settings.

Source: AlterSubscription() in subscriptioncmds.c, AlterObjectRename_internal() in alter.c.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from wal2lake.apply.local.histories import histories_of
from wal2lake.catalog import Subscription, TableDef
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.expressions import check_expressions
from wal2lake.commands.subscription.owner import (
    altering,
    check_conninfo,
    check_set_password_required,
)
from wal2lake.commands.subscription.slotoptions import (
    alter_slot,
    check_failover,
    check_two_phase,
)
from wal2lake.commands.subscription.steps.drop import (
    end_copies,
    refuse_dropping,
    refuse_given_up,
)
from wal2lake.commands.subscription.targets import check_may_make
from wal2lake.commands.tables.deletemarks import check_markable
from wal2lake.commands.tables.histories import make_histories, new_history
from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    UsageError,
)
from wal2lake.local.access import check_database_create
from wal2lake.local.node import Caller
from wal2lake.local.ports import (
    Definitions,
    SubscriptionCommands,
    TableDefinitions,
)
from wal2lake.model import INVALID_LSN, DeleteMode
from wal2lake.pg import parse_conninfo
from wal2lake.pgtypes import TYPE_MAPPINGS, check_tracked
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar import (
    OptionSet,
    SubscriptionOptions,
    subscription_options,
)
from wal2lake.sql.grammar.statements import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionRename,
    AlterSubscriptionSet,
    AlterSubscriptionSkip,
)

_PREREQUISITE: Final = "55000"
_COMMAND: Final = "ALTER SUBSCRIPTION"


def alter_enabled(
    node: TableDefinitions, caller: Caller, statement: AlterSubscriptionEnabled
) -> str:
    """ALTER SUBSCRIPTION ... ENABLE | DISABLE."""
    with altering(node, caller, statement.name) as subscription:
        if statement.enabled:
            refuse_dropping(subscription)
            if subscription.slot_name is None:
                raise UsageError(
                    "cannot enable subscription that does not have a slot name",
                    sqlstate=_PREREQUISITE,
                )
        node.catalog.update_subscription(
            subscription.oid, enabled=statement.enabled, bump=True
        )
        node.changed()
        if not statement.enabled:
            end_copies(node, caller, subscription)
    return _COMMAND


def alter_connection(
    node: TableDefinitions, caller: Caller, statement: AlterSubscriptionConnection
) -> str:
    """ALTER SUBSCRIPTION ... CONNECTION.

    Before it streams, the receiver checks that this is the same publisher, or one that has
    everything received so far. Running copies start again under a snapshot of the new publisher,
    which may lack rows that the old one had.
    """
    with altering(node, caller, statement.name) as subscription:
        parse_conninfo(statement.conninfo)
        owner = node.catalog.role_by_oid(subscription.owner)
        check_conninfo(
            caller,
            statement.conninfo,
            owner_is_superuser=owner is not None and owner.superuser,
            password_required=subscription.password_required,
        )
        # A slot yet to be dropped is at the old publisher.
        refuse_dropping(subscription)
        refuse_given_up(subscription)
        node.catalog.set_connection(subscription.oid, statement.conninfo)
        node.changed()
        end_copies(node, caller, subscription)
    return _COMMAND


def alter_rename(
    node: Definitions, caller: Caller, statement: AlterSubscriptionRename
) -> str:
    """ALTER SUBSCRIPTION ... RENAME TO.

    The names of the log, the slot and the tables' cursors stay. The receiver reconnects under the
    new name."""
    with altering(node, caller, statement.name) as subscription:
        check_database_create(node, caller)
        with node.ddl_lock:
            # The subscription's own name is refused, too.
            if node.catalog.subscription_named(statement.new_name) is not None:
                raise DuplicateObjectError(
                    f'subscription "{statement.new_name}" already exists'
                )
            node.catalog.update_subscription(
                subscription.oid, name=statement.new_name, bump=True
            )
        node.changed()
    return _COMMAND


def alter_skip(
    node: Definitions, caller: Caller, statement: AlterSubscriptionSkip
) -> str:
    """ALTER SUBSCRIPTION ... SKIP (lsn = ...). The apply worker reads the LSN from the catalog."""
    with altering(node, caller, statement.name) as subscription:
        lsn = subscription_options(statement.options, OptionSet.SKIP).lsn or INVALID_LSN
        origin = node.catalog.applied_ends().get(subscription.oid, INVALID_LSN)
        if lsn and lsn < origin:
            raise UsageError(
                f"skip WAL location (LSN {lsn}) must be greater than origin LSN"
                f" {origin}"
            )
        node.catalog.set_skip(subscription.oid, lsn)
    return _COMMAND


def alter_set(
    node: SubscriptionCommands, caller: Caller, statement: AlterSubscriptionSet
) -> str:
    """ALTER SUBSCRIPTION ... SET (options)."""
    with altering(node, caller, statement.name) as subscription:
        options = subscription_options(statement.options, OptionSet.SET)
        check_set_password_required(caller, options)
        check_tracked(
            options.conflict_resolution,
            tracked=node.settings.apply.track_commit_timestamp,
        )
        check_expressions(node, options.conflict_resolution)
        _set(node, caller, subscription, options)
        node.changed()
    return _COMMAND


def _set(
    node: SubscriptionCommands,
    caller: Caller,
    subscription: Subscription,
    options: SubscriptionOptions,
) -> None:
    changes: dict[str, object] = {}
    if "slot_name" in options.stated:
        if subscription.enabled and options.slot_name is None:
            raise UsageError(
                "cannot set slot_name = NONE for enabled subscription",
                sqlstate=_PREREQUISITE,
            )
        if options.slot_name is not None:
            refuse_given_up(subscription)
        changes["slot_name"] = options.slot_name
    for name in ("synchronous_commit", "create_tables"):
        if name in options.stated:
            changes[name] = getattr(options, name)
    stored = options.stored(stated_only=True)
    if "two_phase" in options.stated:
        check_two_phase(node, caller, subscription, options)
        stored["two_phase"] = "p" if options.two_phase else "d"
    if "failover" in options.stated:
        check_failover(caller, subscription)
    alter_slot(node, caller, subscription, options)
    stored.pop("history", None)
    if "history" in options.stated:
        _set_history(node, caller, subscription, options.history)
    if "delete_mode" in options.stated:
        _check_delete_mode(node, subscription, options.delete_mode)
    if stored.get("schema_changes") == "follow" and not subscription.follows_schema:
        # The receiver records the columns again when it begins to stream.
        node.catalog.forget_followed(subscription.oid)
    node.catalog.alter_subscription(
        subscription.oid,
        options=stored,
        # Set before the first transaction is filtered out: from then on the publisher does not
        # send every change, so inserts must look for existing rows.
        distrust=stored.get("origin") == "none",
        **changes,
    )
    if TYPE_MAPPINGS in options.stated:
        caller.notice(
            Notice(
                "type_mappings hold for tables that the subscription creates from now on;"
                " present ones keep their columns"
            )
        )


def _check_delete_mode(
    node: SubscriptionCommands, subscription: Subscription, mode: DeleteMode
) -> None:
    """Check that the mode may begin. Marked rows would be the publisher's without their marks, so
    the mode soft does not end."""
    if mode is DeleteMode.HARD and subscription.keeps_deleted:
        raise FeatureNotSupportedError(
            "delete_mode = soft cannot be changed to hard",
            hint="Drop the subscription and its tables, and create it again.",
        )
    if mode is DeleteMode.SOFT and not subscription.keeps_deleted:
        for rel in node.catalog.rels(subscription.oid):
            table = node.catalog.table_by_oid(rel.relid)
            if table is not None:
                check_markable(
                    node.catalog, table, subscription.oid, keeps_deleted=True
                )


def _set_history(
    node: SubscriptionCommands, caller: Caller, subscription: Subscription, schema: str
) -> None:
    """Keep histories in another schema, from the next batch on, or none."""
    if schema == subscription.history:
        return
    outside_block(caller, "ALTER SUBSCRIPTION ... SET (history)")
    refuse_dropping(subscription)
    owner = node.catalog.role_by_oid(subscription.owner)
    maker = caller if owner is None else replace(caller, role=owner)
    with node.ddl_lock:
        tables = [
            table
            for rel in node.catalog.rels(subscription.oid)
            if (table := node.catalog.table_by_oid(rel.relid)) is not None
        ]
        histories: list[TableDef] = []
        if schema:
            check_may_make(
                node, maker, [new_history(schema, table) for table in tables]
            )
            histories, _ = make_histories(node, maker, schema, subscription.oid, tables)
        versions = {
            int(table.oid): node.tables.state(table.location).version
            for table in histories
        }
        with node.locks.of(subscription.oid):
            before = histories_of(node.catalog, subscription)
            node.catalog.alter_subscription(
                subscription.oid, options={"history": schema}
            )
            node.catalog.show_histories(subscription.oid, versions, before.values())
    if schema:
        caller.notice(
            Notice(
                "histories begin with the next change; rows that are here already are not"
                " listed in them",
                hint="ALTER SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true)"
                " copies the tables again, with a row for each.",
            )
        )
