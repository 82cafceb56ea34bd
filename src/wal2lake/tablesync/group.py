"""Copies of a few tables, from what is known of them to state f.

In: attempts of one subscription under one snapshot. Out: one commit per table, and its state;
or the attempt's error. A large table comes alone and is read by several readers; small ones
come together, so that they share connections, Spark tasks and transactions of the catalog. An
error of one of them is its own.

    resume   committed before a crash?           the cursor in the table says so
    plan     columns, ranges; what is read already
    begin    plans and the S of their commits    ONE catalog transaction
    read     bundles of ranges, a Spark task each; finished ones are recorded; a value that does
             not fit may make its column text: the copy is another one then (``widening``)
    commit   per table: keys of the copied rows, and of those that are there;
             then ONE commit, all files, cursor S
    finish   d -> f                              ONE catalog transaction

From begin on the catalog knows the S that a commit may have (``lsn`` of a table in d), and the
floor does not pass it: whoever finds the commit after a crash, under whatever snapshot, finds
its changes still in the log. An attempt that surely did not commit takes that back.

Called by ``worker``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from wal2lake.apply.schema.follow import SchemaFollower, TableAlteration
from wal2lake.apply.schema.samekeys import keeps_apart
from wal2lake.catalog import Catalog, CopyRange, TableDef
from wal2lake.catalog.access.targets import INSERT, TRUNCATE
from wal2lake.errors import ApplyError, PublisherError, Wal2LakeError
from wal2lake.lake import (
    AddedFile,
    CommitConflict,
    Cursor,
    FieldSpec,
    TablePort,
    TableState,
    files_from_json,
    files_to_json,
)
from wal2lake.lake.spark.executors import Executors
from wal2lake.lake.spark.session import Pool
from wal2lake.lake.staging.convert import ConversionRules, decodes_whole_in_binary
from wal2lake.lake.staging.defaults import (
    NO_DEFAULTS,
    ColumnDefaults,
    Fill,
    Fills,
    have_sequences,
)
from wal2lake.lake.staging.rowchanges import incompatible_columns
from wal2lake.model import Lsn
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import RemoteTable
from wal2lake.pgtypes import (
    COMPUTED_HERE,
    RemoteTypes,
    ValuePolicies,
    remote_types_from_json,
)
from wal2lake.settings import Settings
from wal2lake.tablesync.attempt import Attempt, Halted, SnapshotGone
from wal2lake.tablesync.copy import CopyTask, Misfit, copy_ranges, count_ranges
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
)
from wal2lake.tablesync.turns import RangePool
from wal2lake.tablesync.unaltered import PlannedTable
from wal2lake.tablesync.widening import Widening

A = TypeVar("A")
R = TypeVar("R")

_ROW_GROUP_BYTES: Final = 32 << 20
"""Arrow bytes per row group: what one range holds in memory, twice over."""

_TIMES_SECOND: Final = 5
"""How often others may commit to the table first, another subscription's copy or batch, before
that is an error and the copy waits for its next turn. A guess."""

_AT_ONCE: Final = 4
"""Tables of a group that are looked at, or commit, at the same time: the driver's steps of one
overlap with another's waits."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """One table whose copy is under way."""

    attempt: Attempt
    table: TableDef
    remote: RemoteTable
    state: TableState
    cursor: Cursor
    ranges: tuple[PageRange, ...]
    fills: Fills
    """One evaluation for the whole table: its copy is one transaction."""


class GroupCopy:
    """Safe for many threads; each call of ``copy`` is one group."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        tables: TablePort,
        executors: Executors,
        readers: int,
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
    ) -> None:
        """``readers``: how many ranges are read at once, of all groups."""
        self._alter = alter
        self._defaults = defaults
        self._catalog = catalog
        self._settings = settings
        self._port = tables
        self._executors = executors
        self._readers = readers
        self.max_lock_wait_ms = settings.subscription.max_lock_wait_ms
        """The setting as last loaded."""
        self._pool = RangePool(readers)
        self._widening = Widening(catalog, tables, alter)
        self._events = get_logger()

    def wake(self) -> None:
        """Attempts have been ended: look at them."""
        self._pool.wake()

    def stop(self) -> None:
        """Begin nothing more."""
        self._pool.stop()

    def copy(self, attempts: Sequence[Attempt]) -> None:
        """Until each is in state f, or has its ``error``, or is ended from outside.

        Raises SnapshotGone, and what makes the whole group impossible.
        """
        found = _each(self._guarded_plan, attempts)
        planned = [one for one in found if one is not None]
        followed = [p for p in planned if p.attempt.subscription.follows_schema]
        if followed:
            self._catalog.start_following(
                followed[0].attempt.subscription.oid,
                {one.table.oid: one.remote.schema for one in followed},
                followed[0].attempt.snapshot.lsn,
            )
        if planned:
            self._catalog.begin_copies([one.attempt.rel for one in planned])
        for one in planned:
            self._tell(one.attempt, "started")
        self._read(planned)
        planned = [one for one in planned if not one.attempt.over]
        self._check_snapshot(planned)
        _each(self._guarded_commit, planned)
        self._finish([one.attempt for one in planned if not one.attempt.over])

    # ---- before the first row ---------------------------------------------------------

    def _guarded_plan(self, attempt: Attempt) -> _Planned | None:
        """None: there is nothing to copy, or it cannot be."""
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
            # Committed before a crash; only the catalog did not hear of it. The cursor
            # is that commit's S, whatever snapshot is held now.
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
                # The copy is another one now.
                raise Halted
        _check_columns(table, remote)
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
            # Altered since CREATE or REFRESH has looked, or since the snapshot.
            trusted=rel.trusted and remote.published_since and not remote.row_filters,
        )
        cursor = Cursor(name, int(snapshot.lsn))
        copied = {c.name for c in remote.columns}
        fills = self._defaults(
            table.oid, [c.name for c in table.columns if c.name not in copied]
        )
        return _Planned(attempt, table, remote, state, cursor, ranges, fills)

    def _finished(self, attempt: Attempt) -> dict[int, CopyRange]:
        """Ranges of this very copy; others are void."""
        rel = attempt.rel
        return {
            one.number: one
            for one in self._catalog.ranges(rel.subid, rel.relid)
            if one.snapshot == attempt.snapshot.identity and one.epoch == rel.epoch
        }

    # ---- reading ----------------------------------------------------------------------

    def _read(self, planned: Sequence[_Planned]) -> None:
        parts = []
        for number, one in enumerate(planned):
            finished = self._finished(one.attempt)
            parts += [
                CopyPart(number, pages, range_bytes(one.remote, pages))
                for pages in one.ranges
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
            lambda: all(one.attempt.over for one in planned),
        )

    def _read_bundle(
        self, planned: Sequence[_Planned], bundle: Sequence[CopyPart]
    ) -> None:
        """One Spark task; an error of a table's own ends that table's attempt."""
        for attempt in {planned[part.table].attempt for part in bundle}:
            if not self._is_wanted(attempt):
                attempt.fail(Halted())
        mine = [part for part in bundle if not planned[part.table].attempt.over]
        if not mine:
            return
        self._check_snapshot([planned[mine[0].table]])
        tasks = self._numbered([self._task(planned[p.table], p) for p in mine])
        results = self._executors.run(Pool.SYNC, copy_ranges, tuple(tasks))
        done = []
        for part, result in zip(mine, results, strict=True):
            attempt = planned[part.table].attempt
            if isinstance(result, Misfit):
                attempt.fail(
                    self._widening.widen(attempt, planned[part.table].remote, result)
                )
            elif isinstance(result, Wal2LakeError):
                # Sessions are ended that read what is void.
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
        failpoint("copy.range_recorded")

    def _numbered(self, tasks: list[CopyTask]) -> list[CopyTask]:
        """With values of sequences for as many rows as each will have. They are not given to
        others if the copy does not come to its end."""
        asked = [i for i, task in enumerate(tasks) if have_sequences(task.fills)]
        if not asked:
            return tasks
        counts = self._executors.run(
            Pool.SYNC, count_ranges, tuple(tasks[i] for i in asked)
        )
        for i, found in zip(asked, counts, strict=True):
            fills = tasks[i].fills
            if isinstance(found, PublisherError):
                error = Fill(error=(found.sqlstate, found.message))
                fills = {n: error if f.sequence else f for n, f in fills.items()}
            else:
                fills = self._defaults.numbered(fills, found)
            tasks[i] = replace(tasks[i], fills=fills)
        return tasks

    def _task(self, one: _Planned, part: CopyPart) -> CopyTask:
        attempt, remote = one.attempt, one.remote
        subscription = attempt.subscription
        types: RemoteTypes = {}
        if subscription.binary:
            types = remote_types_from_json(subscription.remote_types)
        binary = copies_in_binary(remote, types) and (
            subscription.binary or _is_faster_in_binary(remote, one.state.fields, types)
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
            location=one.state.location,
            fields=one.state.fields,
            physical_fields=one.state.physical_fields,
            row_group_bytes=_ROW_GROUP_BYTES,
            table=one.table.name,
            key=one.table.key,
            binary_types=tuple(c.type_oid for c in remote.columns) if binary else None,
            types=types,
            namespace=remote.namespace,
            column_types=tuple((c.type_oid, c.typmod) for c in remote.columns),
            lsn=attempt.snapshot.lsn,
            must_use_password=self._catalog.must_use_password(subscription),
            fills=one.fills,
            source=PlannedTable.of(remote),
            mark=self._catalog.sync_name(subscription.oid),
            max_lock_wait_ms=self.max_lock_wait_ms,
            counting=count_statement(remote, part.pages),
            shows_rows=self._settings.apply.log_conflict_values,
            rules=ConversionRules(
                ValuePolicies.parse(subscription.value_policies),
                frozenset(c.name for c in one.table.columns if c.not_null),
                frozenset(one.table.key),
                self._settings.apply.max_value_bytes,
                subscription.follows_schema,
                one.table.checks,
                one.table.generated,
            ),
        )

    def _check_snapshot(self, planned: Sequence[_Planned]) -> None:
        """Stop as soon as the catalog says that the snapshot is another one."""
        for one in planned[:1]:
            attempt = one.attempt
            held = self._catalog.snapshot_held(attempt.subscription.oid)
            if held is None or held.identity != attempt.snapshot.identity:
                raise SnapshotGone

    # ---- after the last row -------------------------------------------------------------

    def _guarded_commit(self, one: _Planned) -> None:
        try:
            self._commit(one)
        except Exception as error:
            one.attempt.fail(error)

    def _commit(self, one: _Planned) -> None:
        attempt = one.attempt
        finished = self._finished(attempt)
        if set(finished) != {pages.number for pages in one.ranges}:
            # The node stops: nobody waits for the others.
            raise Halted
        files: list[AddedFile] = []
        for done in finished.values():
            files.extend(files_from_json(done.files))
        self._check_unique(one, files)
        for _ in range(_TIMES_SECOND):
            try:
                self._commit_files(one, files)
            except CommitConflict:
                # Rows of others have come: the next look finds their keys.
                if attempt.rel.replaces:
                    raise
            else:
                return
        self._commit_files(one, files)

    def _commit_files(self, one: _Planned, files: Sequence[AddedFile]) -> None:
        attempt = one.attempt
        if attempt.rel.replaces:
            version = self._check_alone(one)
        else:
            version = self._check_keys(one.table, files)
        with attempt.writing(), self._port.writing(one.table.location):
            state = self._port.state(one.table.location)
            if state.physical_fields != one.state.physical_fields:
                raise ApplyError(
                    f'table "{one.table.qualified}" has been altered while it was copied',
                    sqlstate="55000",
                    hint="The copy begins anew by itself.",
                )
            if not self._is_wanted(attempt):
                raise Halted
            attempt.may_be_committed = True
            try:
                self._port.commit_files(
                    one.table.location,
                    files,
                    one.cursor,
                    read_version=version,
                    replace=attempt.rel.replaces,
                    operation="COPY",
                )
            except Exception:
                attempt.may_be_committed = self._may_be_there(one)
                raise
            failpoint("copy.committed")

    def _is_wanted(self, attempt: Attempt) -> bool:
        """Not if the copy has been told to begin anew: what it has read is void."""
        rel = attempt.rel
        return self._catalog.epoch(rel.subid, rel.relid) == rel.epoch

    def _may_be_there(self, one: _Planned) -> bool:
        """Tell whether a commit that ended with an error may have succeeded. While it may have, the
        floor waits for it, and the publisher's snapshot is held."""
        try:
            state = self._port.state(one.table.location)
        except Exception:
            return True
        return state.cursor(one.cursor.app_id) is not None

    def _check_alone(self, one: _Planned) -> int | None:
        """The version in which all rows are this subscription's to replace."""
        version = self._port.state(one.table.location).version
        rel = one.attempt.rel
        others = {r.subid for r in self._catalog.rels() if r.relid == rel.relid}
        if others != {rel.subid}:
            raise ApplyError(
                f'table "{one.table.qualified}" cannot be copied again: another'
                " subscription fills it, too",
                sqlstate="55000",
                hint="The copy would replace its rows. Let one of the two have it: ALTER"
                " SUBSCRIPTION ... DROP PUBLICATION, or DROP SUBSCRIPTION.",
                context=f"COPY {one.table.name}",
            )
        return version

    def _check_unique(self, one: _Planned, files: Sequence[AddedFile]) -> None:
        """No two copied rows have one key. What a unique index of the publisher says of the
        snapshot's rows is not looked for again."""
        table = one.table
        if not table.key or _is_unique(one.remote, table):
            return
        if self._port.any_key_twice(one.state, files, table.key):
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
        """The version in which no row has the key of a copied one; None: there is no key.

        Rows may be there: of an earlier subscription, of another source, of a local write.
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
        """d -> f, of those that are still to do that."""
        if not attempts:
            return
        finished = self._catalog.finish_copies([one.rel for one in attempts])
        failpoint("copy.state_written")
        for one in attempts:
            if one.rel.relid in finished:
                one.finished = True
                self._tell(one, "finished")

    def _tell(self, attempt: Attempt, what: str) -> None:
        self._events.info(
            "logical replication table synchronization worker for subscription"
            f' "{attempt.subscription.name}", table "{attempt.rel.remote_name}" has {what}'
        )


def _each(function: Callable[[A], R], items: Sequence[A]) -> list[R]:
    """``function`` of each, a few at the same time."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), "copy-table") as threads:
        return list(threads.map(function, items))


def _is_faster_in_binary(
    remote: RemoteTable, fields: Sequence[FieldSpec], types: RemoteTypes
) -> bool:
    """Whether each column is decoded as a whole: then binary costs both sides less than CSV,
    and gives the same values."""
    targets = {field.name: field for field in fields}
    return all(
        decodes_whole_in_binary(targets[c.name], c.type_oid, c.typmod, types)
        for c in remote.columns
    )


def _is_unique(remote: RemoteTable, table: TableDef) -> bool:
    """Whether an index of the publisher lets no two rows have one key of ours."""
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
        raise ApplyError(refused, sqlstate="55000", hint=COMPUTED_HERE)
