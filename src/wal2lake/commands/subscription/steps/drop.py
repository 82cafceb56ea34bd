"""DROP SUBSCRIPTION, in the order of its durable steps:

    mark the subscription as being dropped,         catalog
      and disable it
    wait until its receiver, its apply worker       nothing durable
      and the copies of its tables end
    drop the slot (the publisher waits until        publisher
      the walsender has released it)
    forget the slot's name                          catalog
    remove the log and the files of positions       storage
    delete the subscription                         catalog

A failure before the slot is dropped removes the mark. Afterwards the command can only go forward,
and so it can if the drop is uncertain (a cancel, a broken connection): the mark stays, and
``unfinished`` or a repeated DROP does the rest. The tables stay, as in PostgreSQL.

Source: DropSubscription() in subscriptioncmds.c.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from wal2lake.apply.local.histories import finish_all
from wal2lake.catalog import Recopy, Subscription
from wal2lake.catalog.mapped.committimes import times_path
from wal2lake.catalog.mapped.progress import ProgressFile, progress_path, receiver_name
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.owner import altering
from wal2lake.commands.subscription.publisher import (
    connect_to_drop,
    drop_slot,
)
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.local.node import Caller
from wal2lake.local.ports import (
    Definitions,
    HasCatalog,
    HasSettings,
    SubscriptionCommands,
    TableDefinitions,
)
from wal2lake.model import Oid
from wal2lake.observe import failpoint, get_logger
from wal2lake.observe.telemetry import telemetry_folder, telemetry_path
from wal2lake.pg import Check, Session
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.statements import DropSubscription

WORKER_STOP_SECONDS: Final = 30.0
"""How long a command waits for a subscription's workers to end."""

_LOOK_SECONDS: Final = 0.2
"""How soon such a wait notices a cancel. Chosen arbitrarily, too short for a user to notice."""


def drop_subscription(
    node: SubscriptionCommands, caller: Caller, statement: DropSubscription
) -> str:
    """DROP SUBSCRIPTION."""
    if node.catalog.subscription_named(statement.name) is None:
        text = f'subscription "{statement.name}" does not exist'
        if not statement.if_exists:
            raise UndefinedObjectError(text)
        caller.notice(Notice(f"{text}, skipping"))
        return "DROP SUBSCRIPTION"
    with altering(node, caller, statement.name, connects=False) as subscription:
        if subscription.slot_name:
            outside_block(caller, "DROP SUBSCRIPTION")
        if caller.block is not None:
            node.catalog.drop_subscription(subscription.oid)
            caller.block.before.append(
                partial(_workers_stopped, subscription.oid, caller)
            )
            caller.block.afterwards.append(partial(_remove_log, subscription.oid))
        elif _drop(node, caller, subscription):
            slot = subscription.slot_name
            caller.notice(Notice(f'dropped replication slot "{slot}" on publisher'))
    return "DROP SUBSCRIPTION"


@contextlib.contextmanager
def _workers_stopped(
    oid: Oid, caller: Caller, node: SubscriptionCommands
) -> Iterator[None]:
    """Keep the workers stopped during the commit of a block that drops a subscription.

    The subscription has no slot. Afterwards the workers run again only if the commit fails."""
    subscription = node.catalog.subscription(oid)
    if subscription is None:
        # The block has created the subscription itself.
        yield
        return
    if subscription.enabled:
        node.catalog.update_subscription(oid, enabled=False, bump=True)
        node.changed()
    try:
        await_workers(node, subscription, WORKER_STOP_SECONDS, caller.check)
        finish_all(node.catalog, node.tables, oid)
        yield
    except BaseException:
        if subscription.enabled and node.catalog.subscription(oid) is not None:
            node.catalog.update_subscription(oid, enabled=True, bump=True)
            node.changed()
        raise


def _drop(
    node: SubscriptionCommands, caller: Caller, subscription: Subscription
) -> bool:
    """Drop the subscription; True if it had a slot that existed."""
    with contextlib.ExitStack() as closing:
        with _mark_undone(node, subscription):
            session = _begin(node, caller, subscription)
            if session is not None:
                closing.enter_context(session)
        dropped = False
        if session is not None:
            try:
                dropped = _drop_slot(session, subscription)
            except BaseException:
                if session.unanswered:
                    caller.notice(_uncertain_drop(subscription))
                    raise
                with _mark_undone(node, subscription):
                    raise
            _forget_slot(node, subscription)
    _forget(node, subscription)
    return dropped


def _begin(
    node: SubscriptionCommands, caller: Caller, subscription: Subscription
) -> Session | None:
    """Do the steps that can be undone; return a session at the publisher to drop a slot on."""
    node.catalog.update_subscription(
        subscription.oid, enabled=False, dropping=True, bump=True
    )
    node.changed()
    failpoint("subscription.drop_marked")
    await_workers(node, subscription, WORKER_STOP_SECONDS, caller.check)
    if subscription.slot_name is None:
        return None
    return connect_to_drop(node, subscription, caller.check)


@contextlib.contextmanager
def _mark_undone(node: Definitions, subscription: Subscription) -> Iterator[None]:
    """Undo the mark if the block fails."""
    try:
        yield
    except BaseException:
        node.catalog.update_subscription(
            subscription.oid,
            enabled=subscription.enabled,
            dropping=subscription.dropping,
            bump=True,
        )
        node.changed()
        raise


def _uncertain_drop(subscription: Subscription) -> Notice:
    return Notice(
        f'publisher has not said whether replication slot "{subscription.slot_name}" was'
        " dropped",
        severity="WARNING",
        sqlstate="01000",
        detail=f'Subscription "{subscription.name}" is disabled, and this node goes on'
        " dropping it.",
    )


def finish_drop(
    node: TableDefinitions, subscription: Subscription, session: Session | None
) -> bool:
    """Complete a DROP that a crash interrupted. The caller holds the subscription's turn.

    ``session``: a replication session at the publisher; None if the subscription has no slot.
    """
    dropped = session is not None and _drop_slot(session, subscription)
    _forget_slot(node, subscription)
    _forget(node, subscription)
    return dropped


def _drop_slot(session: Session, subscription: Subscription) -> bool:
    """Drop the slot; a missing one is no error if an interrupted command is resumed."""
    return drop_slot(
        session,
        str(subscription.slot_name),
        missing_ok=subscription.dropping or subscription.recopying is not Recopy.NO,
    )


def _forget_slot(node: HasCatalog, subscription: Subscription) -> None:
    """Forget the slot's name: another slot may get it, which a repeated DROP must not drop."""
    if subscription.slot_name is not None:
        node.catalog.update_subscription(subscription.oid, slot_name=None)


def _forget(node: TableDefinitions, subscription: Subscription) -> None:
    """Remove the log, then the subscription. Without its subscription a log would be orphaned."""
    failpoint("subscription.slot_dropped")
    finish_all(node.catalog, node.tables, subscription.oid)
    _remove_log(subscription.oid, node)
    failpoint("subscription.log_removed")
    node.catalog.drop_subscription(subscription.oid)
    node.changed()


def _remove_log(oid: Oid, node: HasSettings) -> None:
    directory = node.settings.log_directory / str(int(oid))
    # An interrupted re-copy may have left the log that it gave up.
    for path in (directory, given_up(directory)):
        shutil.rmtree(path, ignore_errors=True)
    run_directory = node.settings.run_directory
    progress_path(run_directory, oid).unlink(missing_ok=True)
    times_path(run_directory, oid).unlink(missing_ok=True)
    telemetry_path(run_directory, receiver_name(oid)).unlink(missing_ok=True)


_LOG_NAME: Final = re.compile(r"([1-9]\d*)(?:\.old)?")
_POSITIONS_NAME: Final = re.compile(r"sub-([1-9]\d*)\.(?:progress|times)")
_TELEMETRY_NAME: Final = re.compile(r"receiver-([1-9]\d*)\.json")


def remove_orphans(node: HasSettings) -> None:
    """Remove, at start, logs and files in ``run/`` of subscriptions that a block has dropped.

    They exist after a crash between a commit and the removal. Only paths named by an OID are
    considered."""
    oids = {int(subscription.oid) for subscription in node.catalog.subscriptions()}
    for directory, pattern in (
        (node.settings.log_directory, _LOG_NAME),
        (node.settings.run_directory, _POSITIONS_NAME),
        (telemetry_folder(node.settings.run_directory), _TELEMETRY_NAME),
    ):
        for path in directory.iterdir() if directory.is_dir() else ():
            match = pattern.fullmatch(path.name)
            if match is None or int(match[1]) in oids or path.is_symlink():
                continue
            if path.is_dir() is not (pattern is _LOG_NAME):
                continue
            get_logger().warning(
                "removing files of a dropped subscription", path=str(path)
            )
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def given_up(directory: Path) -> Path:
    """Return the path to which a re-copy moves a log before it is removed."""
    return directory.with_name(f"{directory.name}.old")


def refuse_dropping(subscription: Subscription) -> None:
    """Raise 55000 if a DROP of the subscription has begun."""
    if subscription.dropping:
        raise UsageError(
            f'subscription "{subscription.name}" is being dropped',
            sqlstate="55000",
            hint="A DROP SUBSCRIPTION was interrupted; repeat it.",
        )


def refuse_given_up(subscription: Subscription) -> None:
    """Raise 55000 while a re-copy has given up the slot and must find the one it creates."""
    if subscription.recopying is Recopy.GIVEN_UP:
        raise UsageError(
            f'subscription "{subscription.name}" is being copied again',
            sqlstate="55000",
            hint="Wait until it has a new slot, or end it by SET (slot_name = NONE) and DROP"
            " SUBSCRIPTION.",
        )


def await_workers(
    node: SubscriptionCommands,
    subscription: Subscription,
    timeout_seconds: float,
    check: Check,
) -> None:
    """Wait until receiver, apply worker and copies have ended; 55006 after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    with ProgressFile(node.settings.run_directory, subscription.oid) as progress:
        while (alive := _is_running(progress.word("receiver_pid"))) and (
            time.monotonic() < deadline
        ):
            check()
            time.sleep(0.02)
        if alive:
            raise UsageError(
                f'walreceiver of subscription "{subscription.name}" does not end',
                sqlstate="55006",
                hint="Try again; see the node's log.",
            )
    while not node.apply.halt(subscription.oid, _LOOK_SECONDS):
        check()
        if time.monotonic() < deadline:
            continue
        raise UsageError(
            f'apply worker of subscription "{subscription.name}" is busy',
            sqlstate="55006",
            hint="Try again when its present batch is done.",
        )
    # No copy commits from now on. The catalog entry that the caller has written keeps new copies
    # from starting.
    remaining = max(0.0, deadline - time.monotonic())
    if not node.sync.halt(subid=subscription.oid, timeout_seconds=remaining):
        raise UsageError(
            f'tablesync worker of subscription "{subscription.name}" is busy',
            sqlstate="55006",
            hint="Try again when its present commit is done.",
        )


def end_copies(
    node: TableDefinitions,
    caller: Caller,
    subscription: Subscription,
    relids: Collection[Oid] | None = None,
) -> None:
    """Wait until copies have ended; only warn on a timeout, as the command has taken effect.

    A command in a block takes effect at COMMIT, so it waits then."""
    if caller.block is not None:
        outside = replace(caller, block=None)
        caller.block.afterwards.append(
            lambda node: end_copies(node, outside, subscription, relids)
        )
        return
    if not node.sync.halt(
        subid=subscription.oid, relids=relids, timeout_seconds=WORKER_STOP_SECONDS
    ):
        caller.notice(
            Notice(
                f'tablesync worker of subscription "{subscription.name}" has not ended'
                " in time",
                severity="WARNING",
                sqlstate="55006",
                detail="It may still finish the commit that it has begun, but no other.",
            )
        )


def _is_running(pid: int) -> bool:
    """Return whether the process exists: a killed receiver leaves its pid behind."""
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
