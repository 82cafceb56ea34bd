"""Copies the tables of one group, from their descriptions to state f.

In: attempts of one subscription under one snapshot. Out: one commit per table, and its state; or
the attempt's error. A large table is a group of its own and has several readers. Small tables are
grouped, so that they share connections, Spark tasks and catalog transactions. An error of one table
does not affect the others.

    resume   a commit before a crash             is found by the table's cursor
    plan     columns, ranges, finished ranges
    begin    plans and the S of their commits    ONE catalog transaction
    heal     tables that are healed: differing rows and cursor S in ONE commit (``healing``); those
             that cannot be healed go on
    read     bundles of ranges, a Spark task each; finished ranges are recorded; a value that does
             not fit may change its column to text, and the copy begins anew (``widening``)
    commit   per table: check keys of the copied rows, and of the existing rows;
             then ONE commit, all files, cursor S
    finish   d -> f                              ONE catalog transaction

After *begin* the catalog has the S that a commit may have (``lsn`` of a table in d), and the floor
does not pass that S. So if the commit is found after a crash, under any snapshot, the log still has
the changes after S. An attempt that certainly did not commit clears the S.

Called by ``worker``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from wal2lake.apply.local.keptrows import kept_by_copy
from wal2lake.apply.schema.follow import SchemaFollower, TableAlteration
from wal2lake.apply.schema.marks import check_sent, check_table
from wal2lake.apply.schema.samekeys import keeps_apart
from wal2lake.catalog import Catalog, CopyRange, TableDef
from wal2lake.catalog.access.targets import INSERT, TRUNCATE
from wal2lake.errors import ApplyError, PublisherError, Wal2LakeError
from wal2lake.lake import (
    AddedFile,
    CommitConflict,
    Cursor,
    Executors,
    FieldSpec,
    Pool,
    TablePort,
    TableState,
    files_from_json,
    files_to_json,
)
from wal2lake.lake.batch import BatchPort
from wal2lake.lake.delta import discard_added
from wal2lake.lake.staging import (
    NO_DEFAULTS,
    ColumnDefaults,
    ConversionRules,
    Fill,
    Fills,
    decodes_whole_in_binary,
    have_sequences,
    incompatible_columns,
)
from wal2lake.model import Lsn
from wal2lake.observe import failpoint, get_logger
from wal2lake.observe.telemetry import Telemetry
from wal2lake.pg import RemoteTable
from wal2lake.pgtypes import (
    COMPUTED_HERE,
    RemoteTypes,
    ValuePolicies,
    remote_types_from_json,
)
from wal2lake.settings import Settings
from wal2lake.tablesync.attempt import Attempt, Halted, SnapshotGone
from wal2lake.tablesync.copy import (
    CopyResult,
    CopyTask,
    Misfit,
    copy_ranges,
    count_ranges,
)
from wal2lake.tablesync.healing import HealedTable, Healer
from wal2lake.tablesync.measures import CopyMeasures
from wal2lake.tablesync.plan import (
    CopyPart,
    PageRange,
    bundles,
    copies_in_binary,
    copy_statement,
    count_statement,
    decode_plan,
    encode_plan,
    page_ranges,
    range_bytes,
    table_bytes,
)
from wal2lake.tablesync.recording import CopyHistory, CopyRecorder
from wal2lake.tablesync.turns import RangePool
from wal2lake.tablesync.unaltered import PlannedTable
from wal2lake.tablesync.widening import Widening

A = TypeVar("A")
R = TypeVar("R")

_ROW_GROUP_BYTES: Final = 32 << 20
"""Arrow bytes per row group. One range holds about twice as much in memory."""

_TIMES_SECOND: Final = 5
"""Number of times that another writer (another subscription's copy or batch) may commit first,
before the copy fails and waits for its next turn. Chosen arbitrarily."""

_AT_ONCE: Final = 4
"""Tables of a group that are planned or committed at the same time, so that the driver's work for
one table overlaps with the waits of another."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A table whose copy is running."""

    attempt: Attempt
    table: TableDef
    remote: RemoteTable
    state: TableState
    cursor: Cursor
    ranges: tuple[PageRange, ...]
    fills: Fills
    """Defaults, evaluated once for the table, because its copy is one transaction."""
    finished: set[int] = field(default_factory=set)
    """Numbers of the ranges that are recorded. For measurements only."""


class GroupCopy:
    """Copies groups. Thread-safe; each call of ``copy`` is one group."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        tables: TablePort,
        batches: BatchPort,
        executors: Executors,
        readers: int,
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
        telemetry: Telemetry | None = None,
    ) -> None:
        """``readers``: number of ranges read at once, over all groups."""
        self._alter = alter
        self._defaults = defaults
        self._catalog = catalog
        self._settings = settings
        self._port = tables
        self._executors = executors
        self._readers = readers
        self.max_lock_wait_ms = settings.subscription.max_lock_wait_ms
        """The setting, as last reloaded."""
        self._pool = RangePool(readers)
        self._widening = Widening(catalog, tables, alter)
        self._measures = CopyMeasures(telemetry or Telemetry())
        self._healer = Healer(catalog, settings, tables, batches, defaults)
        self._recorder = CopyRecorder(catalog, tables, executors, readers)
        self._events = get_logger()

    def wake(self) -> None:
        """Make waiting groups check for ended attempts."""
        self._pool.wake()

    def stop(self) -> None:
        """Start no more ranges."""
        self._pool.stop()

    def copy(self, attempts: Sequence[Attempt]) -> None:
        """Copy tables until each is in state f, has an ``error``, or is ended from outside.

        Raises SnapshotGone, and errors that concern the whole group.
        """
        plans = _each(self._guarded_plan, attempts)
        planned = [plan for plan in plans if plan is not None]
        followed = [p for p in planned if p.attempt.subscription.follows_schema]
        if followed:
            self._catalog.start_following(
                followed[0].attempt.subscription.oid,
                {plan.table.oid: plan.remote.schema for plan in followed},
                followed[0].attempt.snapshot.lsn,
            )
        if planned:
            self._catalog.begin_copies([plan.attempt.rel for plan in planned])
        for plan in planned:
            self._log_progress(plan.attempt, "started")
        try:
            self._copy(planned)
        finally:
            for plan in planned:
                name = plan.attempt.subscription.name
                self._measures.ended(name, [plan.table])

    def _copy(self, planned: Sequence[_Planned]) -> None:
        _each(self._guarded_heal, planned)
        planned = [p for p in planned if not (p.attempt.over or p.attempt.finished)]
        self._read(planned)
        planned = [plan for plan in planned if not plan.attempt.over]
        self._check_snapshot(planned)
        _each(self._guarded_commit, planned)
        self._finish([plan.attempt for plan in planned if not plan.attempt.over])

    # ---- before the first row ---------------------------------------------------------

    def _guarded_plan(self, attempt: Attempt) -> _Planned | None:
        """Plan a copy. Return None if it is already done, or has failed."""
        try:
            return self._plan(attempt)
        except Exception as error:
            attempt.fail(error)
        return None

    def _plan(self, attempt: Attempt) -> _Planned | None:
        rel, snapshot = attempt.rel, attempt.snapshot
        table = self._catalog.table_by_oid(rel.relid)
        if table is None:
            raise Halted
        rights = self._catalog.target_rights(attempt.subscription)
        denied = rights.denied(table, INSERT + TRUNCATE if rel.replaces else INSERT)
        if denied is not None:
            raise denied
        state = self._port.state(table.location)
        name = rel.cursor_name(self._catalog.system_identifier)
        done = state.cursor(name)
        if done is not None:
            # Committed before a crash, but not recorded in the catalog. The cursor is that
            # commit's S, which may belong to an earlier snapshot.
            attempt.may_be_committed = True
            self._port.sync(table.location, state.version)
            attempt.rel = replace(rel, lsn=Lsn(done))
            self._finish([attempt])
            return None
        attempt.may_be_committed = False
        remote = attempt.remote
        if remote is None:
            raise PublisherError(
                f'table "{attempt.name}" not found on publisher', sqlstate="42P01"
            )
        if attempt.subscription.follows_schema:
            follower = SchemaFollower(self._catalog, rel.subid, self._alter)
            if follower.adopt_for_copy(
                attempt.subscription, rel, table, remote.schema, snapshot.lsn
            ):
                # The copy begins anew.
                raise Halted
        _check_columns(table, remote)
        if attempt.subscription.keeps_deleted:
            check_sent(table.qualified, (c.name for c in remote.columns))
            check_table(table)
        ranges = decode_plan(rel.copy_plan, snapshot.identity) or page_ranges(
            remote,
            range_bytes=self._settings.subscription.copy_range_bytes,
            min_ranges=self._readers,
        )
        attempt.rel = replace(
            rel,
            lsn=snapshot.lsn,
            copy_plan=encode_plan(snapshot.identity, ranges),
            rows_expected=remote.estimated_rows,
            copied_from=remote.oid,
            published_as=remote.published_as,
            # The publication may have changed since CREATE or REFRESH, or since the snapshot.
            trusted=rel.trusted and remote.published_since and not remote.row_filters,
        )
        cursor = Cursor(name, int(snapshot.lsn))
        copied = {c.name for c in remote.columns}
        fills = self._defaults(
            table.oid, [c.name for c in table.columns if c.name not in copied]
        )
        return _Planned(attempt, table, remote, state, cursor, ranges, fills)

    def _finished(self, attempt: Attempt) -> dict[int, CopyRange]:
        """Return the finished ranges of this copy. Ranges of other snapshots or epochs are void."""
        rel = attempt.rel
        return {
            copied.number: copied
            for copied in self._catalog.ranges(rel.subid, rel.relid)
            if copied.snapshot == attempt.snapshot.identity
            and copied.epoch == rel.epoch
        }

    # ---- differing rows only ---------------------------------------------------------

    def _guarded_heal(self, plan: _Planned) -> None:
        """Heal a table, if it shall and can be."""
        if not plan.attempt.rel.heals:
            return
        task = self._task(plan, CopyPart(0, PageRange(0, None, None), None))
        try:
            self._check_snapshot([plan])
            self._check_alone(plan)
            table = HealedTable(plan.attempt, plan.table, plan.remote, plan.cursor)
            if self._healer.heal(table, task, partial(self._committing, plan)):
                self._finish([plan.attempt])
        except Exception as error:
            plan.attempt.fail(error)

    @contextmanager
    def _committing(self, plan: _Planned) -> Iterator[None]:
        """Surround the commit that ends a copy. Raises Halted if it is not wanted any more."""
        attempt = plan.attempt
        with attempt.writing(), self._port.writing(plan.table.location):
            if not self._is_wanted(attempt):
                raise Halted
            attempt.may_be_committed = True
            try:
                yield
            except Exception:
                attempt.may_be_committed = self._may_be_there(plan)
                raise

    # ---- reading ----------------------------------------------------------------------

    def _read(self, planned: Sequence[_Planned]) -> None:
        parts = []
        for number, plan in enumerate(planned):
            finished = self._finished(plan.attempt)
            plan.finished.update(finished)
            self._measures.begun(
                plan.attempt.subscription.name,
                plan.table,
                rows=plan.remote.estimated_rows,
                size=table_bytes(plan.remote),
                ranges=len(plan.ranges),
                finished=len(finished),
            )
            parts += [
                CopyPart(number, pages, range_bytes(plan.remote, pages))
                for pages in plan.ranges
                if pages.number not in finished
            ]
        if not parts:
            return
        self._pool.run(
            planned[0].attempt.subscription.oid,
            [
                partial(self._read_bundle, planned, bundle)
                for bundle in bundles(parts, readers=self._readers)
            ],
            lambda: all(plan.attempt.over for plan in planned),
        )

    def _read_bundle(
        self, planned: Sequence[_Planned], bundle: Sequence[CopyPart]
    ) -> None:
        """Read a bundle in one Spark task. An error of one table ends only its attempt."""
        for attempt in {planned[part.table].attempt for part in bundle}:
            if not self._is_wanted(attempt):
                attempt.fail(Halted())
        unread = [part for part in bundle if not planned[part.table].attempt.over]
        if not unread:
            return
        self._check_snapshot([planned[unread[0].table]])
        tasks = self._numbered([self._task(planned[p.table], p) for p in unread])
        results = self._executors.run(Pool.SYNC, copy_ranges, tuple(tasks))
        done = []
        for part, result in zip(unread, results, strict=True):
            attempt = planned[part.table].attempt
            if isinstance(result, Misfit):
                attempt.fail(
                    self._widening.widen(attempt, planned[part.table].remote, result)
                )
            elif isinstance(result, Wal2LakeError):
                # The keeper ends sessions whose result is void.
                attempt.fail(result if self._is_wanted(attempt) else Halted())
            elif not attempt.over:
                attempt.received()
                done.append(
                    CopyRange(
                        attempt.rel.subid,
                        attempt.rel.relid,
                        attempt.rel.epoch,
                        attempt.snapshot.identity,
                        part.pages.number,
                        result.rows,
                        files_to_json(result.files),
                        result.coercions,
                    )
                )
        self._catalog.record_ranges(done)
        for part, result in zip(unread, results, strict=True):
            if isinstance(result, CopyResult):
                self._count(planned[part.table], part, result)
        failpoint("copy.range_recorded")

    def _count(self, plan: _Planned, part: CopyPart, result: CopyResult) -> None:
        if plan.attempt.over:
            return
        plan.finished.add(part.pages.number)
        self._measures.received(
            plan.attempt.subscription.name,
            plan.table,
            rows=result.rows,
            size=sum(file.size for file in result.files),
            coercions=result.coercions,
            finished=len(plan.finished),
        )

    def _numbered(self, tasks: list[CopyTask]) -> list[CopyTask]:
        """Reserve values of sequences for the rows of each task. If the copy fails, the values are
        lost."""
        numbered = [i for i, task in enumerate(tasks) if have_sequences(task.fills)]
        if not numbered:
            return tasks
        counts = self._executors.run(
            Pool.SYNC, count_ranges, tuple(tasks[i] for i in numbered)
        )
        for i, count in zip(numbered, counts, strict=True):
            fills = tasks[i].fills
            if isinstance(count, PublisherError):
                error = Fill(error=(count.sqlstate, count.message))
                fills = {n: error if f.sequence else f for n, f in fills.items()}
            else:
                fills = self._defaults.numbered(fills, count)
            tasks[i] = replace(tasks[i], fills=fills)
        return tasks

    def _task(self, plan: _Planned, part: CopyPart) -> CopyTask:
        attempt, remote = plan.attempt, plan.remote
        subscription = attempt.subscription
        types: RemoteTypes = {}
        if subscription.binary:
            types = remote_types_from_json(subscription.remote_types)
        binary = copies_in_binary(remote, types) and (
            subscription.binary
            or _is_faster_in_binary(remote, plan.state.fields, types)
        )
        return CopyTask(
            conninfo=subscription.conninfo,
            application_name=(
                f"pg_{subscription.oid}_sync_{attempt.rel.relid}"
                f"_{self._catalog.system_identifier}"
            ),
            snapshot=attempt.snapshot.snapshot,
            statement=copy_statement(remote, part.pages, binary=binary),
            columns=tuple(c.name for c in remote.columns),
            location=plan.state.location,
            fields=plan.state.fields,
            physical_fields=plan.state.physical_fields,
            row_group_bytes=_ROW_GROUP_BYTES,
            table=plan.table.name,
            key=plan.table.key,
            binary_types=tuple(c.type_oid for c in remote.columns) if binary else None,
            types=types,
            namespace=remote.namespace,
            column_types=tuple((c.type_oid, c.typmod) for c in remote.columns),
            lsn=attempt.snapshot.lsn,
            must_use_password=self._catalog.must_use_password(subscription),
            fills=plan.fills,
            source=PlannedTable.of(remote),
            mark=self._catalog.sync_name(subscription.oid),
            max_lock_wait_ms=self.max_lock_wait_ms,
            counting=count_statement(remote, part.pages),
            shows_rows=self._settings.apply.log_conflict_values,
            rules=ConversionRules(
                ValuePolicies.parse(subscription.value_policies),
                frozenset(c.name for c in plan.table.columns if c.not_null),
                frozenset(plan.table.key),
                self._settings.apply.max_value_bytes,
                subscription.follows_schema,
                plan.table.checks,
                plan.table.generated,
            ),
        )

    def _check_snapshot(self, planned: Sequence[_Planned]) -> None:
        """Raise SnapshotGone if the catalog has another snapshot, or none."""
        for plan in planned[:1]:
            attempt = plan.attempt
            held = self._catalog.snapshot_held(attempt.subscription.oid)
            if held is None or held.identity != attempt.snapshot.identity:
                raise SnapshotGone

    # ---- after the last row -------------------------------------------------------------

    def _guarded_commit(self, plan: _Planned) -> None:
        try:
            self._commit(plan)
        except Exception as error:
            plan.attempt.fail(error)

    def _commit(self, plan: _Planned) -> None:
        attempt = plan.attempt
        finished = self._finished(attempt)
        if set(finished) != {pages.number for pages in plan.ranges}:
            # The node stops, so the remaining ranges were not read.
            raise Halted
        files = [f for c in finished.values() for f in files_from_json(c.files)]
        self._check_unique(plan, files)
        history = self._recorder.write(
            attempt.subscription, attempt.rel, plan.table, files, plan.cursor
        )
        for _ in range(_TIMES_SECOND):
            try:
                self._commit_files(plan, files, history)
            except CommitConflict:
                # Another writer has committed rows. The next check finds their keys.
                if attempt.rel.replaces:
                    raise
            else:
                return
        self._commit_files(plan, files, history)

    def _commit_files(
        self, plan: _Planned, files: Sequence[AddedFile], history: CopyHistory | None
    ) -> None:
        attempt = plan.attempt
        if not attempt.rel.replaces:
            self._commit_checked(
                plan, files, history, self._check_keys(plan.table, files)
            )
            return
        version = self._check_alone(plan)
        kept: Sequence[AddedFile] = ()
        if attempt.subscription.keeps_deleted:
            spill = str(self._settings.run_directory / "kept")
            kept = kept_by_copy(self._port, plan.table, files, version, spill)
        try:
            self._commit_checked(plan, [*files, *kept], history, version)
        except BaseException:
            if not attempt.may_be_committed:
                discard_added(plan.table.location, kept)
            raise

    def _commit_checked(
        self,
        plan: _Planned,
        files: Sequence[AddedFile],
        history: CopyHistory | None,
        version: int | None,
    ) -> None:
        """Commit the files on the version that was checked."""
        attempt = plan.attempt
        with self._committing(plan):
            state = self._port.state(plan.table.location)
            if state.physical_fields != plan.state.physical_fields:
                raise ApplyError(
                    f'table "{plan.table.qualified}" has been altered while it was copied',
                    sqlstate="55000",
                    hint="The copy begins anew by itself.",
                )
            if history is not None:
                self._recorder.expect(history)
            self._port.commit_files(
                plan.table.location,
                files,
                plan.cursor,
                read_version=version,
                replace=attempt.rel.replaces,
                operation="COPY",
            )
            failpoint("copy.committed")
        if history is not None:
            self._recorder.commit(history)

    def _is_wanted(self, attempt: Attempt) -> bool:
        """Whether the copy is still valid: it is void if the copy has begun anew."""
        rel = attempt.rel
        return self._catalog.epoch(rel.subid, rel.relid) == rel.epoch

    def _may_be_there(self, plan: _Planned) -> bool:
        """Whether a commit that ended with an error may have succeeded. Until that is known, the
        floor waits for it, and the publisher's snapshot is held."""
        try:
            state = self._port.state(plan.table.location)
        except Exception:
            return True
        return state.cursor(plan.cursor.app_id) is not None

    def _check_alone(self, plan: _Planned) -> int | None:
        """Check that only this subscription fills the table. Return the version whose rows to
        replace."""
        version = self._port.state(plan.table.location).version
        rel = plan.attempt.rel
        subids = {r.subid for r in self._catalog.rels() if r.relid == rel.relid}
        if subids != {rel.subid}:
            raise ApplyError(
                f'table "{plan.table.qualified}" cannot be copied again: another'
                " subscription fills it, too",
                sqlstate="55000",
                hint="The copy would replace its rows. Let one of the two have it: ALTER"
                " SUBSCRIPTION ... DROP PUBLICATION, or DROP SUBSCRIPTION.",
                context=f"COPY {plan.table.name}",
            )
        return version

    def _check_unique(self, plan: _Planned, files: Sequence[AddedFile]) -> None:
        """Check that copied rows have different keys, unless a unique index of the publisher
        guarantees it for the snapshot."""
        table = plan.table
        if not table.key or _is_unique(plan.remote, table):
            return
        if self._port.any_key_twice(plan.state, files, table.key):
            raise ApplyError(
                f'duplicate key value violates unique constraint "{table.index_name}"',
                sqlstate="23505",
                detail="Rows of the publisher's table have the same key here.",
                hint="Remove all but one of them at the publisher (a table that has no key needs"
                " REPLICA IDENTITY FULL for that), then ALTER SUBSCRIPTION ... DISABLE and"
                " ENABLE: the copy begins anew with what is there then.",
                context=f"COPY {table.name}",
            )

    def _check_keys(self, table: TableDef, files: Sequence[AddedFile]) -> int | None:
        """Check that no existing row has the key of a copied row. Return the checked version; None
        if the table has no key.

        Existing rows may come from an earlier subscription, another source, or a local write.
        """
        if not table.key:
            return None
        state = self._port.state(table.location)
        if self._port.any_key_taken(state, files, table.key):
            raise ApplyError(
                f'duplicate key value violates unique constraint "{table.index_name}"',
                sqlstate="23505",
                hint="The table has rows that are copied now. Remove them, and the copy"
                " goes on. ALTER SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true)"
                " replaces all rows of the subscription's tables instead; with copy_data"
                " = false at its creation they stay, and nothing is copied.",
                context=f"COPY {table.name}",
            )
        return state.version

    def _finish(self, attempts: Sequence[Attempt]) -> None:
        """Set state f for tables in d."""
        if not attempts:
            return
        finished = self._catalog.finish_copies([attempt.rel for attempt in attempts])
        failpoint("copy.state_written")
        for attempt in attempts:
            if attempt.rel.relid in finished:
                attempt.finished = True
                self._log_progress(attempt, "finished")

    def _log_progress(self, attempt: Attempt, event: str) -> None:
        self._events.info(
            "logical replication table synchronization worker for subscription"
            f' "{attempt.subscription.name}", table "{attempt.rel.remote_name}" has {event}'
        )


def _each(function: Callable[[A], R], items: Sequence[A]) -> list[R]:
    """Call ``function`` for each item, a few at the same time."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), "copy-table") as threads:
        return list(threads.map(function, items))


def _is_faster_in_binary(
    remote: RemoteTable, fields: Sequence[FieldSpec], types: RemoteTypes
) -> bool:
    """Whether each column is decoded as a whole. Then binary format costs both sides less than CSV,
    and gives the same values."""
    targets = {field.name: field for field in fields}
    return all(
        decodes_whole_in_binary(targets[c.name], c.type_oid, c.typmod, types)
        for c in remote.columns
    )


def _is_unique(remote: RemoteTable, table: TableDef) -> bool:
    """Whether a unique index of the publisher ensures that local keys are unique."""
    sent = {c.name: (c.type_oid, c.typmod) for c in remote.columns}
    return any(
        index <= sent.keys() and keeps_apart({n: sent[n] for n in index}, table)
        for index in remote.unique
    )


def _check_columns(table: TableDef, remote: RemoteTable) -> None:
    names = {c.name for c in table.columns}
    missing = [c.name for c in remote.columns if c.name not in names]
    if missing:
        plural = "columns" if len(missing) > 1 else "column"
        shown = ", ".join(f'"{name}"' for name in missing)
        raise ApplyError(
            f'logical replication target relation "{table.qualified}" is'
            f" missing replicated {plural}: {shown}",
            sqlstate="55000",
            hint="ALTER TABLE ... ADD COLUMN on the target, and the copy begins anew.",
        )
    refused = incompatible_columns(
        table.qualified, {c.name for c in remote.columns}, table.generated
    )
    if refused is not None:
        raise ApplyError(
            refused,
            sqlstate="55000",
            hint=f"{COMPUTED_HERE}; or publish the table without the column.",
        )
