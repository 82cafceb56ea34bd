"""The lease as it is stored, and the rule by which a node may take it. Pure.

In: the bytes of the lease's object, the start that wants it, the object's age by the store's clock.
Out: what its claim is worth.

    the object says                                  claim
    ---------------------------------------------    -----------------------------------------
    nothing: there is none                           TAKE
    it was given up                                  TAKE
    the same start (an engine that was restarted)    TAKE, the generation stays
    an earlier start in the same directory of the    TAKE: the directory's lock says that it
      same running machine                             has ended, by whatever signal
    any, and it has not been renewed in time         TAKE
    the same node, somewhere else                    WAIT until it is too old, or renewed
    another node                                     REFUSE

A node that was moved to another machine after it was killed is the same node somewhere else, and so
is a copy of a directory whose original runs. Only time tells these apart: the original renews.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import ConfigurationError, Retry, StorageError
from wal2lake.model import WarehouseHolder

KEY: Final = "_wal2lake/lease"
"""The object's name below the warehouse. Not the name of a schema: a leading underscore of one is
encoded."""

LEASE_PROOF: Final = f"{KEY}-probe-"
"""Begin of the names of objects by which the store's clock and conditions are tried."""

CLOCK_SECONDS: Final = 2.0
"""Most by which two times of one store differ from what was meant: S3's have whole seconds."""


class LeaseLost(StorageError):
    """Another node has taken the warehouse (55006). Nothing was written.

    The process ends, and its next start may find the warehouse free, so no subscription is disabled
    because of it."""

    sqlstate = "55006"
    retry = Retry.LATER


class WarehouseInUse(ConfigurationError):
    """Another node has the warehouse (55006)."""

    sqlstate = "55006"


class Claim(Enum):
    """Whether a start may take the lease."""

    TAKE = "nobody else has it"
    WAIT = "the same node may have it, somewhere else"
    REFUSE = "another node has it"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Content of the lease's object."""

    holder: WarehouseHolder
    generation: int
    """Number of takings so far: each has a greater one than all before."""
    number: int
    """Number of writings in this generation, so that no two have the same content."""
    seconds: float
    """Time for which the lease is valid after each writing."""
    is_released: bool = False
    """Whether the holder has given it up."""

    def render(self) -> bytes:
        """Return the object's content, a line for programs and people."""
        content = {
            "generation": self.generation,
            "number": self.number,
            "seconds": self.seconds,
            "released": self.is_released,
            "holder": json.loads(self.holder.render()),
        }
        return json.dumps(content).encode() + b"\n"


def parse_lease(content: bytes, place: str) -> LeaseRecord:
    """Read an object's content. StorageError (XX001) if it is something else."""
    try:
        fields = json.loads(content)
        return LeaseRecord(
            WarehouseHolder.parse(json.dumps(fields["holder"])),
            int(fields["generation"]),
            int(fields["number"]),
            float(fields["seconds"]),
            bool(fields["released"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f'could not read the lease of the warehouse "{place}"',
            sqlstate="XX001",
            detail="Its content is not what a node has written.",
            hint="Make sure that no node uses the warehouse, remove this object, and start"
            " the node again.",
        ) from error


def is_free_for(record: LeaseRecord, start: WarehouseHolder) -> bool:
    """Whether a start may take the lease whatever its age is."""
    return (
        record.is_released
        or record.holder.token == start.token
        or record.holder.is_dead_for(start)
    )


def judge(record: LeaseRecord, start: WarehouseHolder, age: float) -> Claim:
    """Say whether a start may take the lease. ``age``: seconds since its last writing, by the
    store's clock."""
    if is_free_for(record, start) or age >= record.seconds + CLOCK_SECONDS:
        return Claim.TAKE
    if record.holder.node == start.node:
        return Claim.WAIT
    return Claim.REFUSE
