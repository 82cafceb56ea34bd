"""Whether all that publications have can be received in binary format.

Comes in: a publisher and publications. Goes out: the publisher's types, for the decoders,
and each column that stands in the way, because the binary form of its type does not say
what its text says. pgoutput knows no format of single columns: one such column, and the
stream is asked for as text (docs/decisions/0007). Asked when a subscription is made, to
tell the user, and before streaming starts.

A type without send function is sent as text and is no obstacle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.pg.publisher import Publisher
from wal2lake.pgtypes import NoDecoder, RemoteType, check_decoder

_NAMED: Final = 10
"""Columns that a message lists; further ones are counted."""


@dataclass(frozen=True, slots=True)
class PublishedFormats:
    """A publisher's answer about the types that it would send in binary."""

    types: tuple[RemoteType, ...]
    """Types that are not built in, and money."""
    obstacles: tuple[str, ...]
    """A sentence for each published column whose type has no decoder."""


def published_formats(
    publisher: Publisher, publications: Sequence[str]
) -> PublishedFormats:
    """The types, and whether every published column has a decoder."""
    types = publisher.remote_types()
    by_oid = {int(t.oid): t for t in types}
    obstacles = []
    for namespace, table, column, oid in publisher.published_types(tuple(publications)):
        try:
            check_decoder(oid, by_oid)
        except NoDecoder as reason:
            obstacles.append(obstacle(namespace, table, column, reason))
    return PublishedFormats(types, tuple(obstacles))


def obstacle(namespace: str, table: str, column: str, reason: NoDecoder) -> str:
    """One column that stands in the way, and why."""
    return f'Column "{column}" of table "{namespace}.{table}": {reason.message}.'


def list_obstacles(obstacles: Sequence[str]) -> str:
    """For a message: all of them, if they are not too many."""
    shown = list(obstacles[:_NAMED])
    if len(obstacles) > _NAMED:
        shown.append(f"There are {len(obstacles) - _NAMED} more.")
    return " ".join(shown)
