"""A start of a node, as it is written down where only one node may write.

In: facts that the supervisor knows about itself. Out: JSON for the environment of its processes,
for the lock of a warehouse in a directory and for the lease of one in an object store; the sentence
that tells the next node who is there.

A holder has a token of its own start, since a copy of a node's directory has the node's identity,
too. ``is_dead_for`` says when a holder is known to have ended: another start in the same directory
of the same running machine holds that directory's lock, which a node has until its last process has
ended.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Final

HOLDER: Final = "WAL2LAKE_HOLDER"
"""Environment variable by which the supervisor says to its processes who it is."""


@dataclass(frozen=True, slots=True)
class WarehouseHolder:
    """A start of a node that holds a warehouse."""

    node: str
    """The node's system identifier."""
    token: str
    """A random text, of this start alone."""
    boot: str
    """The kernel's identity since the machine's last boot; empty if it has none."""
    inode: str
    """Device and inode of the node's directory."""
    directory: str
    """Path of the directory, for people."""
    host: str
    """The machine's name, for people."""
    pid: int
    """The supervisor's process, for people."""
    since: str
    """Time of the start by the machine's clock, ISO 8601, for people."""

    def is_dead_for(self, other: WarehouseHolder) -> bool:
        """Whether this start has ended for certain, as ``other``, which runs, is a later one in the
        same directory of the same running machine."""
        return (
            bool(self.boot)
            and (self.node, self.boot, self.inode)
            == (other.node, other.boot, other.inode)
            and self.token != other.token
        )

    def describe(self) -> str:
        """Return a sentence for the DETAIL of an error."""
        return (
            f'The node in directory "{self.directory}" on host "{self.host}" (PID {self.pid},'
            f" system identifier {self.node}) has it since {self.since}."
        )

    def render(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> WarehouseHolder:
        """Read what ``render`` wrote; ValueError if it is something else."""
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("no object of JSON")
        try:
            values = {field.name: document[field.name] for field in fields(cls)}
        except KeyError as error:
            raise ValueError(f"no {error}") from error
        if not isinstance(values["pid"], int) or not all(
            isinstance(value, str) for name, value in values.items() if name != "pid"
        ):
            raise ValueError("a value of another type")
        return cls(**values)
