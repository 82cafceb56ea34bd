"""Which way of writing a batch is chosen, by what it has cost."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from wal2lake.lake.batch.methods import Costs, Method, Total, Work

BOTH = (Method.UPSERT, Method.MERGE)
SMALL = Work(rows=100, table_bytes=1 << 20)
LARGE = Work(rows=1_000_000, table_bytes=8 << 30)


def test_without_experience_memory_is_the_first_choice_on_few_cores() -> None:
    costs = Costs(cores=2)
    for work in (SMALL, LARGE, Work(0, 0), Work(2_000_000, 64 << 30)):
        assert costs.choose(BOTH, work) is Method.UPSERT


def test_many_cores_read_a_large_table_faster_than_one_process() -> None:
    costs = Costs(cores=64)
    assert costs.choose(BOTH, SMALL) is Method.UPSERT
    assert costs.choose(BOTH, LARGE) is Method.MERGE


def test_what_was_slow_is_left_and_tried_again_later() -> None:
    costs = Costs(cores=2)
    for _ in range(20):
        costs.took(Method.UPSERT, LARGE, 1000.0)
    assert costs.choose(BOTH, LARGE) is Method.MERGE
    tries = 0
    while costs.choose(BOTH, LARGE) is Method.MERGE:
        costs.took(Method.MERGE, LARGE, 40.0)
        tries += 1
    assert 10 < tries < 1000


def test_one_batch_that_waited_changes_nothing() -> None:
    costs = Costs(cores=2)
    costs.took(Method.UPSERT, SMALL, 10_000.0)
    assert costs.choose(BOTH, SMALL) is Method.UPSERT
    assert costs.expected(Method.UPSERT, SMALL) < 1.0


def test_only_what_is_possible_is_chosen() -> None:
    assert Costs(2).choose((Method.MERGE,), SMALL) is Method.MERGE


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.integers(0, 10))
def test_the_truth_is_learned_from_batches_of_any_size(
    upsert: float, merge: float, seed: int
) -> None:
    """Machines whose methods take so many times what was measured elsewhere."""
    rng = random.Random(seed)
    costs, elsewhere = Costs(4), Costs(4)
    truth = {Method.UPSERT: upsert, Method.MERGE: merge}
    for _ in range(60):
        work = Work(rng.randrange(10**6), rng.randrange(10**10))
        for method, factor in truth.items():
            costs.took(method, work, factor * elsewhere.expected(method, work))
    for method, factor in truth.items():
        wanted = factor * elsewhere.expected(method, LARGE)
        assert abs(costs.expected(method, LARGE) / wanted - 1) < 0.01


def test_totals_are_of_one_writer_and_one_table() -> None:
    costs = Costs(2)
    costs.count("w", "/t", Method.APPEND, 10, 0.5)
    costs.count("w", "/t", Method.APPEND, 5, 0.25)
    costs.count("w", "/u", Method.UPSERT, 1, 1.0)
    costs.count("v", "/t", Method.MERGE, 1, 1.0)
    assert costs.totals("w", "/t") == {Method.APPEND: Total(2, 15, 0.75)}
    assert costs.totals("w", "/none") == {}
