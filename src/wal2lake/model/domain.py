"""A type of the publisher that is another type under a name of its own (CREATE DOMAIN)."""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.model.lsn import Oid


@dataclass(frozen=True, slots=True)
class Domain:
    """Facts kept about a domain whose columns have its base type: the name that users call it by,
    and its type at the publisher."""

    name: str
    """``schema.name``."""
    type_oid: Oid
    """The base type, below any number of domains."""
    typmod: int = -1
    """The base type's, which the lowest domain has."""
