"""Rows about the change logs: wal2lake.log, log_segments, log_readers, change_logs.

Comes in: each subscription's reading of its log directory, its floor and the states of its tables.
Goes out: the contents of the log, its size in percent of the limit, and its readers. A reading
lists a directory and reads some manifests, so the views work while the log is large, apply stands
still, or the receiver is down.

The readers (docs/arch/3_changelog.md, Retention):

    reader    needs everything from        and holds
    -------   --------------------------   -------------------------------------------------
    seal      the last segment's end       the journal: what is durable but not yet sealed
    apply     the floor                    segments that some table has not applied
    copy      its snapshot's LSN           the same, of one table that has not joined yet
    paused    the table's position         the same, of a table that is paused
    catch-up  the same                     the same, until the table has caught up
    history   the oldest segment           segments that all tables have applied

A reader needs everything above its LSN, and nothing below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from wal2lake.catalog import PG_READ_ALL_SETTINGS, Subscription
from wal2lake.changelog import Held, check_limit, history_bytes
from wal2lake.model import Lsn, SyncState
from wal2lake.sql.sysviews.rows.relations import Row
from wal2lake.sql.sysviews.rows.replication import Moment
from wal2lake.sql.sysviews.source import LogReading

LISTED: Final = 500
"""Number of the oldest and of the newest segments that ``log_segments`` shows: a log of days has
hundreds of thousands."""

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


def log(moment: Moment) -> Iterator[Row]:
    """Yield a row for each log."""
    settings = moment.source.log_settings
    for sub, reading in _logs(moment):
        contents, size = reading.contents, reading.contents.size
        needed = reading.above(sub.floor)
        edges = reading.facts(contents.numbers[:1] + contents.numbers[-1:])
        limit = settings.size_limit_bytes
        yield {
            "subid": sub.oid,
            "subname": sub.name,
            "segments": len(contents.numbers),
            "segment_bytes": contents.segment_bytes,
            "open_bytes": contents.open_bytes,
            "journal_files": contents.journal_files,
            "journal_bytes": contents.journal_bytes,
            "total_bytes": size.total_bytes,
            "needed_segments": needed.segments,
            "needed_bytes": needed.bytes,
            "first_commit_lsn": edges[0].manifest.first_commit_lsn or None
            if edges
            else None,
            "sealed_lsn": edges[-1].manifest.sealed_lsn if edges else None,
            "applied_lsn": sub.floor or None,
            "history_limit_bytes": history_bytes(settings),
            "size_limit_bytes": limit or None,
            "size_percent": round(100 * size.limited_bytes / limit, 1)
            if limit
            else None,
            "state": check_limit(size, settings).value if limit else None,
        }


def log_segments(moment: Moment) -> Iterator[Row]:
    """Yield the oldest and the newest segments of each log."""
    for sub, reading in _logs(moment):
        numbers = reading.contents.numbers
        if len(numbers) > 2 * LISTED:
            numbers = numbers[:LISTED] + numbers[-LISTED:]
        for segment in reading.facts(numbers):
            manifest = segment.manifest
            yield {
                "subid": sub.oid,
                "subname": sub.name,
                "number": manifest.number,
                "first_commit_lsn": manifest.first_commit_lsn or None,
                "last_commit_lsn": manifest.last_commit_lsn or None,
                "sealed_lsn": manifest.sealed_lsn,
                "transactions": manifest.transactions,
                "rows": sum(file.rows for file in manifest.files),
                "messages": sum(file.messages for file in manifest.messages_files),
                "files": len(manifest.log_files),
                "bytes": segment.bytes,
                "last_commit_time": _EPOCH
                + timedelta(microseconds=manifest.last_commit_time)
                if manifest.transactions
                else None,
                "sealed_at": datetime.fromtimestamp(segment.sealed_at, UTC),
                "applied": manifest.sealed_lsn <= sub.floor,
            }


def log_readers(moment: Moment) -> Iterator[Row]:
    """Yield the readers of each log, with the part that they need."""
    for sub, reading in _logs(moment):
        contents = reading.contents
        needed = reading.above(sub.floor)
        applied = len(contents.numbers) - needed.segments
        edges = reading.facts(contents.numbers[:1] + contents.numbers[-1:])
        sealed = edges[-1].manifest.sealed_lsn if edges else None
        oldest = edges[0].manifest.first_commit_lsn if edges else None

        def row(
            reader: str, lsn: Lsn | None, snapshot: Held, sub: Subscription = sub
        ) -> Row:
            return {
                "subid": sub.oid,
                "subname": sub.name,
                "reader": reader,
                "needed_lsn": lsn or None,
                "segments": snapshot.segments,
                "bytes": snapshot.bytes,
            }

        journal = contents.journal_bytes + contents.open_bytes
        yield row("seal", sealed, Held(0, journal))
        yield row("apply", sub.floor, needed)
        snapshot = moment.source.snapshot_held(sub.oid)
        for rel in moment.state.rels:
            lsn = rel.lsn if rel.state is SyncState.FINISHEDCOPY else None
            if rel.state is SyncState.DATASYNC:
                # A table without a snapshot will get one that is not below the floor.
                is_covered = snapshot is not None and int(rel.relid) in snapshot.relids
                lsn = snapshot.lsn if snapshot is not None and is_covered else sub.floor
            if rel.subid == sub.oid and lsn is not None:
                table = moment.state.tables.get(rel.relid)
                reader_name = "catch-up" if rel.rejoins else "copy"
                yield {
                    **row(
                        "paused" if rel.paused else reader_name, lsn, reading.above(lsn)
                    ),
                    "schemaname": table.namespace if table else rel.remote_namespace,
                    "tablename": table.name if table else rel.remote_name,
                }
        yield row(
            "history",
            oldest if applied else None,
            Held(applied, contents.segment_bytes - needed.bytes),
        )


def change_logs(moment: Moment) -> Iterator[Row]:
    """Yield the logs that can be read as streams. Only members of pg_read_all_settings see the
    directories, as they see data_directory."""
    sees_paths = moment.facts.authority.has_privileges_of(
        moment.role, PG_READ_ALL_SETTINGS
    )

    def shown(path: Path) -> str | None:
        return str(path) if sees_paths else None

    for sub in moment.state.subscriptions:
        yield {
            "subid": sub.oid,
            "subname": sub.name,
            "directory": shown(moment.source.log_directory(sub.oid)),
            "remote_types": sub.remote_types,
        }
    yield {
        "subid": None,
        "subname": None,
        "directory": shown(moment.source.log_directory(None)),
        "remote_types": None,
    }


def _logs(moment: Moment) -> Iterator[tuple[Subscription, LogReading]]:
    """Yield the logs that exist: a subscription that never ran has none."""
    for sub in moment.state.subscriptions:
        reading = moment.source.log(sub.oid)
        if reading is not None:
            yield sub, reading


LOG_ROWS: Final[Mapping[str, Callable[[Moment], Iterator[Row]]]] = {
    maker.__name__: maker for maker in (log, log_segments, log_readers, change_logs)
}
