"""Numbers of transactions: each once, in growing order, whatever ends and begins again."""

import threading
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.catalog import Catalog
from wal2lake.catalog.database import Database
from wal2lake.catalog.xids import FIRST_XID, TransactionNumbers, xid_of


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("xids") / "catalog.sqlite"
    Catalog.create(path, "postgres", None).close()
    return path


def _set(path, number):
    with closing(Database(path)) as database, database.transaction() as transaction:
        transaction.execute(
            "update meta set value = ? where key = 'next_xid'", (str(number),)
        )


def test_the_first_number_follows_the_special_ones(path):
    _set(path, FIRST_XID)
    with closing(Catalog(path)) as catalog:
        assert [catalog.xids.take() for _ in range(3)] == [1001, 1002, 1003]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 3000)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("above"), st.integers(0, 10_000)),
    ),
    max_size=20,
)


@given(steps=steps, first=st.sampled_from([FIRST_XID, (1 << 32) - 2000, (5 << 32) - 1]))
def test_no_number_is_handed_out_twice(path, steps, first):
    _set(path, first)
    highest = 0
    with closing(Database(path)) as database:
        numbers = TransactionNumbers(database)
        for step, value in steps:
            if step == "restart":
                numbers = TransactionNumbers(database)
            elif step == "above":
                # Another log has numbers up to there.
                numbers.begin_above(value)
                highest = max(highest, value)
            else:
                taken = numbers.take(value)
                assert taken > highest
                highest = taken + value - 1
                assert xid_of(taken) >= FIRST_XID
                # One block is of one epoch.
                assert xid_of(highest) == xid_of(taken) + value - 1


def test_two_processes_share_nothing(path):
    _set(path, FIRST_XID)
    with closing(Database(path)) as one, closing(Database(path)) as other:
        here, there = TransactionNumbers(one), TransactionNumbers(other)
        taken = [numbers.take() for _ in range(1500) for numbers in (here, there)]
    assert len(set(taken)) == 3000


def test_threads_share_nothing(path):
    taken = []
    with closing(Database(path)) as database:
        numbers = TransactionNumbers(database)

        def run():
            taken.extend([numbers.take() for _ in range(700)])
            database.close()

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(set(taken)) == 2800


def test_a_block_costs_one_write(path):
    with closing(Database(path)) as database:
        numbers = TransactionNumbers(database)
        numbers.take()
        before = database.written
        for _ in range(1000):
            numbers.take()
        assert database.written == before


def test_a_number_in_use_costs_no_write_if_it_is_low(path):
    with closing(Database(path)) as database:
        numbers = TransactionNumbers(database)
        first = numbers.take()
        before = database.written
        numbers.begin_above(first)
        assert database.written == before
        assert numbers.take() == first + 1
