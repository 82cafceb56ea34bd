"""Privileges and ownership of subscriptions, and ALTER SUBSCRIPTION ... OWNER TO. OWNER TO.

In: statements, and for the other commands the caller. Out: the subscription, or PostgreSQL's
refusal.

A subscription connects from the node's machine and as the node's OS user. So that its owner borrows
nothing of that (trust, peer, a .pgpass), one who is no superuser has to give a password in the
connection string, and the publisher has to ask for it; only a superuser can say
password_required = false, and only he changes such a subscription afterwards.

Source: CreateSubscription(), AlterSubscription(), DropSubscription() and
AlterSubscriptionOwner_internal() in subscriptioncmds.c, PostgreSQL 18.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wal2lake.catalog import PG_CREATE_SUBSCRIPTION, Subscription
from wal2lake.commands.roles.names import (
    check_can_set_role,
    denied,
    need_role,
)
from wal2lake.errors import UsageError
from wal2lake.local.access import check_database_create, check_owner
from wal2lake.local.node import (
    PERMISSION_DENIED,
    Caller,
    EngineParts,
    need_subscription,
)
from wal2lake.pg import check_password_given
from wal2lake.sql.grammar import SubscriptionOptions
from wal2lake.sql.grammar.statements import AlterSubscriptionOwner

_COMMAND: Final = "ALTER SUBSCRIPTION"


def check_may_create(
    node: EngineParts, caller: Caller, options: SubscriptionOptions
) -> None:
    """Membership in pg_create_subscription, CREATE on the database; password_required."""
    if caller.role.superuser:
        return
    authority = node.catalog.authority()
    if not authority.has_privileges_of(caller.role.oid, PG_CREATE_SUBSCRIPTION):
        raise denied(
            "create subscription",
            'Only roles with privileges of the "pg_create_subscription" role may create'
            " subscriptions.",
        )
    check_database_create(node, caller)
    if not options.password_required:
        raise _superuser_only()


def owned_subscription(
    node: EngineParts, caller: Caller, name: str, *, connects: bool = True
) -> Subscription:
    """One that the caller may change. Not ``connects``: COMMENT and DROP, which are free of
    password_required."""
    subscription = need_subscription(node, name)
    check_may_change(node, caller, subscription, connects=connects)
    return subscription


@contextmanager
def altering(
    node: EngineParts, caller: Caller, name: str, *, connects: bool = True
) -> Iterator[Subscription]:
    """The same, which no other command changes meanwhile. Asked before the turn is waited for,
    and again within: it may be another's by then. Source: AlterSubscription()
    (LockSharedObject)."""
    while True:
        named = owned_subscription(node, caller, name, connects=connects)
        with caller.turn(node.turns.altering, named.oid):
            found = owned_subscription(node, caller, name, connects=connects)
            if found.oid == named.oid:
                yield found
                return


def check_may_change(
    node: EngineParts,
    caller: Caller,
    subscription: Subscription,
    *,
    connects: bool = True,
) -> None:
    """42501 unless the caller has the owner's privileges."""
    check_owner(node, caller, "subscription", subscription.name, subscription.owner)
    if connects and not subscription.password_required and not caller.role.superuser:
        raise _superuser_only()


def check_set_password_required(caller: Caller, options: SubscriptionOptions) -> None:
    """SET (password_required = false)."""
    given = "password_required" in options.stated
    if given and not options.password_required and not caller.role.superuser:
        raise _superuser_only()


def check_conninfo(
    conninfo: str, *, owner_is_superuser: bool, password_required: bool
) -> bool:
    """Whether connections must use a password; 2F003 if the string has none then."""
    must_use_password = password_required and not owner_is_superuser
    if must_use_password:
        check_password_given(conninfo)
    return must_use_password


def alter_owner(
    node: EngineParts, caller: Caller, statement: AlterSubscriptionOwner
) -> str:
    """ALTER SUBSCRIPTION ... OWNER TO. Its workers start again: their privileges, and the
    password that they must use, are the new owner's."""
    now = need_subscription(node, statement.name)
    if need_role(node.catalog.authority(), caller, statement.owner).oid == now.owner:
        # As in PostgreSQL anybody may say so.
        return _COMMAND
    with altering(node, caller, statement.name) as subscription, node.ddl_lock:
        authority = node.catalog.authority()
        owner = need_role(authority, caller, statement.owner)
        check_can_set_role(authority, caller, owner)
        check_database_create(node, caller)
        node.catalog.update_subscription(subscription.oid, owner=owner.oid, bump=True)
        node.changed()
    return _COMMAND


def _superuser_only() -> UsageError:
    return UsageError(
        "password_required=false is superuser-only",
        sqlstate=PERMISSION_DENIED,
        hint="Subscriptions with the password_required option set to false may only be"
        " created or modified by the superuser.",
    )
