"""ALTER SUBSCRIPTION: ENABLE, DISABLE, REFRESH PUBLICATION, SET (options).

In: statements. Out: the command tag; a new generation of the subscription where its workers
must notice. REFRESH takes the subscription's commit lock, for it changes which tables a
published state has.

Source: AlterSubscription() and AlterSubscription_refresh() in subscriptioncmds.c.
"""

from __future__ import annotations

from typing import Final

from wal2lake.catalog import Subscription, TableDef
from wal2lake.errors import (
    FeatureNotSupportedError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.frontend.backend import Notice
from wal2lake.frontend.commands.node import Caller, Node, require_superuser
from wal2lake.frontend.commands.subscription.drop import halt_copies
from wal2lake.frontend.commands.subscription.publisher import (
    check_origin_none,
    connect_publisher,
)
from wal2lake.frontend.commands.subscription.targets import (
    Choices,
    drop_made,
    find_targets,
    new_rel,
    publish_present,
)
from wal2lake.frontend.commands.subscription.twophase import set_two_phase
from wal2lake.frontend.grammar import OptionSet, subscription_options
from wal2lake.frontend.grammar.statements import (
    AlterSubscriptionEnabled,
    AlterSubscriptionRefresh,
    AlterSubscriptionSet,
)
from wal2lake.pg import Publisher
from wal2lake.pgtypes import TYPE_MAPPINGS, VALUE_POLICIES

_PREREQUISITE: Final = "55000"


def _need(node: Node, name: str) -> Subscription:
    """42704 if there is none."""
    found = node.catalog.subscription_named(name)
    if found is None:
        raise UndefinedObjectError(f'subscription "{name}" does not exist')
    return found


def alter_enabled(
    node: Node, caller: Caller, statement: AlterSubscriptionEnabled
) -> str:
    """ALTER SUBSCRIPTION ... ENABLE | DISABLE."""
    require_superuser(caller, "alter subscription")
    subscription = _need(node, statement.name)
    if statement.enabled and subscription.dropping:
        raise UsageError(
            f'subscription "{subscription.name}" is being dropped',
            sqlstate=_PREREQUISITE,
            hint="A DROP SUBSCRIPTION was interrupted; repeat it.",
        )
    if statement.enabled and subscription.slot_name is None:
        raise UsageError(
            "cannot enable subscription that does not have a slot name",
            sqlstate=_PREREQUISITE,
        )
    node.catalog.update_subscription(
        subscription.oid, enabled=statement.enabled, bump=True
    )
    node.changed()
    if not statement.enabled:
        halt_copies(node, subscription)
    return "ALTER SUBSCRIPTION"


def alter_refresh(
    node: Node, caller: Caller, statement: AlterSubscriptionRefresh
) -> str:
    """ALTER SUBSCRIPTION ... REFRESH PUBLICATION."""
    require_superuser(caller, "alter subscription")
    options = subscription_options(statement.options, OptionSet.REFRESH)
    subscription = _need(node, statement.name)
    if not subscription.enabled:
        raise UsageError(
            "ALTER SUBSCRIPTION ... REFRESH PUBLICATION is not allowed for disabled"
            " subscriptions",
            sqlstate=_PREREQUISITE,
        )
    if subscription.two_phase == "e" and options.copy_data:
        raise SqlSyntaxError(
            "ALTER SUBSCRIPTION ... REFRESH with copy_data is not allowed when two_phase"
            " is enabled",
            hint="Use ALTER SUBSCRIPTION ... REFRESH with copy_data = false, or use"
            " DROP/CREATE SUBSCRIPTION.",
        )
    with (
        node.ddl_lock,
        connect_publisher(subscription.name, subscription.conninfo) as session,
    ):
        publisher = Publisher(session)
        if subscription.origin == "none":
            check_origin_none(
                caller,
                publisher,
                subscription.name,
                subscription.publications,
                copy_data=options.copy_data,
                known=[
                    (rel.remote_namespace, rel.remote_name)
                    for rel in node.catalog.rels(subscription.oid)
                ],
            )
        made: list[TableDef] = []
        try:
            targets = find_targets(
                node,
                caller,
                publisher,
                subscription.publications,
                create_tables=subscription.create_tables,
                choices=Choices.of(
                    subscription.type_mappings,
                    subscription.value_policies,
                    {rel.relid for rel in node.catalog.rels(subscription.oid)},
                ),
                origin=subscription.origin,
                made=made,
            )
        except BaseException:
            drop_made(node, made)
            raise
        with node.locks.of(subscription.oid):
            known = {r.relid: r for r in node.catalog.rels(subscription.oid)}
            present = {t.table.oid for t in targets}
            new = [t for t in targets if t.table.oid not in known]
            node.catalog.add_rels(
                [
                    new_rel(
                        node,
                        subscription.oid,
                        t,
                        copy_data=options.copy_data,
                    )
                    for t in new
                ]
            )
            for target in targets:
                relid = target.table.oid
                if relid in known and known[relid].trusted and not target.whole:
                    node.catalog.update_rel(subscription.oid, relid, trusted=False)
            publish_present(node, subscription.oid, new)
            gone = known.keys() - present
            for relid in gone:
                node.catalog.remove_rel(subscription.oid, relid)
                node.catalog.forget_version(subscription.oid, relid)
            if gone:
                halt_copies(node, subscription, gone)
    node.changed()
    return "ALTER SUBSCRIPTION"


def alter_set(node: Node, caller: Caller, statement: AlterSubscriptionSet) -> str:
    """ALTER SUBSCRIPTION ... SET (options)."""
    require_superuser(caller, "alter subscription")
    options = subscription_options(statement.options, OptionSet.SET)
    subscription = _need(node, statement.name)
    changes: dict[str, object] = {}
    if "slot_name" in options.given:
        if subscription.enabled and options.slot_name is None:
            raise UsageError(
                "cannot set slot_name = NONE for enabled subscription",
                sqlstate=_PREREQUISITE,
            )
        changes["slot_name"] = options.slot_name
    if "synchronous_commit" in options.given:
        changes["synchronous_commit"] = options.synchronous_commit
    if "create_tables" in options.given:
        changes["create_tables"] = options.create_tables
    # As in PostgreSQL this command does not connect: the receiver, when it starts again,
    # asks the publisher whether it can be done, and says so if not.
    asked: dict[str, str] = {}
    if "origin" in options.given:
        asked["origin"] = options.origin
    if "binary" in options.given:
        asked["binary"] = str(options.binary).lower()
    if VALUE_POLICIES in options.given:
        asked[VALUE_POLICIES] = options.value_policies
    if TYPE_MAPPINGS in options.given:
        asked[TYPE_MAPPINGS] = options.type_mappings
        caller.notice(
            Notice(
                "type_mappings hold for tables that the subscription creates from now on;"
                " present ones keep their columns"
            )
        )
    if "streaming" in options.given:
        asked["streaming"] = options.streaming
    if "two_phase" in options.given:
        set_two_phase(node, subscription, options)
        asked["two_phase"] = "p" if options.two_phase else "d"
    if asked.get("origin") == "none":
        # Before the first transaction is left out: inserts must look for rows from here on.
        for rel in node.catalog.rels(subscription.oid):
            node.catalog.update_rel(subscription.oid, rel.relid, trusted=False)
    if asked:
        node.catalog.set_options(subscription.oid, asked)
    node.catalog.update_subscription(subscription.oid, **changes, bump=True)
    node.changed()
    return "ALTER SUBSCRIPTION"


def alter_later(form: str) -> FeatureNotSupportedError:
    """A form that the grammar knows and this version does not execute."""
    return FeatureNotSupportedError(
        f"ALTER SUBSCRIPTION ... {form} is not supported by this version",
        hint="Drop the subscription and create it again.",
    )
