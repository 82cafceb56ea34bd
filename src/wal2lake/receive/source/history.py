"""Checks that the source is the same, with at least the history that is logged here.

Called at every connect, before START_REPLICATION. A different system identifier, a position below
the logged or copied one, or a timeline that branched off before that position means that changes
logged here never happened at the source. That raises an error with a remedy; changes are never
skipped silently.

Source: DESIGN 6; PostgreSQL manual, 26.3.6 (timelines), TIMELINE_HISTORY in 54.4.
"""

from __future__ import annotations

from wal2lake.errors import PublisherError, Retry
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.pg import Identity

_REMEDY = (
    "Connect to the original server or its promoted standby. Or take this one as the new"
    " source: ALTER SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true) copies every"
    " table from it."
)


class DivergedHistory(PublisherError):
    """Raised if the source differs, or has lost transactions that are logged here."""

    sqlstate = "55000"
    retry = Retry.NEVER


def check_history(
    now: Identity,
    *,
    known_system: str | None,
    known_timeline: int | None,
    logged: Lsn,
    timeline_history: str | None,
    copied: Lsn = INVALID_LSN,
    stayed: bool = False,
) -> None:
    """Raise DivergedHistory unless the log can be continued from ``now``.

    ``copied``: highest position of a snapshot that a table was copied at. A copy may be ahead of
    the log, because it does not wait for standbys as the stream of a failover slot does.
    ``timeline_history``: the present timeline's history file, needed only if the timeline has
    changed. ``stayed``: the server is the one that streamed last and has run since. If it is a
    standby promoted meanwhile, it went on sending, so logged changes above the switch are its own.
    """
    if known_system is None or known_timeline is None:
        return
    if now.system_identifier != known_system:
        raise DivergedHistory(
            "publisher has a different system identifier"
            f" ({now.system_identifier}) than the one subscribed to ({known_system})",
            hint=_REMEDY,
        )
    needed = max(logged, copied)
    verb = "received" if needed == logged else "copied"
    if now.position < needed:
        raise DivergedHistory(
            f"publisher's history ends at {now.position}, before {needed}, which has"
            f" been {verb} from it",
            detail="It may be a lagging standby, or restored from a backup.",
            hint=_REMEDY,
        )
    if now.timeline == known_timeline or stayed:
        return
    switch = switch_point(timeline_history or "", known_timeline)
    if switch is None or switch < needed:
        raise DivergedHistory(
            f"publisher is on timeline {now.timeline}, which left timeline"
            f" {known_timeline} at {switch or 'an unknown position'}, before {needed},"
            f" which has been {verb}",
            hint=_REMEDY,
        )


def switch_point(history: str, timeline: int) -> Lsn | None:
    """Return the position at which a timeline history file says that ``timeline`` ended."""
    for line in history.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == str(timeline):
            return Lsn.parse(fields[1])
    return None
