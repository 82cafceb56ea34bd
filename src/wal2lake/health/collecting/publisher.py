"""Facts about the publisher half: slots and walsenders.

In: the catalog's slots, the engine's last report, settings. Out: ``SlotFacts``,
``WalsenderFacts``. While the engine is down no slot is in use.
"""

from __future__ import annotations

from collections.abc import Iterator

from wal2lake.catalog import KnownSlot, Overview
from wal2lake.health.collecting.reports import Reports
from wal2lake.health.facts import SlotFacts, WalsenderFacts
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.settings import PublishSettings


def slot_facts(
    overview: Overview, reports: Reports, settings: PublishSettings
) -> Iterator[SlotFacts]:
    """Yield the facts of all slots, by name."""
    keep, running = settings.max_slot_wal_keep_size, reports.is_engine_running()
    for slot in overview.slots:
        name = slot.name
        yield SlotFacts(
            name=name,
            plugin=slot.plugin,
            active_pid=reports.whole("slot_active_pid", slot=name) if running else None,
            confirmed_lsn=slot.confirmed_lsn,
            retained_bytes=_retained(slot, reports),
            wal_status="lost"
            if slot.invalidation is not None
            else reports.state("slot_wal_status", "status", slot=name) or "reserved",
            limit_bytes=None if keep < 0 else keep << 20,
            temporary=slot.temporary,
            invalidation=slot.invalidation,
        )


def _retained(slot: KnownSlot, reports: Reports) -> int:
    """Return the bytes of the log that the slot holds back."""
    if slot.invalidation is not None or not slot.restart_lsn:
        return 0
    # The catalog may be newer than the report.
    end = published_lsn(reports)
    return max(0, int(end) - int(slot.restart_lsn))


def published_lsn(reports: Reports) -> Lsn:
    """Return the end of the publisher's log, as it was reported."""
    end = reports.whole("published_lsn")
    return INVALID_LSN if end is None else Lsn(end)


def walsender_facts(reports: Reports) -> Iterator[WalsenderFacts]:
    """Yield the connected walsenders."""
    if not reports.is_engine_running():
        return
    for labels, _ in reports.gauges("walsender_state"):
        pid = labels["pid"]
        sent, flushed, replayed = (
            Lsn(reports.whole(f"walsender_{name}_lsn", pid=pid) or 0)
            for name in ("sent", "flush", "replay")
        )
        yield WalsenderFacts(
            pid=int(pid),
            application_name=labels.get("application_name", ""),
            client=labels.get("client", ""),
            slot_name=labels.get("slot") or None,
            state=labels.get("state", ""),
            sent_lsn=sent,
            flushed_lsn=flushed,
            replayed_lsn=replayed,
        )
