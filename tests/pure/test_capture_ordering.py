"""Commits of tables become transactions in an order that each of the tables has itself."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from wal2lake.lake.capture.commitfacts import CommitRemarks, SentBatch
from wal2lake.lake.capture.commits import TableCommit, TouchedFile, read_commit
from wal2lake.lake.tablefiles import DataFile
from wal2lake.model import Lsn, Oid
from wal2lake.publish.capture.ordering import BatchSource, in_order
from wal2lake.publish.capture.positions import FIRST, commit_of, end_of, start_of

NODE = 7
FILE = DataFile({"path": "a", "size": 1})


def commit(
    version: int, time_ms: int, operation: str = "WRITE", **cursors: int
) -> TableCommit:
    return TableCommit(
        version,
        time_ms,
        operation,
        {name.replace("_", ":"): at for name, at in cursors.items()},
        (TouchedFile(None, FILE),),
        None,
    )


def test_a_batch_of_a_subscription_is_one_transaction_with_its_origin() -> None:
    found = in_order(
        {
            Oid(1): [
                commit(1, 10, wal2lake_7_5_1=100),
                commit(2, 30, wal2lake_7_5_1=200),
            ],
            Oid(2): [commit(8, 12, wal2lake_7_5_9=100)],
            Oid(3): [commit(4, 5), commit(5, 20, wal2lake_8_5_1=100)],
        },
        NODE,
    )
    assert [[(int(r), c.version) for r, c in one.commits] for one in found] == [
        [(3, 4)],
        [(1, 1), (2, 8)],
        [(3, 5)],
        [(1, 2)],
    ]
    assert [one.source for one in found] == [
        None,
        BatchSource(Oid(5), 100),
        # Another node's subscription of that number is a writer like any other.
        None,
        BatchSource(Oid(5), 200),
    ]


def test_a_history_is_no_part_of_the_batch_that_it_records() -> None:
    found = in_order(
        {
            Oid(1): [commit(1, 10, wal2lake_7_5_1=100)],
            Oid(2): [commit(1, 10, wal2lake_7_5_2=100)],
            Oid(3): [commit(1, 12, "history", wal2lake_7_5_1=100)],
        },
        NODE,
    )
    assert [([int(r) for r, _ in one.commits], one.source) for one in found] == [
        ([1, 2], BatchSource(Oid(5), 100)),
        ([3], None),
    ]


def test_a_transaction_of_several_tables_waits_for_what_is_before_it() -> None:
    found = in_order(
        {
            Oid(1): [commit(1, 50), commit(2, 51, "local transaction 3")],
            Oid(2): [commit(1, 10, "truncate 3"), commit(2, 11)],
        },
        NODE,
    )
    assert [[(int(r), c.version) for r, c in one.commits] for one in found] == [
        [(1, 1)],
        [(1, 2), (2, 1)],
        [(2, 2)],
    ]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 99), st.integers(0, 5)), min_size=0, max_size=8
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_commit_comes_once_and_in_its_tables_order(
    tables: list[list[tuple[int, int]]],
) -> None:
    # Groups may contradict each other: everything comes all the same.
    given_commits = {
        Oid(relid): [
            commit(version, time, f"local transaction {group}" if group else "WRITE")
            for version, (time, group) in enumerate(of, 1)
        ]
        for relid, of in enumerate(tables, 1)
    }
    found = [pair for one in in_order(given_commits, NODE) for pair in one.commits]
    for relid, commits in given_commits.items():
        assert [c for r, c in found if r == relid] == commits
    assert len(found) == sum(map(len, tables))


@given(st.lists(st.integers(1, 1 << 40), max_size=20))
def test_positions_only_grow(counts: list[int]) -> None:
    end = FIRST
    seen = [end]
    for count in counts:
        at = commit_of(end, count)
        assert end <= start_of(at, count) < at
        seen += [at, end_of(at)]
        end = end_of(at)
    assert all(a < b for a, b in itertools.pairwise(seen))
    assert isinstance(end, Lsn)


def test_what_moves_rows_only_is_nothing() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "x", "cardinality": 1}
    found = read_commit(
        3,
        [
            {"commitInfo": {"timestamp": 17, "operation": "OPTIMIZE"}},
            {"remove": {"path": "a", "size": 1, "dataChange": False}},
            {"add": {"path": "b", "size": 1, "dataChange": False}},
            {"remove": {"path": "c", "size": 1, "dataChange": True}},
            {"add": {"path": "c", "size": 1, "dataChange": True}},
        ],
    )
    assert not found.changes_rows and found.time_ms == 17
    found = read_commit(
        4,
        [
            {"txn": {"appId": "x", "version": 9}},
            {"remove": {"path": "c", "size": 1, "dataChange": True}},
            {
                "add": {
                    "path": "c",
                    "size": 1,
                    "dataChange": True,
                    "deletionVector": vector,
                }
            },
        ],
    )
    (touched,) = found.touched
    assert touched.before is not None and touched.before.vector is None
    assert touched.after is not None and touched.after.vector == vector
    assert found.cursors == {"x": 9}


def as_sent(
    version: int, position: int, end: int, *, whole: bool = True
) -> TableCommit:
    said = SentBatch(position, 1, (), found_whole=True) if whole else None
    found = commit(version, version, wal2lake_7_5_1=end)
    return replace(found, remarks=CommitRemarks(sent=said))


def shapes(*tables: list[TableCommit]) -> list[tuple[list[tuple[int, int]], int]]:
    """Table and version of each commit, and where the batch ends."""
    found = in_order({Oid(n): one for n, one in enumerate(tables, 1)}, NODE)
    assert all(one.source is not None for one in found)
    return [
        ([(int(r), c.version) for r, c in one.commits], one.source.end)
        for one in found
        if one.source is not None
    ]


def test_a_batch_that_a_crash_has_torn_is_one_with_the_next() -> None:
    # The first table had what is below 100 in a commit of its own, the second has it in the next.
    torn = [as_sent(1, 1, 100), as_sent(2, 100, 300)], [as_sent(2, 1, 300)]
    assert shapes(*torn) == [([(1, 1), (1, 2), (2, 2)], 300)]
    # One after the other, or of which not all is as it was sent.
    whole = [as_sent(1, 1, 100), as_sent(2, 100, 300)], [as_sent(2, 100, 300)]
    assert shapes(*whole) == [([(1, 1)], 100), ([(1, 2), (2, 2)], 300)]
    other = [as_sent(1, 1, 100, whole=False)], [as_sent(2, 1, 300)]
    assert shapes(*other) == [([(1, 1)], 100), ([(2, 2)], 300)]


def test_several_crashes_tear_one_batch() -> None:
    tables = (
        [as_sent(1, 1, 100), as_sent(2, 100, 200), as_sent(3, 200, 300)],
        [as_sent(3, 1, 300)],
        [as_sent(2, 1, 200), as_sent(3, 200, 300), as_sent(4, 300, 400)],
    )
    joined = [(1, 1), (1, 2), (3, 2), (1, 3), (2, 3), (3, 3)]
    assert shapes(*tables) == [(joined, 300), ([(3, 4)], 400)]
    # Whoever cannot tell it as it was sent has what each of them has done.
    one, _ = in_order({Oid(n): of for n, of in enumerate(tables, 1)}, NODE)
    assert [[c.version for _, c in part.commits] for part in one.parts] == [
        [1],
        [2, 2],
        [3, 3, 3],
    ]
    assert not any(part.parts for part in one.parts)


def test_what_others_do_meanwhile_leaves_a_torn_batch_one() -> None:
    # Another table, another subscription, and who was in the way of the second table's commit.
    others = {
        Oid(3): [commit(1, 1)],
        Oid(4): [commit(1, 1, wal2lake_7_6_1=50)],
    }
    torn = [as_sent(1, 1, 100), as_sent(3, 100, 300)]
    tables = {Oid(1): torn, Oid(2): [commit(2, 2), as_sent(3, 1, 300)], **others}
    found = [
        [(int(r), c.version) for r, c in o.commits] for o in in_order(tables, NODE)
    ]
    assert found == [[(3, 1)], [(4, 1)], [(2, 2)], [(1, 1), (1, 3), (2, 3)]]
    # Somebody has written what is torn off: that keeps its place.
    tables = {Oid(1): [torn[0], commit(2, 2), torn[1]], Oid(2): [as_sent(3, 1, 300)]}
    found = [
        [(int(r), c.version) for r, c in o.commits] for o in in_order(tables, NODE)
    ]
    assert found == [[(1, 1)], [(1, 2)], [(1, 3), (2, 3)]]


def test_a_local_transaction_has_the_number_that_its_commits_carry() -> None:
    said = CommitRemarks(xid=1025)
    ours = replace(commit(1, 10, "truncate 3", wal2lake_7_local=1), remarks=said)
    other = replace(commit(4, 11, "truncate 3", wal2lake_7_local=9), remarks=said)
    # Another node numbers its own, and anybody may write any word.
    theirs = replace(commit(1, 20, wal2lake_8_local=1), remarks=said)
    anybody = replace(commit(1, 30), remarks=said)
    before = commit(1, 40, "local transaction", wal2lake_7_local=1)
    tables = [[ours], [other], [theirs], [anybody], [before]]
    found = in_order({Oid(n): of for n, of in enumerate(tables, 1)}, NODE)
    assert [(len(one.commits), one.xid) for one in found] == [
        (2, 1025),
        (1, None),
        (1, None),
        (1, None),
    ]
