"""CREATE, ALTER and DROP SUBSCRIPTION.

Takes: parsed statements, who asks, the node. Gives: command tags and notices. Owns: the order of
durable steps on both sides, and what is undone when one of them fails. Never: moves a row.

    create      with the order of its steps; start here
    alter       ENABLE, DISABLE, REFRESH PUBLICATION, SET
    drop        marks, waits for the workers, drops the slot, forgets
    unfinished  what a crash has left of both, cleaned up
    targets     our table for each published one
    publisher   what is asked of the publisher: a connection, publications, slots

Source: subscriptioncmds.c (order, texts, SQLSTATEs); reference 3.3, 3.6; traps.
"""

from wal2lake.frontend.commands.subscription.alter import (
    alter_enabled,
    alter_later,
    alter_refresh,
    alter_set,
)
from wal2lake.frontend.commands.subscription.create import create_subscription
from wal2lake.frontend.commands.subscription.drop import drop_subscription
from wal2lake.frontend.commands.subscription.unfinished import UnfinishedCommands

__all__ = [
    "UnfinishedCommands",
    "alter_enabled",
    "alter_later",
    "alter_refresh",
    "alter_set",
    "create_subscription",
    "drop_subscription",
]
