"""The net change of a batch is what its events mean one by one.

Each history has hundreds of groups of keys that never meet: one Spark run, hundreds of
cases. A failure names the group and prints its events.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from tests.fakes.histories import FIELDS, TRUSTED, UNTRUSTED, moved, shape_of

from wal2lake.lake.spark.merge.netchange import NetChange, net_change
from wal2lake.lake.staging.layout import (
    DELETE,
    INSERT,
    UPDATE,
    ChangeShape,
    RowFailure,
    Seq,
    Uniqueness,
    spark_schema,
)
from wal2lake.model import ConflictType
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    Key,
    KeyTaken,
    Row,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)

pytestmark = pytest.mark.spark

few = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    database=None,
    # A smaller history is no clearer: groups are small already, and each run is costly.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

once = settings(few, max_examples=1)


def staged(
    spark_session: SparkSession, events: list[RowEvent], shape: ChangeShape
) -> DataFrame:
    """The events as staging would write them, in an order that is not the log's."""
    rows = []
    for e in events:
        new = e.new if e.new is not None else (*(e.old or (None, None)), None, None)
        row: list[object] = [e.lsn, e.ordinal, ord(e.kind), moved(e)]
        row += [None if v is UNCHANGED else v for v in new]
        row += [new[i] is UNCHANGED for i in sorted(shape.unchanged)]
        if shape.moved:
            row += e.old if moved(e) and e.old is not None else (None, None)
        rows.append(tuple(row))
    random.Random(1).shuffle(rows)
    return spark_session.createDataFrame(rows, spark_schema(shape)).repartition(2)


def stored(spark_session: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return spark_session.createDataFrame(
        list(rows), ", ".join(f"{f.name} {f.spark_ddl}" for f in FIELDS)
    )


def merged(table: dict[Key, Row], net: NetChange) -> dict[Key, Row]:
    """What MERGE does with a net change; the promises about its rows are checked."""
    result = {} if net.replaces else dict(table)
    seen = set()
    for row in net.rows.collect():
        key = (row["n0"], row["n1"])
        assert key not in seen, f"key {key} twice"
        seen.add(key)
        unknown = [i for i in range(4) if row.asDict().get(f"u{i}")]
        if row["op"] == DELETE:
            result.pop(key, None)
        elif row["op"] == INSERT:
            assert not unknown, f"an insert of {key} with unknown values"
            result[key] = tuple(row[f"n{i}"] for i in range(4))
        else:
            assert row["op"] == UPDATE
            if key in result:
                result[key] = tuple(
                    result[key][i] if i in unknown else row[f"n{i}"] for i in range(4)
                )
    return result


def by_group(rows: dict[Key, Row]) -> dict[Any, list[Row]]:
    groups = defaultdict(list)
    for key, row in sorted(rows.items()):
        groups[key[0]].append(row)
    return groups


def assert_same(
    got: dict[Key, Row],
    want: dict[Key, Row],
    start: dict[Key, Row],
    log: list[RowEvent],
) -> None:
    got_groups, want_groups = by_group(got), by_group(want)
    for group in sorted({*got_groups, *want_groups}):
        if got_groups[group] != want_groups[group]:
            events = "\n".join(
                str(e)
                for e in log
                if e.kind == "T" or (e.old or e.new or (None,))[0] == group
            )
            pytest.fail(
                f"group {group}\nstart {by_group(start)[group]}\n{events}\n"
                f"got  {got_groups[group]}\nwant {want_groups[group]}"
            )


def run_batches(
    spark_session: SparkSession,
    shape: HistoryShape,
    seed: int,
    parts: int,
    uniqueness: Uniqueness,
) -> None:
    rng = random.Random(seed)
    table = initial_rows(shape, rng)
    events = history(shape, table, rng)
    model = TableModel(KEY, dict(table))
    for batch in batches(events, rng, parts):
        if not batch:
            continue
        start = dict(table)
        batch_shape = shape_of(batch)
        base = stored(spark_session, table.values()) if table else None
        net = net_change(
            staged(spark_session, batch, batch_shape), batch_shape, base, uniqueness
        )
        assert isinstance(net, NetChange), net
        table = merged(table, net)
        model.apply_all(batch)
        assert_same(table, model.rows, start, batch)


@few
@given(seed=st.integers(0, 2**32))
def test_key_changes_and_unchanged_values_over_several_batches(
    spark_session: SparkSession, seed: int
) -> None:
    run_batches(spark_session, HistoryShape(250, 6), seed, 2, TRUSTED)


@pytest.mark.slow
@few
@given(seed=st.integers(0, 2**32))
def test_events_on_missing_rows_are_skipped_also_in_chains_of_key_changes(
    spark_session: SparkSession, seed: int
) -> None:
    run_batches(spark_session, HistoryShape(250, 5, missing=True), seed, 1, UNTRUSTED)


@pytest.mark.parametrize("unchanged", [True, False])
@once
@given(seed=st.integers(0, 2**32))
def test_without_key_changes_one_pass_is_enough(
    spark_session: SparkSession, seed: int, unchanged: bool
) -> None:
    shape = HistoryShape(300, 5, moves=False, unchanged=unchanged, missing=True)
    run_batches(spark_session, shape, seed, 2, UNTRUSTED)


@pytest.mark.parametrize("moves", [True, False])
@once
@given(seed=st.integers(0, 2**32))
def test_only_what_follows_the_last_truncate_counts(
    spark_session: SparkSession, seed: int, moves: bool
) -> None:
    shape = HistoryShape(250, 5, moves=moves, missing=True, truncates=2)
    run_batches(spark_session, shape, seed, 1, UNTRUSTED)


@pytest.mark.parametrize("moves", [True, False])
@once
@given(seed=st.integers(0, 2**32))
def test_the_first_taken_key_is_located(
    spark_session: SparkSession, seed: int, moves: bool
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(60, 5, moves=moves, missing=True, conflicts=True)
    table = initial_rows(shape, rng)
    events = history(shape, table, rng)
    model = TableModel(KEY, dict(table))
    expected = None
    for event in events:
        try:
            model.apply(event)
        except KeyTaken:
            expected = event
            break
    batch_shape = shape_of(events)
    found = net_change(
        staged(spark_session, events, batch_shape),
        batch_shape,
        stored(spark_session, table.values()),
        UNTRUSTED,
    )
    assert expected is not None
    assert found == RowFailure(
        Seq(expected.lsn, expected.ordinal),
        None,
        "23505",
        'conflict detected on relation "public.t": conflict='
        + ("insert_exists" if expected.kind == "I" else "update_exists"),
        ConflictType.INSERT_EXISTS
        if expected.kind == "I"
        else ConflictType.UPDATE_EXISTS,
        'Key already exists in unique index "t_pkey".',
    )


def test_a_long_chain_of_key_changes_ends_with_the_first_rows_values(
    spark_session: SparkSession,
) -> None:
    table: dict[Key, Row] = {(0, 0): (0, 0, "first", "LONG")}
    events = [
        RowEvent(10 + k, 1, "U", (0, k + 1, UNCHANGED, UNCHANGED), (0, k))
        for k in range(37)
    ]
    shape = shape_of(events)
    net = net_change(
        staged(spark_session, events, shape),
        shape,
        stored(spark_session, table.values()),
        TRUSTED,
    )
    assert isinstance(net, NetChange)
    assert merged(table, net) == {(0, 37): (0, 37, "first", "LONG")}
