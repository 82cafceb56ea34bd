"""``interrupted``: a copy that is killed when nine tenths of it are done.

    copy ─▶ 90 % ─▶ kill -9 ─▶ ready ─▶ how many rows did the source hand out more than once?

Once the engine alone is killed, while one table of 2 M rows is copied: the receiver holds the
snapshot, and what was finished in ranges stays. Once the whole tree, while ten tables of 200,000
are: the snapshot is lost with it, and tables that were not whole are copied again.

Comes in: a stage. Goes out: rows that the source has read (``seq_tup_read``) beyond one for each,
beside what was unfinished when somebody last looked before the kill. The node is one of its own,
with small ranges; nothing is compared with PostgreSQL, whose subscriber copies a whole table again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks import workload
from benchmarks.copies.copying import PUBLICATION, filled
from benchmarks.report import Target
from benchmarks.stage import (
    APPLICATION_NAME,
    Peer,
    Stage,
    assert_same,
    drop_subscription,
    states,
    wait_exactly,
)
from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client
from wal2lake.testing.node import Node, Role

_NAME: Final = "interrupted"
_SUBSCRIPTION: Final = "bench_interrupted"
_ROWS: Final = 2_000_000

_RANGE_BYTES: Final = 16 << 20
_LEAST_RANGE_BYTES: Final = 1 << 20
"""A table of 2 M rows has about 16 such ranges; of the default size it would have two. Of a
smaller one ranges are smaller, as far as the setting allows."""

_KILLED_AT: Final = 0.9

_LOOK_SECONDS: Final = 0.005
_READY_LOOK_SECONDS: Final = 0.2
"""Each look is a new connection, to an engine that has enough to do."""

_FINISHED: Final = frozenset("fsr")
"""States of a table whose copy is whole."""


@dataclass(frozen=True, slots=True)
class _Case:
    killed: Role
    tables: int
    what_stays: str


_CASES: Final = (_Case("engine", 1, "ranges"), _Case("tree", 10, "tables"))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table's copy, as the last look before the kill has seen it."""

    state: str
    rows: int

    @property
    def is_finished(self) -> bool:
        return self.state in _FINISHED


def run(stage: Stage) -> None:
    """Measure both cases and add the results; nothing if there is no node."""
    if not stage.options.node:
        return
    range_bytes = max(_LEAST_RANGE_BYTES, stage.options.scaled(_RANGE_BYTES))
    settings = {"subscription.copy_range_bytes": range_bytes}
    with Node(stage.folder / "interrupted", settings=settings) as node:
        node.init("-U", "postgres").start()
        for case in _CASES:
            _measure(stage, node, case)


def _measure(stage: Stage, node: Node, case: _Case) -> None:
    names = [f"interrupted{i}" for i in range(case.tables)]
    rows_each = max(1, stage.options.scaled(_ROWS) // case.tables)
    with filled(stage, names, rows_each), stage.quick_slots():
        before = _read_rows(stage)
        stage.say(f"{_NAME}: {case.killed}")
        with node.connect(application_name=APPLICATION_NAME) as client:
            stage.subscribe(client, _SUBSCRIPTION, PUBLICATION)
            seen = _nine_tenths(client, rows_each * case.tables)
        node.kill(case.killed)
        killed = time.perf_counter()
        if case.killed == "tree":
            node.start()
        wait_exactly(
            lambda: _is_ready(node),
            f"{_SUBSCRIPTION} is ready",
            pause_seconds=_READY_LOOK_SECONDS,
        )
        seconds = time.perf_counter() - killed
        wait_exactly(lambda: not _is_reading(stage), "nobody copies any more")

        def read_again() -> dict[str, int] | None:
            read = _read_rows(stage)
            again = {name: read[name] - before[name] - rows_each for name in names}
            # Each row was read once at least; statistics come a moment later.
            return again if min(again.values()) >= 0 else None

        again = wait_exactly(read_again, "the statistics have every row")
        assert again is not None
        _report(stage, case, seen, again, rows_each, seconds)
        peer = Peer("node", node.pids()[0], node.connect)
        assert_same(stage, peer, [workload.fingerprint(name) for name in names])
        with node.connect() as client:
            drop_subscription(client, _SUBSCRIPTION)
            # Their rows would be in the way of the next copy.
            for name in names:
                client.rows(f"drop table {workload.SCHEMA}.{name}")


def _report(
    stage: Stage,
    case: _Case,
    seen: Mapping[str, _Seen],
    again: Mapping[str, int],
    rows_each: int,
    seconds: float,
) -> None:
    def add(what: str, unit: str, value: float, target: Target | None = None) -> None:
        stage.add(_NAME, f"{case.killed}: {what}", unit, value, target=target)

    copied = sum(
        rows_each if table.is_finished else table.rows for table in seen.values()
    )
    total = rows_each * case.tables
    add("killed when this much was copied", "% of the rows", 100 * copied / total)
    if case.killed == "engine":
        unfinished = total - copied
    else:
        tables = sum(not table.is_finished for table in seen.values())
        unfinished = tables * rows_each
        add(
            "tables copied again, of those that were unfinished",
            "tables",
            sum(n > 0 for n in again.values()),
            Target(at_most=tables),
        )
    add(
        f"rows read again, of those in unfinished {case.what_stays}",
        "rows",
        sum(again.values()),
        Target(at_most=unfinished),
    )
    add("kill to state r", "s", seconds)


def _nine_tenths(client: Client, rows: int) -> dict[str, _Seen]:
    """Look until so much is copied; what was seen then."""

    def look() -> dict[str, _Seen] | None:
        seen = {
            str(name): _Seen(str(state), int(copied or 0))
            for name, state, copied in client.rows(
                "select tablename, state, rows_copied from wal2lake.sync_progress"
                f" where subname = '{_SUBSCRIPTION}'"
            )
        }
        copied = sum(table.rows for table in seen.values())
        return seen if copied >= _KILLED_AT * rows else None

    progress = wait_exactly(look, "most rows are copied", pause_seconds=_LOOK_SECONDS)
    assert progress is not None
    return progress


def _is_ready(node: Node) -> bool:
    """False also while nobody answers."""
    try:
        with node.connect() as client:
            return states(client, _SUBSCRIPTION) == {"r"}
    except PublisherError:
        return False


def _is_reading(stage: Stage) -> bool:
    """What the killed ones were reading may go on for a moment, and is counted at its end."""
    with stage.at_source() as source:
        return bool(
            source.rows(
                "select from pg_stat_activity where query ilike 'copy %'"
                f" and application_name <> '{APPLICATION_NAME}'"
            )
        )


def _read_rows(stage: Stage) -> dict[str, int]:
    """Rows that the source has read by scanning a table, ranges of ctid included."""
    with stage.at_source() as source:
        rows = source.rows(
            "select relname, seq_tup_read from pg_stat_user_tables"
            f" where schemaname = '{workload.SCHEMA}'"
        )
    return {str(name): int(str(count)) for name, count in rows}
