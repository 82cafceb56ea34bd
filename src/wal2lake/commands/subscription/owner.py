"""Privileges and ownership of subscriptions, and ALTER SUBSCRIPTION ... OWNER TO.

Takes statements, and the caller of the other commands; returns the subscription, or raises
PostgreSQL's error.

A subscription connects from the node's machine as the node's OS user. The owner must not borrow
access from that (trust, peer, a .pgpass). An owner who is no superuser therefore has to give a
password in the connection string, and the publisher has to ask for it. Only a superuser can set
password_required = false, and only a superuser can change such a subscription afterwards.

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
    need_subscription,
)
from wal2lake.local.ports import Definitions, HasCatalog
from wal2lake.pg import check_no_program, check_password_given
from wal2lake.sql.grammar import SubscriptionOptions
from wal2lake.sql.grammar.statements import AlterSubscriptionOwner

_COMMAND: Final = "ALTER SUBSCRIPTION"


def check_may_create(
    node: HasCatalog, caller: Caller, options: SubscriptionOptions
) -> None:
    """Check membership in pg_create_subscription, CREATE on the database, password_required."""
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
    node: HasCatalog, caller: Caller, name: str, *, connects: bool = True
) -> Subscription:
    """Return the subscription if the caller may change it.

    ``connects`` is False for COMMENT and DROP, to which password_required does not apply."""
    subscription = need_subscription(node, name)
    check_may_change(node, caller, subscription, connects=connects)
    return subscription


@contextmanager
def altering(
    node: Definitions, caller: Caller, name: str, *, connects: bool = True
) -> Iterator[Subscription]:
    """Yield the subscription, which no other command changes meanwhile.

    The permission is checked before the wait for the turn and again within, since the name may
    belong to another subscription by then. Source: AlterSubscription() (LockSharedObject)."""
    while True:
        candidate = owned_subscription(node, caller, name, connects=connects)
        with caller.turn(node.turns.altering, candidate.oid):
            subscription = owned_subscription(node, caller, name, connects=connects)
            if subscription.oid == candidate.oid:
                yield subscription
                return


def check_may_change(
    node: HasCatalog,
    caller: Caller,
    subscription: Subscription,
    *,
    connects: bool = True,
) -> None:
    """Raise 42501 unless the caller has the owner's privileges."""
    check_owner(node, caller, "subscription", subscription.name, subscription.owner)
    if connects and not subscription.password_required and not caller.role.superuser:
        raise _superuser_only()


def check_set_password_required(caller: Caller, options: SubscriptionOptions) -> None:
    """Check that only a superuser executes SET (password_required = false)."""
    is_set = "password_required" in options.stated
    if is_set and not options.password_required and not caller.role.superuser:
        raise _superuser_only()


def check_conninfo(
    caller: Caller, conninfo: str, *, owner_is_superuser: bool, password_required: bool
) -> bool:
    """Return whether connections must use a password; 2F003 if the string lacks it then.

    Only a superuser may name a program that prints the password, since it runs as the node's OS
    user: a member of a superuser's role may not."""
    if not caller.role.superuser:
        check_no_program(conninfo)
    must_use_password = password_required and not owner_is_superuser
    if must_use_password:
        check_password_given(conninfo)
    return must_use_password


def alter_owner(
    node: Definitions, caller: Caller, statement: AlterSubscriptionOwner
) -> str:
    """ALTER SUBSCRIPTION ... OWNER TO.

    The workers restart, because the new owner determines their privileges and passwords."""
    present = need_subscription(node, statement.name)
    if (
        need_role(node.catalog.authority(), caller, statement.owner).oid
        == present.owner
    ):
        # PostgreSQL allows this to everybody.
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
