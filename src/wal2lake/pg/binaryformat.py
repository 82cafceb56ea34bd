"""Whether all that publications have can be received in binary format.

Comes in: a publisher and publications. Goes out: the publisher's types, for the decoders,
or an error that names each column that has none. Asked before a slot is made and before
streaming starts: a value that nobody can decode must not get into the log.

A type without send function is sent as text and is no obstacle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.pg.publisher import Publisher
from wal2lake.pgtypes import NoDecoder, RemoteType, check_decoder

_NAMED: Final = 10
"""Columns that the error lists; further ones are counted."""


def require_binary(
    publisher: Publisher, publications: Sequence[str]
) -> tuple[RemoteType, ...]:
    """The types that are not built in; 0A000 if a published column has no decoder."""
    types = publisher.remote_types()
    by_oid = {int(t.oid): t for t in types}
    refused = []
    for namespace, table, column, oid in publisher.published_types(tuple(publications)):
        try:
            check_decoder(oid, by_oid)
        except NoDecoder as reason:
            refused.append((f'"{column}" of table "{namespace}.{table}"', reason))
    if not refused:
        return types
    shown = [f"Column {column}: {reason.message}." for column, reason in refused]
    if len(shown) > _NAMED:
        shown[_NAMED:] = [f"There are {len(shown) - _NAMED} more."]
    raise FeatureNotSupportedError(
        f"column {refused[0][0]} cannot be received in binary format",
        detail=" ".join(shown),
        hint="Set binary = false for the subscription, or leave the column out of the"
        " publication.",
    )
