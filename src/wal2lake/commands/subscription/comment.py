"""COMMENT ON SUBSCRIPTION.

Takes a statement; returns the command tag. The text is stored in the catalog. pg_description and
obj_description() show it.

Source: CommentObject() in comment.c.
"""

from __future__ import annotations

from wal2lake.catalog import SUBSCRIPTION_CATALOG
from wal2lake.commands.subscription.owner import owned_subscription
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasCatalog
from wal2lake.sql.grammar.statements import CommentOnSubscription


def comment_on_subscription(
    node: HasCatalog, caller: Caller, statement: CommentOnSubscription
) -> str:
    """COMMENT ON SUBSCRIPTION; NULL and an empty text remove the comment."""
    subscription = owned_subscription(node, caller, statement.name, connects=False)
    node.catalog.set_comment(SUBSCRIPTION_CATALOG, subscription.oid, statement.text)
    return "COMMENT"
