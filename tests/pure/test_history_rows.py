"""What a history table records is what happened to each row, one event after the other."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.histories import FIELDS, TRUSTED, UNTRUSTED, shape_of
from tests.pure import test_upsert as keyed
from tests.pure import test_upsert_repeats as keyless

from wal2lake.lake.port import FieldSpec, PhysicalField, TableState
from wal2lake.lake.staging.historyrows import HistoryCommits, HistoryTarget
from wal2lake.lake.upsert import Upsert
from wal2lake.model import Oid
from wal2lake.testing.rowmodel import (
    KEY,
    HistoryShape,
    Row,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)

pytestmark = pytest.mark.usefixtures("no_fsync")

OPS = {"I": "insert", "U": "update", "D": "delete", "T": "truncate"}
Change = tuple[str, int, int, tuple[Any, ...] | None, tuple[Any, ...] | None]

slow_start = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def history_of(
    location: Path, fields: Sequence[FieldSpec], commits: HistoryCommits
) -> HistoryTarget:
    """A history table in a directory without Delta."""
    location.mkdir(parents=True, exist_ok=True)
    facts = [
        FieldSpec("op", "string", pg_type_oid=Oid(25)),
        FieldSpec("commit_lsn", "bigint", pg_type_oid=Oid(20)),
        FieldSpec("ordinal", "bigint", pg_type_oid=Oid(20)),
        FieldSpec("xid", "bigint", pg_type_oid=Oid(20)),
        FieldSpec("commit_time", "timestamp", pg_type_oid=Oid(1184)),
        FieldSpec("origin", "string", pg_type_oid=Oid(25)),
        FieldSpec("old_gone", "string", pg_type_oid=Oid(25)),
    ]
    for prefix in ("old_", "new_"):
        facts += [
            FieldSpec(
                prefix + f.name,
                f.spark_ddl,
                pg_type_oid=f.pg_type_oid,
                pg_type_name=f.pg_type_name,
            )
            for f in fields
        ]
    state = TableState(
        location=str(location),
        table_id="id",
        version=0,
        cursors={},
        fields=tuple(facts),
        physical_fields=tuple(
            PhysicalField(f.name, f.name, None, f.spark_ddl) for f in facts
        ),
        column_mapping=False,
        properties={},
    )
    return HistoryTarget(state, commits)


def commits_of(lsns: Sequence[int]) -> HistoryCommits:
    """Facts of transactions that follow from their LSNs."""
    lsn = np.array(sorted(set(lsns)), np.int64)
    origin = tuple(None if one % 2 else f"o{one}" for one in lsn.tolist())
    return HistoryCommits(lsn, lsn + 7, lsn * 1_000_000, origin)


def recorded(upsert: Upsert, target: HistoryTarget, width: int) -> list[Change]:
    """The rows of the batch's history, in the order of the files."""
    changes: list[Change] = []
    for file in upsert.history:
        table = pq.read_table(f"{target.state.location}/{file.path}")
        for row in table.to_pylist():
            values = list(row.values())
            lsn = row["commit_lsn"]
            assert row["xid"] == lsn + 7
            assert row["commit_time"].timestamp() == lsn
            assert row["origin"] == (None if lsn % 2 else f"o{lsn}")
            assert row["old_gone"] is None
            old, new = tuple(values[7 : 7 + width]), tuple(values[7 + width :])
            has_old = row["op"] in ("update", "delete")
            has_new = row["op"] in ("update", "insert")
            assert has_old or not any(v is not None for v in old)
            assert has_new or not any(v is not None for v in new)
            changes.append(
                (
                    row["op"],
                    lsn,
                    row["ordinal"],
                    old if has_old else None,
                    new if has_new else None,
                )
            )
    return changes


def expected_changes(model: TableModel, events: Sequence[RowEvent]) -> list[Change]:
    """What each event does to the model's rows."""
    changes: list[Change] = []
    for event in events:
        before = dict(model.rows)
        model.apply(event)
        if event.kind == "T":
            changes.append(("truncate", event.lsn, event.ordinal, None, None))
            continue
        source = event.old
        target = None if event.new is None else model.key_of(event.new)
        if source is None:
            source = target
        assert source is not None
        old = None if event.kind == "I" else before.get(source)
        if event.kind != "I" and old is None:
            continue
        new = None if target is None else model.rows[target]
        changes.append((OPS[event.kind], event.lsn, event.ordinal, old, new))
    return changes


@pytest.mark.parametrize(
    ("shape", "uniqueness"),
    [
        (HistoryShape(20, 6), TRUSTED),
        (HistoryShape(20, 5, missing=True), UNTRUSTED),
        (HistoryShape(20, 5, moves=False, missing=True), UNTRUSTED),
        (HistoryShape(10, 5, missing=True, truncates=3), UNTRUSTED),
    ],
    ids=["moves", "missing", "plain", "truncates"],
)
@slow_start
@given(seed=st.integers(0, 2**32))
def test_each_change_has_its_whole_old_and_new_row(
    tmp_path: Path, shape: HistoryShape, uniqueness: Any, seed: int
) -> None:
    rng = random.Random(seed)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    place = tmp_path / uuid.uuid4().hex
    table = keyed.Table(place / "t", list(start.values()), rng.randint(1, 4))
    target = history_of(place / "h", FIELDS, commits_of([e.lsn for e in events]))
    model = TableModel(KEY, dict(start))
    for batch in batches(events, rng, 3):
        if not batch:
            continue
        staged_shape = shape_of(batch)
        staged = keyed.staged_tables(batch, staged_shape, rng.randint(1, 3))
        upsert = table.plan(
            staged_shape,
            staged,
            uniqueness,
            memory=1 << 22,
            runs=rng.choice([1, 1, 2, 7]),
            history=target,
        )
        assert isinstance(upsert, Upsert), upsert
        assert recorded(upsert, target, 4) == expected_changes(model, batch)
        table.commit(upsert)
        assert table.rows() == model.rows


@slow_start
@given(
    stored=keyless.start,
    batches=st.lists(
        st.lists(
            st.one_of(
                keyless.event,
                keyless.event,
                keyless.event,
                st.just(keyless.Event("T")),
            ),
            min_size=1,
            max_size=25,
        ),
        min_size=1,
        max_size=3,
    ),
    files=st.integers(1, 3),
    runs=st.sampled_from([1, 2, 7]),
)
def test_rows_without_a_key_come_and_go_one_by_one(
    tmp_path: Path,
    stored: list[tuple[Row, str | None]],
    batches: list[list[keyless.Event]],
    files: int,
    runs: int,
) -> None:
    place = tmp_path / uuid.uuid4().hex
    table = keyless.Table(place / "t", stored, files)
    target = history_of(place / "h", keyless.FIELDS, commits_of(range(20)))
    rows = Counter(keyless.identical((*row, own)) for row, own in stored)
    for batch in batches:
        staged, shape = keyless.stage(batch)
        upsert = table.plan(
            shape, [staged], UNTRUSTED, memory=1 << 22, runs=runs, history=target
        )
        assert isinstance(upsert, Upsert), upsert
        table.commit(upsert)
        for op, lsn, ordinal, old, new in recorded(upsert, target, 4):
            event = batch[lsn * 3 + ordinal]
            assert op == OPS[event.kind]
            if op == "truncate":
                rows.clear()
            if old is not None:
                assert rows[keyless.identical(old)] > 0
                rows[keyless.identical(old)] -= 1
                assert event.old is not None
                assert keyless.equal(old[:3]) == keyless.equal(event.old)
            if new is not None:
                rows[keyless.identical(new)] += 1
                assert event.new is not None
                assert keyless.identical(new[:3]) == keyless.identical(event.new)
        held = Counter(keyless.identical(row) for row in table.read())
        assert held == +rows
