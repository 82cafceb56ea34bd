"""Stages the parts of a batch, several tables at once.

In: parts of tables, and the facts of their batch. Out: staged changes, which nobody sees before
they are committed. Called by ``applier``, under the commit lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

from wal2lake.apply.batch import TableChanges
from wal2lake.apply.participants import Participant, Participants
from wal2lake.apply.relationmap import has_unique_key
from wal2lake.apply.step.batchwork import BatchPart, BatchWork, StagingContext
from wal2lake.apply.step.restarts import Restart, fills_of
from wal2lake.apply.step.sources import placed_sources, sources_of
from wal2lake.catalog import Catalog, Subscription, TableDef
from wal2lake.changelog import LogReader
from wal2lake.lake.batch import BatchPort, Staged, StageRequest
from wal2lake.lake.staging import (
    ColumnDefaults,
    ConversionRules,
    HistoryTarget,
    LsnRange,
)
from wal2lake.model import Oid
from wal2lake.pgtypes import (
    ConflictResolutions,
    ValuePolicies,
    check_tracked,
    remote_types_from_json,
)
from wal2lake.settings import Settings

_PARALLEL_TABLES: Final = 4
"""Tables of one batch that are evaluated at once, so that the waits of one overlap the work of
another."""


class TableStager:
    """Stages changes of one subscription's tables."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        subid: Oid,
        reader: LogReader,
        tables: Participants,
        batches: BatchPort,
        defaults: ColumnDefaults,
    ) -> None:
        """``defaults``: defaults of columns that the publisher does not send."""
        self.settings = settings
        self._catalog = catalog
        self._subid = subid
        self._reader = reader
        self._tables = tables
        self._batches = batches
        self._defaults = defaults
        self._pool = ThreadPoolExecutor(_PARALLEL_TABLES, f"apply-{int(subid)}")

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown(wait=False)

    def stage(self, work: BatchWork, parts: Sequence[BatchPart]) -> list[Staged]:
        """Stage the parts; return the staged changes in their order. On an error nothing stays."""
        context = self._staging_context(work, parts)
        # A long part that begins last would run alone.
        begun = {
            part.changes.relid: self._pool.submit(
                self._stage_one, part, work.restarts.get(part.changes.relid), context
            )
            for part in sorted(parts, key=lambda part: part.order)
        }
        running = [begun[part.changes.relid] for part in parts]
        wait(running)
        if any(future.exception() is not None for future in running):
            for future in running:
                if future.exception() is None:
                    self._batches.discard(future.result())
        return [future.result() for future in running]

    def _staging_context(
        self, work: BatchWork, parts: Sequence[BatchPart]
    ) -> StagingContext:
        subscription = work.subscription
        tracked = self.settings.apply.track_commit_timestamp
        check_tracked(subscription.conflict_resolution, tracked=tracked)
        return StagingContext(
            remote_types_from_json(subscription.remote_types),
            ValuePolicies.parse(subscription.value_policies),
            ConflictResolutions.parse(subscription.conflict_resolution),
            work.transactions.commits(self._subid) if tracked and parts else None,
            self.quotes(subscription),
            subscription.follows_schema,
            work.transactions.facts()
            if subscription.keeps_deleted
            or any(self._tables[p.changes.relid].history for p in parts)
            else None,
            subscription.keeps_deleted,
            placed_sources(self.settings, subscription),
        )

    def _stage_one(
        self, part: BatchPart, restart: Restart | None, context: StagingContext
    ) -> Staged:
        changes, files = part.changes, part.changes.files
        participant = self._tables[changes.relid]
        state = self._tables.read_state(participant)
        definition = participant.definition
        self._tables.look_at_sources(participant, {f.relation.relid for f in files})
        # Without a constraint of the publisher, existing rows are looked up.
        trusted = participant.trusted and is_unique(changes, definition)
        request = StageRequest(
            namespace=definition.namespace,
            name=definition.name,
            state=state,
            key=definition.key,
            constraint=definition.index_name,
            sources=sources_of(self._reader, files),
            span=LsnRange(changes.position, part.until),
            append=changes.insert_only and (trusted or not definition.key),
            trusted=trusted,
            types=context.types,
            rules=self._rules(definition, context),
            fills=fills_of(self._defaults, files, definition, restart),
            shows_rows=context.quotes(definition),
            resolutions=context.resolutions.of(definition.namespace, definition.name),
            nulls=frozenset(
                c.name
                for c in definition.columns
                if c.default is None and not c.not_null
            ),
            commits=context.commits,
            deferrable=definition.key_deferral.deferrable,
            has_their_rows=participant.trusted,
            history=self._history(participant, context),
            soft=context.recorded if context.keeps_deleted else None,
            place=None if context.placed is None else context.placed.place,
        )
        return self._batches.stage(request)

    def _history(
        self, participant: Participant, context: StagingContext
    ) -> HistoryTarget | None:
        state = self._tables.history_state(participant)
        if state is None or context.recorded is None:
            return None
        return HistoryTarget(state, context.recorded)

    def _rules(self, table: TableDef, context: StagingContext) -> ConversionRules:
        return ConversionRules(
            context.policies,
            frozenset(c.name for c in table.columns if c.not_null),
            frozenset(table.key),
            self.settings.apply.max_value_bytes,
            context.follows,
            table.checks,
            table.generated,
        )

    def quotes(self, subscription: Subscription) -> Callable[[TableDef], bool]:
        """Return whether reports of conflicts may quote a table's rows, by the current
        privileges."""
        if not self.settings.apply.log_conflict_values:
            return lambda table: False
        return self._catalog.target_rights(subscription).may_quote


def is_unique(part: TableChanges, table: TableDef) -> bool:
    """Whether a constraint of the publisher makes the table's key unique."""
    return all(has_unique_key(f.relation, table) for f in part.files)
