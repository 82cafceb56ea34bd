"""Parts of the engine's publisher half that commands and functions use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wal2lake.publish.capture.requests import Point
from wal2lake.publish.capture.statementchanges import Statements
from wal2lake.publish.capture.worker import Capture
from wal2lake.publish.sending import ClientPublications, Warn
from wal2lake.publish.slots import SlotManager
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.synchronous import CommitWaits
from wal2lake.publish.walsender.starting import Walsenders


@dataclass(frozen=True, slots=True)
class Publishing:
    """The publisher half's parts, shared by all sessions."""

    system_identifier: int
    capture: Capture
    statements: Statements
    slots: SlotManager
    walsenders: Walsenders
    commits: CommitWaits
    statistics: Statistics
    catalog_path: str
    warehouse: str
    log_directory: str
    allowed: Callable[[], tuple[str, ...]]
    """output_plugin_libraries."""
    locations: Callable[[Point], Mapping[str, int]]
    """Returns the versions of a state, by the tables' locations."""
    export: Callable[[Point, int], str]
    """Returns a snapshot name for a state, valid until ``withdraw`` of the session."""
    withdraw: Callable[[int], None]
    """Ends the snapshots that a session has exported. They cannot be imported any more."""
    publications: Callable[[Warn], ClientPublications]
    """Returns the publications of one decoding."""
