"""DROP SUBSCRIPTION, in the order of its durable steps:

    mark it as being dropped, and disabled          catalog
    wait until its receiver, its apply worker       nothing durable
      and the copies of its tables end
    drop the slot (the publisher waits until        publisher
      the walsender has let it go)
    forget the slot's name                          catalog
    remove its log and its progress                 storage
    forget it                                       catalog

A failure before the slot is dropped takes the mark back. From then on, and if nobody knows whether
it was dropped (a cancel, a connection that broke), the command can only go forward: the mark stays,
and ``unfinished`` or a repeated DROP does the rest. The tables stay, as in PostgreSQL.

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

from wal2lake.catalog import Recopy, Subscription
from wal2lake.catalog.progress import ProgressFile, progress_path
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.owner import altering
from wal2lake.commands.subscription.publisher import (
    connect_to_drop,
    drop_slot,
)
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.local.node import Caller, EngineParts
from wal2lake.model import Oid
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import Check, Session
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.statements import DropSubscription

WORKER_STOP_SECONDS: Final = 30.0
"""How long a command waits for a subscription's workers to end."""

_LOOK_SECONDS: Final = 0.2
"""How soon such a wait ends with a cancel; a guess at what a person does not notice."""


def drop_subscription(
    node: EngineParts, caller: Caller, statement: DropSubscription
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
            caller.block.before.append(partial(_stopped, subscription.oid, caller))
            caller.block.afterwards.append(partial(_remove_log, subscription.oid))
        elif _drop(node, caller, subscription):
            slot = subscription.slot_name
            caller.notice(Notice(f'dropped replication slot "{slot}" on publisher'))
    return "DROP SUBSCRIPTION"


@contextlib.contextmanager
def _stopped(oid: Oid, caller: Caller, node: EngineParts) -> Iterator[None]:
    """At the commit of a block that drops a subscription without a slot: its workers do not run
    within, nor afterwards unless the commit fails."""
    found = node.catalog.subscription(oid)
    if found is None:
        # The block itself has created it.
        yield
        return
    if found.enabled:
        node.catalog.update_subscription(oid, enabled=False, bump=True)
        node.changed()
    try:
        await_workers(node, found, WORKER_STOP_SECONDS, caller.check)
        yield
    except BaseException:
        if found.enabled and node.catalog.subscription(oid) is not None:
            node.catalog.update_subscription(oid, enabled=True, bump=True)
            node.changed()
        raise


def _drop(node: EngineParts, caller: Caller, subscription: Subscription) -> bool:
    """All of it; True if there was a slot, and it was there."""
    with contextlib.ExitStack() as closing:
        with _taken_back(node, subscription):
            session = _begin(node, caller, subscription)
            if session is not None:
                closing.enter_context(session)
        dropped = False
        if session is not None:
            try:
                dropped = _drop_slot(session, subscription)
            except BaseException:
                if session.unanswered:
                    caller.notice(_not_known(subscription))
                    raise
                with _taken_back(node, subscription):
                    raise
            _forget_slot(node, subscription)
    _forget(node, subscription)
    return dropped


def _begin(
    node: EngineParts, caller: Caller, subscription: Subscription
) -> Session | None:
    """Up to where there is no way back; returns how to talk to the publisher, if there is a
    slot to drop."""
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
def _taken_back(node: EngineParts, subscription: Subscription) -> Iterator[None]:
    """A failure within leaves everything as it was."""
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


def _not_known(subscription: Subscription) -> Notice:
    return Notice(
        f'publisher has not said whether replication slot "{subscription.slot_name}" was'
        " dropped",
        severity="WARNING",
        sqlstate="01000",
        detail=f'Subscription "{subscription.name}" is disabled, and this node goes on'
        " dropping it.",
    )


def finish_drop(
    node: EngineParts, subscription: Subscription, session: Session | None
) -> bool:
    """The rest of a DROP that a crash has interrupted; the caller holds its turn.

    ``session`` is one for replication at the publisher; None: it has no slot.
    """
    dropped = session is not None and _drop_slot(session, subscription)
    _forget_slot(node, subscription)
    _forget(node, subscription)
    return dropped


def _drop_slot(session: Session, subscription: Subscription) -> bool:
    """One that is gone already is no error if an interrupted DROP goes on."""
    return drop_slot(
        session,
        str(subscription.slot_name),
        missing_ok=subscription.dropping or subscription.recopying is not Recopy.NO,
    )


def _forget_slot(node: EngineParts, subscription: Subscription) -> None:
    """The name may be somebody else's now: a repeated DROP must not drop it again."""
    if subscription.slot_name is not None:
        node.catalog.update_subscription(subscription.oid, slot_name=None)


def _forget(node: EngineParts, subscription: Subscription) -> None:
    """The log goes first: without its subscription nobody would know of it."""
    failpoint("subscription.slot_dropped")
    _remove_log(subscription.oid, node)
    failpoint("subscription.log_removed")
    node.catalog.drop_subscription(subscription.oid)
    node.changed()


def _remove_log(oid: Oid, node: EngineParts) -> None:
    directory = node.settings.log_directory / str(int(oid))
    # A re-copy that gave its log up may have been interrupted, too.
    for gone in (directory, given_up(directory)):
        shutil.rmtree(gone, ignore_errors=True)
    progress_path(node.settings.run_directory, oid).unlink(missing_ok=True)


_LOG_NAME: Final = re.compile(r"([1-9]\d*)(?:\.old)?")
_PROGRESS_NAME: Final = re.compile(r"sub-([1-9]\d*)\.progress")


def remove_orphans(node: EngineParts) -> None:
    """At start: logs and positions of subscriptions that a block has dropped, if a crash came
    between its commit and their removal. Only what is named by an OID is looked at."""
    known = {int(subscription.oid) for subscription in node.catalog.subscriptions()}
    for directory, pattern in (
        (node.settings.log_directory, _LOG_NAME),
        (node.settings.run_directory, _PROGRESS_NAME),
    ):
        for path in directory.iterdir() if directory.is_dir() else ():
            named = pattern.fullmatch(path.name)
            if named is None or int(named[1]) in known or path.is_symlink():
                continue
            if path.is_dir() is not (pattern is _LOG_NAME):
                continue
            get_logger().warning(
                "removing what a dropped subscription has left", path=str(path)
            )
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def given_up(directory: Path) -> Path:
    """Where a log is that a re-copy gives up, until it is removed."""
    return directory.with_name(f"{directory.name}.old")


def refuse_dropping(subscription: Subscription) -> None:
    """55000 if a DROP of it has begun."""
    if subscription.dropping:
        raise UsageError(
            f'subscription "{subscription.name}" is being dropped',
            sqlstate="55000",
            hint="A DROP SUBSCRIPTION was interrupted; repeat it.",
        )


def refuse_given_up(subscription: Subscription) -> None:
    """55000 while a re-copy has given up the slot: it has to find what it is making."""
    if subscription.recopying is Recopy.GIVEN_UP:
        raise UsageError(
            f'subscription "{subscription.name}" is being copied again',
            sqlstate="55000",
            hint="Wait until it has a new slot, or end it by SET (slot_name = NONE) and DROP"
            " SUBSCRIPTION.",
        )


def await_workers(
    node: EngineParts, subscription: Subscription, timeout_seconds: float, check: Check
) -> None:
    """Wait until neither the receiver nor the apply worker nor a copy is at work; 55006 if
    they do not end in time."""
    deadline = time.monotonic() + timeout_seconds
    with ProgressFile(node.settings.run_directory, subscription.oid) as progress:
        while (alive := _runs(progress.word("receiver_pid"))) and (
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
    # Nothing of a copy is committed from now on: the caller has written to the catalog why no
    # new one begins.
    left = max(0.0, deadline - time.monotonic())
    if not node.sync.halt(subid=subscription.oid, timeout_seconds=left):
        raise UsageError(
            f'tablesync worker of subscription "{subscription.name}" is busy',
            sqlstate="55006",
            hint="Try again when its present commit is done.",
        )


def end_copies(
    node: EngineParts,
    caller: Caller,
    subscription: Subscription,
    relids: Collection[Oid] | None = None,
) -> None:
    """The same for a command that has taken effect already: it only warns. A command in a block
    takes effect at COMMIT."""
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
                detail="The commit that it has begun may still be made, and no other.",
            )
        )


def _runs(pid: int) -> bool:
    """A receiver that was killed has left its pid behind."""
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
