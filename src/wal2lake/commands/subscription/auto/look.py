"""One look of auto_refresh at a publisher, and what it changes here.

In: a subscription whose turn the caller holds, a session at its publisher, the fingerprint of its
publications. Out: the errors that keep tables from joining or being copied again; everything else
has taken effect. The steps:

    ask which publications exist, how tables are        nothing durable
      published, and for a position; again if the
      fingerprint has changed meanwhile
    tables leave, or wait for a copy that replaces      ONE catalog transaction, with the rows of
      their rows; how tables are published is             schema_history
      recorded
    tables join, together, or one by one if one of      as REFRESH PUBLICATION: files and catalog
      them cannot                                         entry of each table, then ONE transaction

A crash between two steps leaves the later ones to the next look, which finds the same differences.
Tables that were created and not recorded are empty, and taken over.

The questions are several queries, and a snapshot would not make them one: the functions of the
publisher that list published tables read its catalogs as they are at the moment. So answers count
only if the fingerprint, which has the OIDs of publications and of their entries, is the same before
and behind them. Otherwise a publication that is dropped and made anew could seem to exist and to be
empty, and all its tables would leave.

A publication that does not exist publishes nothing, but nobody has said that its tables leave:
it may have been dropped by mistake, or be made anew by a tool. So no table leaves then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wal2lake.apply.local.histories import finish_all
from wal2lake.catalog import LookedAt, SchemaChange, Subscription, SubscriptionRel
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
    publication_fingerprint,
    published_states,
    relations_that_exist,
)

_ATTEMPTS: Final = 5
"""Rounds of questions, which take milliseconds, until the look is put off."""

_CONNECTION_ERRORS: Final = "08"
"""SQLSTATE class: the session is of no more use."""


def look(
    node: SubscriptionCommands,
    caller: Caller,
    subscription: Subscription,
    session: Session,
    fingerprint: str,
) -> tuple[Wal2LakeError, ...]:
    """Make the subscription's tables those that are published now. Returns the errors of what
    could not be done, and is tried again by the next look.

    The caller has the privileges of the subscription's owner. Raises PublisherError if the
    publisher cannot be asked, or if its publications change all the time."""
    errors: list[Wal2LakeError] = []
    rels = node.catalog.rels(subscription.oid)
    published = ask(session, subscription.publications, rels, fingerprint)
    changes = decide(
        rels,
        published.states,
        follows=subscription.follows_schema,
        existing=published.existing,
    )
    if published.missing:
        errors.append(_missing(published.missing))
        changes = replace(changes, leaving={})
    changes, refused = _without_refused(node, subscription, changes)
    errors += refused
    _record_present(node, caller, subscription, changes, published.lsn)
    joining = {(state.namespace, state.name): state for state in changes.joining}
    if joining:
        publisher = Publisher(session)
        errors += _join(node, caller, subscription, publisher, joining, published.lsn)
    return tuple(errors)


@dataclass(frozen=True, slots=True)
class Answers:
    """The publisher's answers, all of them true at one moment."""

    missing: Sequence[str]
    """Publications that do not exist."""
    states: Sequence[PublishedState]
    lsn: Lsn
    """A position at which the states were true."""
    existing: Collection[int]
    """Relations that exist, of the partitions that the states do not have any more."""


def ask(
    session: Session,
    names: tuple[str, ...],
    rels: Sequence[SubscriptionRel],
    fingerprint: str,
) -> Answers:
    """Ask how tables are published. ``fingerprint``: asked before. Raises PublisherError if the
    publications change during each attempt."""
    publisher = Publisher(session)
    for _ in range(_ATTEMPTS):
        present = publisher.existing_publications(names)
        states = published_states(session, names)
        lsn = publisher.position()
        existing = relations_that_exist(session, vanished_partitions(rels, states))
        before, fingerprint = fingerprint, publication_fingerprint(session, names)
        if fingerprint == before:
            return Answers(sorted(set(names) - present), states, lsn, existing)
    raise PublisherError(
        "the publications have changed during each look at them",
        sqlstate="40001",
        hint="The next look follows by itself.",
    )


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
            for changed in (changes.leaving, changes.again, changes.noted)
            for relid, change in changed.items()
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
