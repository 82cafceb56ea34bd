"""ALTER SUBSCRIPTION ... SET (two_phase | failover): the checks, and the change of the slot.

Takes a subscription and the options given; raises PostgreSQL's error. ``alter_slot`` changes the
publisher's slot before the subscription is changed. After two_phase = false, the publisher
therefore sends no more prepared transactions. After two_phase = true, the receiver enables it as
after CREATE: once all tables are ready. failover concerns the slot only: the publisher's standbys
get the slot, and nothing here depends on it.

A prepared transaction may be in the journal only. The log is therefore opened, which recovers the
journal. That fails while the receiver holds the log; PostgreSQL checks for a running worker, too.

Source: AlterSubscription() and CheckAlterSubOption() in subscriptioncmds.c, libpqrcv_alter_slot()
in libpqwalreceiver.c, PostgreSQL 18.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wal2lake.catalog import Subscription
from wal2lake.changelog import ChangeLog, prepared_transactions
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.publisher import (
    PROTOCOL_VIOLATION,
    connect_publisher,
)
from wal2lake.errors import (
    LogInUseError,
    PublisherError,
    SqlSyntaxError,
    UsageError,
)
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasSettings
from wal2lake.pg import Publisher
from wal2lake.sql.grammar import SubscriptionOptions

_PREREQUISITE: Final = "55000"


def check_two_phase(
    node: HasSettings,
    caller: Caller,
    subscription: Subscription,
    options: SubscriptionOptions,
) -> None:
    """Raise PostgreSQL's error if two_phase cannot be set."""
    disabling = not options.two_phase
    _check(caller, subscription, "two_phase", slot_changes=disabling)
    if disabling and "slot_name" in options.stated:
        raise SqlSyntaxError(
            '"slot_name" and "two_phase" cannot be altered at the same time'
        )
    directory = node.settings.log_directory / str(int(subscription.oid))
    if not directory.exists():
        return
    _recover(node, directory)
    if disabling and prepared_transactions(directory):
        raise UsageError(
            'cannot disable "two_phase" when prepared transactions exist',
            sqlstate=_PREREQUISITE,
            hint="Resolve these transactions and try again.",
        )


def check_failover(caller: Caller, subscription: Subscription) -> None:
    """Raise PostgreSQL's error if failover cannot be set."""
    _check(caller, subscription, "failover", slot_changes=True)


def alter_slot(
    node: HasSettings,
    caller: Caller,
    subscription: Subscription,
    options: SubscriptionOptions,
) -> None:
    """Change the publisher's slot, if the options concern it."""
    failover = options.failover if "failover" in options.stated else None
    disabling = "two_phase" in options.stated and not options.two_phase
    if failover is None and not disabling:
        return
    slot = str(subscription.slot_name)
    with connect_publisher(
        node,
        subscription.name,
        subscription.conninfo,
        check=caller.check,
        must_use_password=node.catalog.must_use_password(subscription),
    ) as session:
        try:
            Publisher(session).alter_slot(
                slot, failover=failover, two_phase=False if disabling else None
            )
        except PublisherError as error:
            raise PublisherError(
                f'could not alter replication slot "{slot}": ERROR:  {error.message}',
                sqlstate=PROTOCOL_VIOLATION,
                detail=error.detail,
                hint=error.hint,
            ) from None


def _check(
    caller: Caller, subscription: Subscription, option: str, *, slot_changes: bool
) -> None:
    """Check as CheckAlterSubOption() does."""
    if subscription.enabled:
        raise UsageError(
            f'cannot set option "{option}" for enabled subscription',
            sqlstate=_PREREQUISITE,
        )
    if not slot_changes:
        return
    if subscription.slot_name is None:
        raise UsageError(
            f'cannot set option "{option}" for a subscription that does not have a slot'
            " name",
            sqlstate=_PREREQUISITE,
        )
    outside_block(caller, f"ALTER SUBSCRIPTION ... SET ({option})")


def _recover(node: HasSettings, directory: Path) -> None:
    """Move into the log what only its journal has; raises while the receiver holds the log."""
    try:
        ChangeLog.open(directory, node.settings.log).close()
    except LogInUseError:
        raise UsageError(
            'cannot alter "two_phase" when logical replication worker is still running',
            sqlstate=_PREREQUISITE,
            hint="Try again after some time.",
        ) from None
