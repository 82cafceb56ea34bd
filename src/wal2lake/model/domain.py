"""Domains of the publisher (CREATE DOMAIN)."""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.model.lsn import Oid


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain's name and base type. Lake columns of the domain have the base type."""

    name: str
    """``schema.name``."""
    type_oid: Oid
    """The base type, below any number of domains."""
    typmod: int = -1
    """Type modifier of the base type, as the lowest domain declares it."""
