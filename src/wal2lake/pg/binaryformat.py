"""Checks whether every published column can be received in binary format.

In: a publisher and publications. Out: the publisher's types, for the decoders, and each
column that is an obstacle, because the binary form of its type says less than its text.
pgoutput has one format for all columns: with a single obstacle the stream is requested as
text (docs/decisions/0007). CREATE SUBSCRIPTION runs the check to warn the user; the
worker runs it before streaming starts.

A type without a send function is sent as text and is no obstacle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.pg.publisher import Publisher
from wal2lake.pgtypes import NoDecoder, RemoteType, check_decoder

_NAMED: Final = 10
"""Columns that a message lists; the rest are counted."""


@dataclass(frozen=True, slots=True)
class PublishedFormats:
    """The publisher's types, and the columns that rule out the binary format."""

    types: tuple[RemoteType, ...]
    """All types that are not built in, and money."""
    obstacles: tuple[str, ...]
    """A sentence for each published column whose type has no decoder."""


def published_formats(
    publisher: Publisher, publications: Sequence[str]
) -> PublishedFormats:
    """Look for a binary decoder for every published column."""
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
    """Return a sentence that names the column and the reason."""
    return f'Column "{column}" of table "{namespace}.{table}": {reason.message}.'


def list_obstacles(obstacles: Sequence[str]) -> str:
    """Join the sentences for a message; beyond 10 obstacles the rest are counted."""
    shown = list(obstacles[:_NAMED])
    if len(obstacles) > _NAMED:
        shown.append(f"There are {len(obstacles) - _NAMED} more.")
    return " ".join(shown)
