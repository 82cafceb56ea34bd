"""CREATE, ALTER, DROP and COMMENT ON SUBSCRIPTION.

Takes: parsed statements, the caller, the node. Gives: command tags and notices. Owns: the order of
durable steps on both sides, and what is undone when a step fails. Never: moves a row.

    create       CREATE, with the order of its steps; start here
    alter        ENABLE, DISABLE, CONNECTION, SET, SKIP, RENAME TO
    refresh      REFRESH PUBLICATION; SET, ADD, DROP PUBLICATION
    owner        who may own and change a subscription; OWNER TO
    slotoptions  the options that the publisher's slot has, too: two_phase, failover
    comment      COMMENT ON SUBSCRIPTION
    blocks       commands that may not run inside BEGIN ... COMMIT
    steps/       DROP, the re-copy, and their completion after a crash
    auto/        auto_refresh: tables that join and leave without a command
    targets      the local table of each published table
    publisher    connections, queries and slots at the publisher

Source: subscriptioncmds.c (order, texts, SQLSTATEs); reference 3.3, 3.6; traps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from wal2lake.commands.subscription.alter import (
    alter_connection,
    alter_enabled,
    alter_rename,
    alter_set,
    alter_skip,
)
from wal2lake.commands.subscription.auto import AutoRefresh
from wal2lake.commands.subscription.blocks import block_not_supported
from wal2lake.commands.subscription.comment import comment_on_subscription
from wal2lake.commands.subscription.create import create_subscription
from wal2lake.commands.subscription.owner import alter_owner
from wal2lake.commands.subscription.refresh import (
    alter_publication,
    alter_refresh,
)
from wal2lake.commands.subscription.steps.drop import (
    drop_subscription,
    remove_orphans,
)
from wal2lake.commands.subscription.steps.unfinished import UnfinishedCommands
from wal2lake.local.node import Caller, EngineParts
from wal2lake.sql.grammar.statements import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionOwner,
    AlterSubscriptionPublication,
    AlterSubscriptionRefresh,
    AlterSubscriptionRename,
    AlterSubscriptionSet,
    AlterSubscriptionSkip,
    CommentOnSubscription,
    CreateSubscription,
    DropSubscription,
)

COMMANDS: Final[Mapping[type, Callable[[EngineParts, Caller, Any], str]]] = {
    CreateSubscription: create_subscription,
    AlterSubscriptionEnabled: alter_enabled,
    AlterSubscriptionConnection: alter_connection,
    AlterSubscriptionRefresh: alter_refresh,
    AlterSubscriptionPublication: alter_publication,
    AlterSubscriptionSet: alter_set,
    AlterSubscriptionSkip: alter_skip,
    AlterSubscriptionRename: alter_rename,
    AlterSubscriptionOwner: alter_owner,
    DropSubscription: drop_subscription,
    CommentOnSubscription: comment_on_subscription,
}
"""Commands by statement. A command refuses a transaction block if PostgreSQL does (``blocks``)."""

__all__ = [
    "COMMANDS",
    "AutoRefresh",
    "UnfinishedCommands",
    "block_not_supported",
    "remove_orphans",
]
