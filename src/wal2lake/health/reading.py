"""Collects the facts of a node from its files, in any process, whether the node runs or not.

    wal2lake.pid, run/status.json ──┐
    catalog.sqlite ─────────────────┤
    run/sub-<oid>.progress, .times ─┼──▶ FactReader.read ──▶ NodeFacts
    run/telemetry/*.json ───────────┤
    log/, /proc, file systems ──────┘

Nothing is created, locked or waited for. Keep the reader: what is expensive (the catalog's rows,
the sizes of sealed files, the certificate) is remembered until it changes. Called by: the command
line, the web process, the engine's views.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from wal2lake.catalog import (
    CatalogReader,
    Overview,
    Progress,
    Subscription,
    WorkerKind,
    read_progress,
)
from wal2lake.catalog.mapped.committimes import CommitTimes
from wal2lake.errors import ConfigurationError
from wal2lake.health.collecting.changes import LastChanges
from wal2lake.health.collecting.lag import (
    FirstAfter,
    LagClock,
    from_microseconds,
    stage_positions,
)
from wal2lake.health.collecting.publisher import (
    published_lsn,
    slot_facts,
    walsender_facts,
)
from wal2lake.health.collecting.reports import ReportReader, Reports
from wal2lake.health.collecting.surroundings import (
    CertificateEnd,
    LogSizes,
    RegisteredFile,
    child_named,
    disks,
    rss_bytes,
)
from wal2lake.health.collecting.tables import KnownTables, table_facts
from wal2lake.health.facts import (
    NodeFacts,
    PreparedTransactionFacts,
    ProcessFacts,
    SourceFacts,
    SubscriptionFacts,
)
from wal2lake.launch import (
    LockFacts,
    NodeStatus,
    WebStatus,
    is_locked,
    read_lock,
    read_status,
    read_web_status,
    status_written_at,
)
from wal2lake.model import Lsn
from wal2lake.observe.telemetry import ProcessTelemetry
from wal2lake.settings import FILE_NAME, Settings, load


class FactReader:
    """Reads the facts of one node. Safe for all threads, one at a time."""

    def __init__(self, node: Settings | Path) -> None:
        """``node``: the settings of a process that has read them, or the node's directory, whose
        settings are read then."""
        self._settings_error: str | None = None
        self._settings_file: tuple[int, int, int] | None = None
        if isinstance(node, Path):
            node = self._load(node)
        self._settings = node
        self._catalog = CatalogReader(node.catalog_file)
        self._reports = ReportReader(node.run_directory)
        self._logs = LogSizes()
        self._certificate = CertificateEnd()
        self._registered, self._mirrored = RegisteredFile(), RegisteredFile()
        self._changes = LastChanges()
        self._tables = KnownTables()
        self._lock = threading.Lock()

    def _load(self, directory: Path) -> Settings:
        try:
            return load(directory, os.environ)
        except ConfigurationError as error:
            # A node that runs has read an earlier file.
            self._settings_error = error.message
            return Settings(directory=directory.absolute())

    def reload(self, settings: Settings) -> None:
        """Use new settings from now on."""
        with self._lock:
            self._settings = settings
            self._settings_error = None

    def read(self, now: datetime | None = None) -> NodeFacts:
        """Return the facts of this moment.

        Raises ConfigurationError if the directory is no node's, is another user's, or belongs to
        another version; StorageError if the catalog cannot be read."""
        with self._lock:
            return self._read(now or datetime.now(UTC))

    def read_reports(self) -> tuple[ProcessTelemetry, ...]:
        """Return what the processes of the node have measured, as last read; files that have
        changed since are read again."""
        with self._lock:
            return self._reports.read().processes

    def close(self) -> None:
        """Close the catalog."""
        with self._lock:
            self._catalog.close()

    def _read(self, now: datetime) -> NodeFacts:
        settings = self._settings
        self._check_settings_file()
        locked = is_locked(settings.directory)
        lock = read_lock(settings.directory) if locked else None
        status = read_status(settings.run_directory) if lock else None
        if status is not None and lock is not None:
            # With another pid, the file is from an earlier start.
            status = status if status.supervisor_pid == lock.pid else None
        overview, reports = self._catalog.read(), self._reports.read()
        subscriptions = tuple(
            self._subscription(subscription, overview, status, reports, now)
            for subscription in overview.subscriptions
        )
        unfinished_since = self._unfinished_since(overview, now)
        self._changes.end_round()
        self._tables.end_round()
        self._logs.keep(_log_directory(settings, s) for s in overview.subscriptions)
        web = _web(settings, status)
        state = "stopped" if not locked else "starting" if lock is None else lock.state
        running = reports.is_engine_running()
        return NodeFacts(
            taken_at=now,
            directory=str(settings.directory),
            state=state,
            version=None if status is None else status.version,
            pid=None if lock is None else lock.pid,
            address=None if lock is None or not lock.port else lock.address,
            port=None if lock is None or not lock.port else lock.port,
            started_at=None if lock is None else _time(lock.started_at),
            processes=_processes(lock, status),
            disks=disks(settings),
            certificate_ends=self._certificate.read(settings),
            heap_bytes=reports.whole("jvm_heap_used_bytes") if running else None,
            heap_limit_bytes=reports.whole("jvm_heap_limit_bytes") if running else None,
            engine_told_at=reports.engine_told_at,
            subscriptions=subscriptions,
            slots=tuple(slot_facts(overview, reports, settings.publish)),
            walsenders=tuple(walsender_facts(reports)),
            published_lsn=published_lsn(reports),
            prepared=tuple(
                PreparedTransactionFacts(
                    prepared.gid, from_microseconds(prepared.prepared_at)
                )
                for prepared in overview.prepared
            ),
            stopped_at=None if locked else _stopped_at(settings, reports),
            unfinished_commits=overview.local_commits,
            unfinished_since=unfinished_since,
            web_urls=() if web is None else web.urls,
            web_error=None if web is None else web.error,
            settings_error=self._settings_error,
            registered=self._registered.read(settings.registered_file),
            mirrored=self._mirrored.read(settings.iceberg_registered_file),
        )

    def _check_settings_file(self) -> None:
        """Note whether the next start could read wal2lake.toml, whenever it has changed."""
        directory = self._settings.directory
        try:
            status = (directory / FILE_NAME).stat()
        except OSError:
            return
        seen = status.st_ino, status.st_mtime_ns, status.st_size
        if seen == self._settings_file:
            return
        self._settings_file = seen
        try:
            load(directory, os.environ)
        except ConfigurationError as error:
            self._settings_error = error.message
        else:
            self._settings_error = None

    def _unfinished_since(self, overview: Overview, now: datetime) -> datetime | None:
        oldest = overview.oldest_local_commit
        since = self._changes.since("local commit", oldest, now)
        return None if oldest is None else since

    def _subscription(
        self,
        subscription: Subscription,
        overview: Overview,
        status: NodeStatus | None,
        reports: Reports,
        now: datetime,
    ) -> SubscriptionFacts:
        settings, oid = self._settings, subscription.oid
        progress = read_progress(settings.run_directory, oid)
        vector = overview.vectors.get(oid)
        receiver = _receiver_pid(status, subscription)
        errors = _errors(overview, subscription)
        connected = receiver is not None and WorkerKind.RECEIVER.value not in errors
        last_message = _last_message(progress)
        source = _source(reports, subscription)
        positions = stage_positions(subscription, progress, vector, source.wal_lsn)
        silent: float | None = 0.0
        if not connected:
            silent = (
                None if last_message is None else (now - last_message).total_seconds()
            )
        with _commit_times(settings, subscription) as first_after:
            clock = LagClock(positions, first_after, now, silent)
            received, durable, applied, visible = clock.stages()
            tables = tuple(
                table_facts(
                    subscription,
                    overview,
                    clock,
                    reports,
                    self._changes,
                    self._tables,
                    now,
                )
            )
        of_copy = next((table for table in tables if table.error is not None), None)
        limit = settings.log.size_limit_bytes or None
        failing = bool(errors) or of_copy is not None
        if of_copy is not None and of_copy.error is not None:
            errors[WorkerKind.COPY.value] = (of_copy.error, of_copy.sqlstate, None)
        return SubscriptionFacts(
            oid=oid,
            name=subscription.name,
            enabled=subscription.enabled,
            state=_state(subscription, receiver, failing=failing),
            receiver_pid=receiver,
            publications=subscription.publications,
            received=received,
            durable=durable,
            applied=applied,
            visible=visible,
            source=source,
            last_message_at=last_message,
            log_bytes=self._logs.measure(_log_directory(settings, subscription)),
            log_limit_bytes=limit,
            log_warning_bytes=None
            if limit is None
            else limit * settings.log.size_warning_percent // 100,
            errors=errors,
            error_counts=_error_counts(overview, subscription),
            conflicts=_conflicts(overview, subscription),
            tables=tables,
            disable_on_error=subscription.disable_on_error,
            value_policies=subscription.value_policies,
            connected=connected,
        )


@contextmanager
def _commit_times(
    settings: Settings, subscription: Subscription
) -> Iterator[FirstAfter]:
    times = CommitTimes.open_reader(settings.run_directory, subscription.oid)
    if times is None:
        yield lambda lsn: None
        return
    with times:
        yield times.first_after


def _source(reports: Reports, subscription: Subscription) -> SourceFacts:
    """Return what the receiver has last heard of the source about our slot."""
    name = subscription.name
    active = reports.gauge("source_slot_active", subscription=name)
    return SourceFacts(
        asked_at=reports.time("source_asked_timestamp_seconds", subscription=name),
        wal_lsn=Lsn(reports.whole("source_wal_lsn", subscription=name) or 0),
        slot_name=subscription.slot_name,
        slot_active=None if active is None else bool(active),
        wal_status=reports.state("source_slot_wal_status", "status", subscription=name),
        retained_bytes=reports.whole("source_slot_retained_bytes", subscription=name),
        safe_wal_bytes=reports.whole("source_slot_safe_wal_bytes", subscription=name),
        limit_bytes=reports.whole("source_slot_limit_bytes", subscription=name),
    )


def _log_directory(settings: Settings, subscription: Subscription) -> Path:
    return settings.log_directory / str(int(subscription.oid))


def _processes(
    lock: LockFacts | None, status: NodeStatus | None
) -> tuple[ProcessFacts, ...]:
    if lock is None or status is None:
        return ()
    started = _time(lock.started_at)
    processes = [
        ProcessFacts("supervisor", lock.pid, started, 0, None, rss_bytes(lock.pid))
    ]
    if status.guardian_pid:
        processes.append(
            ProcessFacts(
                "guardian",
                status.guardian_pid,
                started,
                0,
                None,
                rss_bytes(status.guardian_pid),
            )
        )
    for worker in status.workers:
        processes.append(
            ProcessFacts(
                worker.role,
                worker.pid,
                _time(worker.started_at),
                worker.starts - 1,
                worker.subscription or None,
                rss_bytes(worker.pid),
            )
        )
        jvm = child_named(worker.pid, "java") if worker.role == "engine" else None
        if jvm is not None:
            began = _time(worker.started_at)
            processes.append(ProcessFacts("jvm", jvm, began, 0, None, rss_bytes(jvm)))
    return tuple(processes)


def _stopped_at(settings: Settings, reports: Reports) -> datetime | None:
    """Return the last sign of life of the node's processes."""
    written = status_written_at(settings.run_directory)
    signs = (reports.engine_told_at, None if written is None else _time(written))
    return max((sign for sign in signs if sign is not None), default=None)


def _web(settings: Settings, status: NodeStatus | None) -> WebStatus | None:
    """Return what the running web process has written."""
    web = read_web_status(settings.run_directory)
    workers = () if status is None else status.workers
    running = {worker.pid for worker in workers if worker.role == "web"}
    return web if web is not None and web.pid in running else None


def _receiver_pid(status: NodeStatus | None, subscription: Subscription) -> int | None:
    workers = () if status is None else status.workers
    return next(
        (
            w.pid
            for w in workers
            if w.role == "receiver" and w.subid == subscription.oid
        ),
        None,
    )


def _errors(
    overview: Overview, subscription: Subscription
) -> dict[str, tuple[str, str | None, datetime | None]]:
    """Return errors by worker, the newest one last."""
    noted = overview.errors.get(subscription.oid, ())
    return {
        error.worker.value: (
            error.error,
            error.sqlstate,
            datetime.fromisoformat(error.noted_at),
        )
        for error in sorted(noted, key=lambda error: error.noted_at)
    }


def _error_counts(overview: Overview, subscription: Subscription) -> Mapping[str, int]:
    stats = overview.stats.get(subscription.oid)
    if stats is None:
        return {}
    return {
        WorkerKind.APPLY.value: stats.apply_errors,
        WorkerKind.COPY.value: stats.sync_errors,
    }


def _conflicts(overview: Overview, subscription: Subscription) -> Mapping[str, int]:
    stats = overview.stats.get(subscription.oid)
    counts = {} if stats is None else stats.conflicts
    return Counter({kind.value: count for kind, count in counts.items() if count})


def _last_message(progress: Progress | None) -> datetime | None:
    if progress is None or not progress.last_msg_receipt_time:
        return None
    return from_microseconds(progress.last_msg_receipt_time)


def _state(subscription: Subscription, receiver: int | None, *, failing: bool) -> str:
    if not subscription.enabled:
        return "disabled"
    if receiver is not None:
        return "retrying" if failing else "streaming"
    return "down" if subscription.slot_name is not None else "no slot"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
