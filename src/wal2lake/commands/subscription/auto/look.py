"""One look of auto_refresh at a publisher, and what it changes here.

In: a subscription whose turn the caller holds, a session at its publisher. Out: the errors that
keep tables from joining or being copied again; everything else has taken effect. The steps:

    ask which publications exist, how tables are        nothing durable
      published, and for a position
    tables leave, or wait for a copy that replaces      ONE catalog transaction, with the rows of
      their rows; how tables are published is             schema_history
      recorded
    tables join, together, or one by one if one of      as REFRESH PUBLICATION: files and catalog
      them cannot                                         entry of each table, then ONE transaction

A crash between two steps leaves the later ones to the next look, which finds the same differences.
Tables that were created and not recorded are empty, and taken over.

A publication that does not exist publishes nothing, but nobody has said that its tables leave:
it may have been dropped by mistake, or be made anew by a tool. So no table leaves then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from wal2lake.apply.local.histories import finish_all
from wal2lake.catalog import LookedAt, SchemaChange, Subscription
from wal2lake.commands.subscription.auto.changes import (
    Changes,
    decide,
    vanished_partitions,
)
from wal2lake.commands.subscription.refresh import JoiningTables, join_tables
from wal2lake.commands.subscription.steps.drop import end_copies
from wal2lake.commands.subscription.steps.recopy import check_recopy
from wal2lake.errors import PublisherError, UndefinedObjectError, Wal2LakeError
from wal2lake.local.node import Caller
from wal2lake.local.ports import SubscriptionCommands
from wal2lake.model import Lsn, Oid
from wal2lake.observe import failpoint
from wal2lake.pg import Publisher, Session
from wal2lake.pg.publications import (
    PublishedState,
    published_states,
    relations_that_exist,
)

_CONNECTION_ERRORS: Final = "08"
"""SQLSTATE class: the session is of no more use."""


def look(
    node: SubscriptionCommands,
    caller: Caller,
    subscription: Subscription,
    session: Session,
) -> tuple[Wal2LakeError, ...]:
    """Make the subscription's tables those that are published now. Returns the errors of what
    could not be done, and is tried again by the next look.

    The caller has the privileges of the subscription's owner. Raises PublisherError if the
    publisher cannot be asked."""
    publisher = Publisher(session)
    errors: list[Wal2LakeError] = []
    names = subscription.publications
    missing = sorted(set(names) - publisher.existing_publications(names))
    states = published_states(session, names)
    lsn = publisher.position()
    rels = node.catalog.rels(subscription.oid)
    gone = vanished_partitions(rels, states)
    changes = decide(
        rels,
        states,
        follows=subscription.follows_schema,
        existing=relations_that_exist(session, gone),
    )
    if missing:
        errors.append(_missing(missing))
        changes = replace(changes, leaving={})
    changes, refused = _without_refused(node, subscription, changes)
    errors += refused
    _record_present(node, caller, subscription, changes, lsn)
    joining = {(state.namespace, state.name): state for state in changes.joining}
    if joining:
        errors += _join(node, caller, subscription, publisher, joining, lsn)
    return tuple(errors)


def _missing(names: Sequence[str]) -> UndefinedObjectError:
    shown = ", ".join(f'"{name}"' for name in names)
    is_one = len(names) == 1
    return UndefinedObjectError(
        f"publication {shown} does not exist"
        if is_one
        else f"publications {shown} do not exist",
        sqlstate="42704",
        detail="Its tables stay in the subscription, and get no changes."
        if is_one
        else "Their tables stay in the subscription, and get no changes.",
        hint="Create it on the publisher: its tables are then copied again. Or leave it out:"
        " ALTER SUBSCRIPTION ... DROP PUBLICATION.",
    )


def _without_refused(
    node: SubscriptionCommands, subscription: Subscription, changes: Changes
) -> tuple[Changes, list[Wal2LakeError]]:
    """Leave out the tables that must not be copied again, and return the reasons. The next look
    compares them with the same state as this one."""
    errors: list[Wal2LakeError] = []
    again, seen = dict(changes.again), dict(changes.seen)
    for relid in changes.again:
        try:
            check_recopy(node, subscription, [relid])
        except Wal2LakeError as error:
            errors.append(error)
            del again[relid]
            seen.pop(relid, None)
    return replace(changes, again=again, seen=seen), errors


def _record_present(
    node: SubscriptionCommands,
    caller: Caller,
    subscription: Subscription,
    changes: Changes,
    lsn: Lsn,
) -> None:
    """Record what concerns tables of the subscription."""
    if not (changes.leaving or changes.again or changes.noted or changes.seen):
        return
    subid = subscription.oid
    with node.locks.of(subid):
        # A DROP TABLE may have taken tables out meanwhile.
        present = {rel.relid for rel in node.catalog.rels(subid)}
        noted: dict[Oid, Sequence[SchemaChange]] = {
            relid: [change]
            for found in (changes.leaving, changes.again, changes.noted)
            for relid, change in found.items()
            if relid in present
        }
        finish_all(node.catalog, node.tables, subid, changes.leaving.keys())
        node.catalog.set_publications(
            subid,
            subscription.publications,
            removed=present & changes.leaving.keys(),
            looked=LookedAt(
                lsn,
                seen_as={relid: s.as_json() for relid, s in changes.seen.items()},
                copied_again=present & changes.again.keys(),
                noted=noted,
            ),
        )
    failpoint("auto_refresh.recorded")
    ended = [*changes.leaving, *changes.again]
    if ended:
        node.changed()
        end_copies(node, caller, subscription, ended)


def _join(
    node: SubscriptionCommands,
    caller: Caller,
    subscription: Subscription,
    publisher: Publisher,
    joining: Mapping[tuple[str, str], PublishedState],
    lsn: Lsn,
) -> list[Wal2LakeError]:
    """Add tables to the subscription. Returns the errors of those that cannot join."""
    seen_as = {name: state.as_json() for name, state in joining.items()}
    try:
        join_tables(node, caller, subscription, publisher, JoiningTables(seen_as, lsn))
    except Wal2LakeError as error:
        if _is_broken(error):
            raise
        if len(seen_as) == 1:
            return [error]
    else:
        return []
    errors: list[Wal2LakeError] = []
    for name, text in seen_as.items():
        try:
            join_tables(
                node, caller, subscription, publisher, JoiningTables({name: text}, lsn)
            )
        except Wal2LakeError as error:
            if _is_broken(error):
                raise
            errors.append(error)
    return errors


def _is_broken(error: Wal2LakeError) -> bool:
    """Return whether the publisher cannot be asked any more."""
    return isinstance(error, PublisherError) and (error.sqlstate or "").startswith(
        _CONNECTION_ERRORS
    )
