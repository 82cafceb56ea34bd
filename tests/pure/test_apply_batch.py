"""Which segments become a batch, and which files are whose (apply/batch.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.publisher import relation

from wal2lake.apply.batch import TableChanges, choose, divide
from wal2lake.apply.step.batchwork import BatchPart
from wal2lake.changelog import LogFile, Manifest, RowsFile
from wal2lake.model import Lsn, Oid


def rows_file(
    relid: int,
    first: int,
    last: int,
    *,
    inserts: int = 1,
    updates: int = 0,
    size: int = 10,
) -> RowsFile:
    return RowsFile(
        file=LogFile(f"seg-{relid}-{first}", size, 0),
        relation=relation(relid),
        type_names={},
        inserts=inserts,
        updates=updates,
        deletes=0,
        truncates=0,
        min_commit_lsn=Lsn(first),
        max_commit_lsn=Lsn(last),
        has_unchanged=False,
        has_old_rows=False,
        has_key_change=False,
    )


def segment(number: int, files: Sequence[RowsFile]) -> Manifest:
    """Segment ``number`` holds the commits from 100 x number on, and ends 8 behind 90."""
    return Manifest(
        number=number,
        first_commit_lsn=Lsn(100 * number),
        last_commit_lsn=Lsn(100 * number + 90),
        sealed_lsn=Lsn(100 * number + 98),
        last_commit_time=0,
        transactions=1,
        transactions_file=LogFile(f"seg-{number}-t", 0, 0),
        files=tuple(files),
    )


SEGMENTS = st.lists(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.integers(0, 90),
            st.integers(0, 90),
            st.integers(0, 50),
        ),
        max_size=4,
    ),
    max_size=8,
).map(
    lambda all_files: [
        segment(
            number,
            [
                rows_file(
                    relid,
                    100 * number + min(a, b),
                    100 * number + max(a, b),
                    inserts=size,
                    size=size,
                )
                for relid, a, b, size in files
            ],
        )
        for number, files in enumerate(all_files, 1)
    ]
)


@given(SEGMENTS, st.integers(0, 120), st.integers(0, 120), st.integers(0, 900))
def test_a_batch_is_the_longest_beginning_within_the_limits_and_far_enough(
    waiting: list[Manifest], max_bytes: int, max_rows: int, at_least: int
) -> None:
    chosen = choose(
        waiting, max_bytes=max_bytes, max_rows=max_rows, at_least=Lsn(at_least)
    )
    assert list(chosen) == waiting[: len(chosen)]
    assert bool(chosen) == bool(waiting)

    def within(some: Sequence[Manifest]) -> bool:
        rows = sum(f.rows for m in some for f in m.files)
        return sum(m.size for m in some) <= max_bytes and rows <= max_rows

    def needed(some: Sequence[Manifest]) -> bool:
        """Without its last segment it would be empty, or not far enough."""
        return len(some) <= 1 or some[-2].sealed_lsn < at_least

    assert not chosen or within(chosen) or needed(chosen)
    if len(chosen) < len(waiting):
        assert chosen[-1].sealed_lsn >= at_least
        assert not within(waiting[: len(chosen) + 1])


POSITIONS = st.dictionaries(st.integers(1, 4), st.integers(0, 1000), max_size=4)


@given(SEGMENTS, POSITIONS)
def test_each_table_gets_its_files_in_log_order_from_its_position_on(
    manifests: list[Manifest], positions: dict[int, int]
) -> None:
    # Our OIDs are others than the publisher's.
    targets = {
        ("public", f"t{relid}"): (Oid(1000 + relid), Lsn(position))
        for relid, position in positions.items()
    }
    end = manifests[-1].sealed_lsn if manifests else Lsn(0)
    batch = divide(manifests, positions=targets, end=end)
    assert (batch.manifests, batch.end) == (tuple(manifests), end)
    assert len({t.relid for t in batch.tables}) == len(batch.tables)
    found = {int(t.relid) - 1000: t for t in batch.tables}
    everything = [f for m in manifests for f in m.files]
    for relid, position in positions.items():
        mine = [f for f in everything if f.relation.relid == relid]
        wanted = [f for f in mine if f.max_commit_lsn >= position]
        if not wanted:
            assert relid not in found
            continue
        assert list(found[relid].files) == wanted
        assert found[relid].position == position
    assert set(found) <= set(positions), "what takes no part is apart"
    assert list(batch.others) == [
        f for f in everything if f.relation.relid not in positions
    ]
    assert batch.rows == sum(f.rows for t in batch.tables for f in t.files)


@pytest.mark.parametrize(("cursor", "future"), [(189, True), (190, True), (191, False)])
def test_a_commit_at_the_cursor_belongs_to_the_future(
    cursor: int, future: bool
) -> None:
    """Invariant 2: S of a copy is the end of one record and may be the start of the next
    transaction's commit record."""
    one = segment(1, [rows_file(1, 100, 190)])
    batch = divide(
        [one], positions={("public", "t1"): (Oid(7), Lsn(cursor))}, end=one.sealed_lsn
    )
    assert bool(batch.tables) is future


def test_tables_go_by_the_publisher_s_schema_and_name() -> None:
    one = segment(1, [rows_file(1, 100, 190)])
    other = divide(
        [one], positions={("other", "t1"): (Oid(7), Lsn(0))}, end=one.sealed_lsn
    )
    assert other.tables == ()
    mine = divide(
        [one], positions={("public", "t1"): (Oid(7), Lsn(0))}, end=one.sealed_lsn
    )
    assert [t.relid for t in mine.tables] == [7]


def test_one_update_makes_a_batch_more_than_an_append() -> None:
    segments = [
        segment(1, [rows_file(1, 100, 190), rows_file(2, 100, 190)]),
        segment(2, [rows_file(1, 200, 290, inserts=5, updates=1)]),
    ]
    positions = {("public", f"t{i}"): (Oid(i), Lsn(0)) for i in (1, 2)}
    batch = divide(segments, positions=positions, end=segments[-1].sealed_lsn)
    assert {int(t.relid): t.insert_only for t in batch.tables} == {1: False, 2: True}
    assert {int(t.relid): t.rows for t in batch.tables} == {1: 7, 2: 1}


def test_the_parts_that_take_longest_come_first() -> None:
    def part(relid: int, size: int, *, unchanged: bool = False) -> BatchPart:
        file = replace(rows_file(relid, 1, 2, size=size), has_unchanged=unchanged)
        return BatchPart(TableChanges(Oid(relid), Lsn(0), (file,)), None)

    parts = [part(1, 10), part(2, 1000), part(3, 20), part(4, 5, unchanged=True)]
    ordered = sorted(parts, key=lambda one: one.order)
    assert [one.changes.relid for one in ordered] == [4, 2, 3, 1]
