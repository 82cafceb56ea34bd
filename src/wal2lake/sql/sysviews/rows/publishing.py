"""Rows about the node as a publisher: replication slots and walsenders.

Comes in: the source's slots and walsenders. Goes out: rows as dicts by column name, made for each
query.

Sources: pg_get_replication_slots() in slotfuncs.c; pg_stat_get_wal_senders() in walsender.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Final

from wal2lake.model import DATABASE, DATABASE_OID
from wal2lake.publish.synchronous import Walsender
from wal2lake.sql.sysviews.rows.relations import Row
from wal2lake.sql.sysviews.rows.replication import Moment

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


def pg_replication_slots(moment: Moment) -> Iterator[Row]:
    """Yield all replication slots."""
    for use, room in moment.source.slots():
        slot = use.slot
        # A temporary slot is always active: its session uses it.
        user = use.session or slot.temporary or None
        lost = slot.invalidation is not None
        yield {
            "slot_name": slot.name,
            "plugin": slot.plugin,
            "slot_type": "logical",
            "datoid": DATABASE_OID,
            "database": DATABASE,
            "temporary": bool(slot.temporary),
            "active": user is not None,
            "active_pid": user,
            "restart_lsn": None if lost else int(slot.restart_lsn) or None,
            "confirmed_flush_lsn": int(slot.confirmed_lsn) or None,
            "wal_status": room.wal_status,
            "safe_wal_size": room.safe_bytes,
            "two_phase": slot.two_phase,
            "two_phase_at": slot.two_phase_at,
            "inactive_since": None
            if user is not None
            else datetime.fromtimestamp(use.left_at, UTC),
            "conflicting": False,
            "invalidation_reason": slot.invalidation,
            "failover": slot.failover,
            "synced": False,
        }


def pg_stat_replication_slots(moment: Moment) -> Iterator[Row]:
    """Yield the decoding statistics of each slot."""
    for use, _ in moment.source.slots():
        name = use.slot.name
        statistics = moment.source.slot_statistics.slot(name)
        yield {
            "slot_name": name,
            "spill_txns": 0,
            "spill_count": 0,
            "spill_bytes": 0,
            **asdict(statistics.counts),
            "stats_reset": None
            if statistics.reset_at is None
            else datetime.fromtimestamp(statistics.reset_at, UTC),
        }


def pg_stat_replication(moment: Moment) -> Iterator[Row]:
    """Yield the walsenders that stream now."""
    users = {role.name: role.oid for role in moment.facts.roles}
    sessions = {walsender.pid: walsender for walsender in moment.source.sessions()}
    standbys = moment.source.standbys()
    streaming = [
        Walsender(pid, sessions[pid].application_name, positions)
        for pid, _, positions in moment.source.walsenders()
        if pid in sessions
    ]
    for walsender in streaming:
        pid, positions, session = (
            walsender.pid,
            walsender.positions,
            sessions[walsender.pid],
        )
        yield {
            "pid": pid,
            "usesysid": users.get(session.user),
            "usename": session.user,
            "application_name": session.application_name,
            "client_addr": session.client_host or None,
            "client_port": session.client_port if session.client_host else -1,
            "backend_start": datetime.fromtimestamp(session.started_at, UTC),
            "state": "streaming" if positions.streaming else "catchup",
            "sent_lsn": int(positions.sent) or None,
            "write_lsn": int(positions.write) or None,
            "flush_lsn": int(positions.flush) or None,
            "replay_lsn": int(positions.apply) or None,
            "write_lag": _interval(positions.write_lag_us),
            "flush_lag": _interval(positions.flush_lag_us),
            "replay_lag": _interval(positions.apply_lag_us),
            "sync_priority": 0
            if standbys is None
            else standbys.priority(walsender.application_name),
            "sync_state": "async"
            if standbys is None
            else standbys.state(walsender, streaming),
            "reply_time": _EPOCH + timedelta(microseconds=positions.reply_time)
            if positions.reply_time
            else None,
        }


def _interval(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else timedelta(microseconds=microseconds)


PUBLISHING_ROWS: Final[Mapping[str, Callable[[Moment], Iterator[Row]]]] = {
    maker.__name__: maker
    for maker in (
        pg_replication_slots,
        pg_stat_replication_slots,
        pg_stat_replication,
    )
}
