"""A type of the publisher that is another type under a name of its own (CREATE DOMAIN)."""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.model.lsn import Oid


@dataclass(frozen=True, slots=True)
class Domain:
    """What stays of a domain once its columns are those of its base type: the name by which
    users may mean them, and the type that they have at the publisher."""

    name: str
    """``schema.name``."""
    type_oid: Oid
    """The base type, below any number of domains."""
    typmod: int = -1
    """The base type's, which the lowest domain has."""
