"""ALTER SUBSCRIPTION ... SET (two_phase): what must hold, and the slot's part of it.

In: a subscription and the options given. Out: nothing, or PostgreSQL's refusal; with false the
publisher's slot is changed before the subscription is, so that nothing more is prepared. With
true the receiver enables it as it does after CREATE: once all tables are ready.

A prepared transaction may be in the journal only. So the log is opened, which recovers it; that
fails while the receiver still has it, which is what PostgreSQL looks for too.

Source: AlterSubscription() and CheckAlterSubOption() in subscriptioncmds.c, PostgreSQL 18.
"""

from __future__ import annotations

from typing import Final

from wal2lake.catalog import Subscription
from wal2lake.changelog import ChangeLog, prepared_transactions
from wal2lake.errors import (
    ConfigurationError,
    PublisherError,
    SqlSyntaxError,
    UsageError,
)
from wal2lake.frontend.commands.node import Node
from wal2lake.frontend.commands.subscription.publisher import connect_publisher
from wal2lake.frontend.grammar import SubscriptionOptions
from wal2lake.pg import Publisher

_PREREQUISITE: Final = "55000"
_IN_USE: Final = "55006"


def set_two_phase(
    node: Node, subscription: Subscription, options: SubscriptionOptions
) -> None:
    """Raise what PostgreSQL raises, or have the slot follow."""
    disabling = not options.two_phase
    if subscription.enabled:
        raise UsageError(
            'cannot set option "two_phase" for enabled subscription',
            sqlstate=_PREREQUISITE,
        )
    if disabling and subscription.slot_name is None:
        raise UsageError(
            'cannot set option "two_phase" for a subscription that does not have a slot'
            " name",
            sqlstate=_PREREQUISITE,
        )
    if disabling and "slot_name" in options.given:
        raise SqlSyntaxError(
            '"slot_name" and "two_phase" cannot be altered at the same time'
        )
    if _any_prepared(node, subscription) and disabling:
        raise UsageError(
            'cannot disable "two_phase" when prepared transactions exist',
            sqlstate=_PREREQUISITE,
            hint="Resolve these transactions and try again.",
        )
    if disabling:
        _alter_slot(subscription)


def _any_prepared(node: Node, subscription: Subscription) -> bool:
    directory = node.settings.log_directory / str(int(subscription.oid))
    if not directory.exists():
        return False
    try:
        ChangeLog.open(directory, node.settings.log).close()
    except ConfigurationError as error:
        if error.sqlstate != _IN_USE:
            raise
        raise UsageError(
            'cannot alter "two_phase" when logical replication worker is still running',
            sqlstate=_PREREQUISITE,
            hint="Try again after some time.",
        ) from None
    return bool(prepared_transactions(directory))


def _alter_slot(subscription: Subscription) -> None:
    slot = str(subscription.slot_name)
    with connect_publisher(subscription.name, subscription.conninfo) as session:
        try:
            Publisher(session).disable_two_phase(slot)
        except PublisherError as error:
            raise PublisherError(
                f'could not alter replication slot "{slot}": ERROR:  {error.message}',
                sqlstate=error.sqlstate,
                detail=error.detail,
                hint=error.hint,
            ) from None
