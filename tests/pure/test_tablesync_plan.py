"""How a copy is divided, and what each part asks (tablesync/plan.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal2lake.model import Oid, ReplicaIdentity
from wal2lake.pg import RemoteTable
from wal2lake.pg.publishedtables import RemoteColumn
from wal2lake.tablesync.plan import (
    SMALL_BYTES,
    CopyPart,
    PageRange,
    bundles,
    copy_statement,
    decode_plan,
    encode_plan,
    groups,
    page_ranges,
    range_bytes,
)


def table(
    pages: int = 0,
    *,
    kind: str = "r",
    columns: tuple[str, ...] = ("id", "v"),
    filters: tuple[str, ...] = (),
    name: str = "t",
) -> RemoteTable:
    return RemoteTable(
        oid=Oid(1),
        namespace="public",
        name=name,
        kind=kind,
        identity=ReplicaIdentity.DEFAULT,
        columns=tuple(
            RemoteColumn(c, Oid(25), -1, "text", "b", 0, False, None, False, True)
            for c in columns
        ),
        key=(),
        identity_key=(),
        row_filters=filters,
        estimated_rows=None,
        pages=pages,
        file_node="1",
        persistence="p",
        row_security=False,
    )


@given(st.integers(0, 500_000), st.integers(1 << 20, 1 << 32), st.integers(1, 64))
@settings(deadline=None)
def test_the_ranges_cover_every_page_once_however_the_table_grows(
    pages: int, range_bytes: int, readers: int
) -> None:
    ranges = page_ranges(table(pages), range_bytes=range_bytes, min_ranges=readers)
    assert [r.number for r in ranges] == list(range(len(ranges)))
    # Open on both sides: rows on pages behind the estimate belong to the last.
    assert ranges[0].first is None
    assert ranges[-1].end is None
    assert all(a.end == b.first is not None for a, b in pairwise(ranges))
    bounds = [0, *(r.end for r in ranges[:-1] if r.end is not None), max(pages, 1)]
    assert all(a < b for a, b in pairwise(bounds)), "no range is empty"
    # A range is no larger than wanted, unless that is less than a page.
    step = max(b - a for a, b in pairwise(bounds))
    assert step * 8192 < range_bytes + 8192


@pytest.mark.parametrize(
    ("pages", "range_bytes", "readers", "expected"),
    [
        (0, 1 << 20, 4, 1),
        (1, 1 << 20, 4, 1),
        # Under 64 pages a range is not worth a connection.
        (63, 1 << 20, 4, 1),
        (128, 1 << 30, 4, 2),
        (1000, 1 << 30, 4, 4),
        (1280, 1 << 20, 4, 12),
    ],
)
def test_how_many_ranges_a_table_gets(
    pages: int, range_bytes: int, readers: int, expected: int
) -> None:
    found = page_ranges(table(pages), range_bytes=range_bytes, min_ranges=readers)
    assert len(found) == expected


@pytest.mark.parametrize("kind", ["p", "f", "m"])
def test_what_has_no_pages_of_its_own_is_one_range(kind: str) -> None:
    found = page_ranges(table(10_000, kind=kind), range_bytes=1 << 20, min_ranges=4)
    assert found == (PageRange(0, None, None),)


@given(st.integers(0, 100_000), st.integers(1, 16))
def test_a_resumed_copy_is_divided_as_before_under_the_same_snapshot_only(
    pages: int, readers: int
) -> None:
    ranges = page_ranges(table(pages), range_bytes=1 << 20, min_ranges=readers)
    text = encode_plan("00000003-0000001B-1", ranges)
    assert decode_plan(text, "00000003-0000001B-1") == ranges
    assert decode_plan(text, "00000003-0000001B-2") is None
    assert decode_plan(None, "00000003-0000001B-1") is None
    assert set(json.loads(text)) == {"snapshot", "bounds"}


@pytest.mark.parametrize(
    ("asked", "pages", "expected"),
    [
        (
            table(),
            PageRange(0, None, None),
            'COPY (SELECT "id", "v" FROM ONLY "public"."t") TO STDOUT WITH (FORMAT csv)',
        ),
        (
            table(columns=('we"ird',), name="T x"),
            PageRange(0, None, 5),
            'COPY (SELECT "we""ird" FROM ONLY "public"."T x"'
            " WHERE ctid < '(5,0)'::pg_catalog.tid) TO STDOUT WITH (FORMAT csv)",
        ),
        (
            table(filters=("(a > 1)", "(b IS NULL)")),
            PageRange(1, 5, 9),
            'COPY (SELECT "id", "v" FROM ONLY "public"."t"'
            " WHERE ctid >= '(5,0)'::pg_catalog.tid AND ctid < '(9,0)'::pg_catalog.tid"
            " AND (((a > 1)) OR ((b IS NULL)))) TO STDOUT WITH (FORMAT csv)",
        ),
        (
            table(kind="p"),
            PageRange(0, None, None),
            'COPY (SELECT "id", "v" FROM "public"."t") TO STDOUT WITH (FORMAT csv)',
        ),
        # A publication of no columns of a table: rows without content.
        (
            table(columns=()),
            PageRange(2, 7, None),
            'COPY (SELECT  FROM ONLY "public"."t"'
            " WHERE ctid >= '(7,0)'::pg_catalog.tid) TO STDOUT WITH (FORMAT csv)",
        ),
    ],
)
def test_what_one_range_asks(
    asked: RemoteTable, pages: PageRange, expected: str
) -> None:
    assert copy_statement(asked, pages) == expected


SIZES = st.one_of(st.none(), st.integers(0, 4 * SMALL_BYTES))


@given(st.lists(SIZES, max_size=200), st.integers(1, 8))
def test_bundles_have_every_part_once_and_large_ones_alone(
    sizes: list[int | None], readers: int
) -> None:
    parts = [
        CopyPart(i, PageRange(0, None, None), size) for i, size in enumerate(sizes)
    ]
    found = bundles(parts, readers=readers)
    assert sorted(part.table for one in found for part in one) == list(
        range(len(sizes))
    )
    small = [s for s in sizes if s is not None and s <= SMALL_BYTES]
    for one in found:
        if len(one) > 1:
            assert len(one) <= 32
            assert all(p.size is not None and p.size <= SMALL_BYTES for p in one)
    alone = len(sizes) - len(small)
    assert len(found) - alone >= min(readers, len(small)) * 0.5
    assert len(found) - alone <= max(readers, -(-len(small) // 32))


@given(st.lists(SIZES, max_size=200), st.integers(0, 8))
def test_groups_keep_the_order_and_put_no_table_beside_a_large_one(
    sizes: list[int | None], workers: int
) -> None:
    tables = list(enumerate(sizes))
    found = groups(tables, workers=workers)
    assert len(found) == min(workers, len(found))
    assert bool(found) == bool(tables and workers)
    chosen = [number for group in found for number in group]
    assert len(set(chosen)) == len(chosen)
    for group in found:
        assert list(group) == sorted(group)
        if len(group) > 1:
            assert len(group) <= 32
            assert all((sizes[n] or 0) <= SMALL_BYTES for n in group)
            assert all(sizes[n] is not None for n in group)


def test_small_tables_are_shared_out_among_the_workers() -> None:
    tables = [(n, 1000) for n in range(10)]
    assert [len(group) for group in groups(tables, workers=2)] == [5, 5]
    assert [len(group) for group in groups(tables * 20, workers=2)] == [32, 32]


def test_how_large_a_range_is() -> None:
    assert range_bytes(table(10), PageRange(0, None, None)) == 10 * 8192
    assert range_bytes(table(10), PageRange(1, 4, 6)) == 2 * 8192
    assert range_bytes(table(10), PageRange(1, 4, None)) == 6 * 8192
    assert range_bytes(table(0, kind="p"), PageRange(0, None, None)) is None


def test_a_table_of_which_only_columns_may_be_read_is_one_range() -> None:
    """Nobody grants SELECT on ctid."""
    whole = table(10_000)
    assert len(page_ranges(whole, range_bytes=1 << 20, min_ranges=2)) > 1
    (one,) = page_ranges(replace(whole, whole=False), range_bytes=1 << 20, min_ranges=2)
    assert "ctid" not in copy_statement(whole, one)
