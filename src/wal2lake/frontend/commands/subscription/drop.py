"""DROP SUBSCRIPTION.

Marks the subscription first, then ends its receiver and worker, drops the slot (the publisher
waits until the walsender has let it go), and forgets it: a crash in between is finished by
repeating DROP. The tables stay, as in PostgreSQL.

Source: DropSubscription() in subscriptioncmds.c.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Final

from wal2lake.catalog import Subscription
from wal2lake.catalog.progress import ProgressFile, progress_path
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.frontend.backend import Notice
from wal2lake.frontend.commands.node import Caller, Node, require_superuser
from wal2lake.frontend.commands.subscription.publisher import drop_slot
from wal2lake.frontend.grammar.statements import DropSubscription
from wal2lake.observe import failpoint

_WORKER_STOP_SECONDS: Final = 30.0
"""How long DROP waits for the receiver and the apply worker to end."""


def drop_subscription(node: Node, caller: Caller, statement: DropSubscription) -> str:
    """DROP SUBSCRIPTION."""
    require_superuser(caller, "drop subscription")
    subscription = node.catalog.subscription_named(statement.name)
    if subscription is None:
        text = f'subscription "{statement.name}" does not exist'
        if not statement.if_exists:
            raise UndefinedObjectError(text)
        caller.notice(Notice(f"{text}, skipping"))
        return "DROP SUBSCRIPTION"
    was_enabled = subscription.enabled
    node.catalog.update_subscription(
        subscription.oid, enabled=False, dropping=True, bump=True
    )
    node.changed()
    try:
        _await_workers(node, subscription)
        if subscription.slot_name is not None:
            drop_slot(caller, subscription)
    except BaseException:
        node.catalog.update_subscription(
            subscription.oid, enabled=was_enabled, dropping=False, bump=True
        )
        node.changed()
        raise
    failpoint("subscription.slot_dropped")
    node.catalog.drop_subscription(subscription.oid)
    shutil.rmtree(
        node.settings.log_directory / str(int(subscription.oid)), ignore_errors=True
    )
    progress_path(node.settings.run_directory, subscription.oid).unlink(missing_ok=True)
    node.changed()
    return "DROP SUBSCRIPTION"


def _await_workers(node: Node, subscription: Subscription) -> None:
    """Wait until neither the receiver nor the apply worker is at work."""
    deadline = time.monotonic() + _WORKER_STOP_SECONDS
    with ProgressFile(node.settings.run_directory, subscription.oid) as progress:
        while (alive := _runs(progress.word("receiver_pid"))) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.02)
        if alive:
            raise UsageError(
                f'walreceiver of subscription "{subscription.name}" does not end',
                sqlstate="55006",
                hint="Try again; see the node's log.",
            )
    if not node.apply.halt(subscription.oid, max(0.0, deadline - time.monotonic())):
        raise UsageError(
            f'apply worker of subscription "{subscription.name}" is busy',
            sqlstate="55006",
            hint="Try again when its present batch is done.",
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
