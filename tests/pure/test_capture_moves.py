"""Rows whose key has changed: a subscriber that is told of them holds what the table holds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.lake.capture.comparison import ComparisonMemory, RecordedUpdates, compare
from wal2lake.lake.capture.moves import (
    MOST_ROWS,
    Key,
    KeyMoves,
    MovedKey,
    arranged,
    chosen,
    moved_from,
)

SCHEMA = pa.schema([("v0", pa.binary()), ("v1", pa.binary())])
DELETE, UPDATE, MOVE, INSERT = range(4)

Row = tuple[bytes, bytes]


def moved(*pairs: tuple[int, int]) -> list[MovedKey]:
    return [MovedKey((str(old),), (str(new),)) for old, new in pairs]


def table(rows: list[Row]) -> list[pa.Table]:
    columns = [pa.array([row[i] for row in rows], pa.binary()) for i in (0, 1)]
    return [pa.Table.from_arrays(columns, schema=SCHEMA)]


def compared(
    gone: list[Row], came: list[Row], key: list[int], said: list[MovedKey]
) -> list[tuple[int, Row, Row]]:
    """Kind, the row that went, the row that came."""
    memory = ComparisonMemory(64 << 20, Path("/nonexistent"))
    found = []
    for part in compare(
        table(gone), table(came), SCHEMA, key, RecordedUpdates(said), memory
    ):
        found += [
            (row["kind"], (row["g0"], row["g1"]), (row["v0"], row["v1"]))
            for row in part.to_pylist()
        ]
    return found


@pytest.mark.parametrize(
    ("statements", "known"),
    [
        ([[(1, 2)], [(2, 3)]], [(1, 3)]),
        ([[(1, 2)], [(2, 1)]], []),
        ([[(1, 2), (2, 3)], [(3, 4)]], [(1, 2), (2, 4)]),
        ([[(1, 9)], [(2, 1)], [(9, 2)]], [(2, 1), (1, 2)]),
        ([[(1, 1)]], []),
    ],
)
def test_what_statements_move_is_one_move(
    statements: list[list[tuple[int, int]]], known: list[tuple[int, int]]
) -> None:
    moves = KeyMoves()
    for pairs in statements:
        moves = moves.then(moved(*pairs))
    assert sorted(moves.moved) == sorted(moved(*known))
    assert moved_from(json.loads(json.dumps(moves.moved))) == moves.moved


def test_too_many_moves_are_none() -> None:
    some = moved(*((n, -n) for n in range(1, MOST_ROWS + 1)))
    moves = KeyMoves().then(some)
    assert len(moves.moved) == MOST_ROWS
    more = moves.then(moved((10**6, 10**7)))
    assert (more.moved, more.too_many) == ((), True)
    assert more.then(moved((1, 2))).moved == ()
    long = [MovedKey((str(n), "x" * 5000), (str(n + 1), None)) for n in range(300)]
    assert KeyMoves().then(long).too_many


def test_a_move_is_only_what_the_difference_has() -> None:
    said = moved((1, 2), (1, 3), (4, 5), (6, 7))
    gone: dict[Key, int] = {("1",): 1, ("4",): 1}
    came: dict[Key, int] = {("2",): 1, ("3",): 1, ("7",): 1}
    assert chosen(said, gone, came) == [(said[0], 0, 0)]
    twice = moved((1, 2), (1, 2), (1, 2))
    found = chosen(twice, {("1",): 2}, {("2",): 3})
    assert found == [(twice[0], 0, 0), (twice[1], 1, 1)]


def test_a_key_is_free_when_a_row_takes_it() -> None:
    chain = moved((1, 2), (3, 4), (2, 3), (7, 8), (9, 9), (5, 6), (6, 5))
    found = arranged(chain)
    assert found == moved((3, 4), (2, 3), (1, 2), (7, 8))


@st.composite
def transactions(
    draw: st.DrawFn,
) -> tuple[dict[int, str], dict[int, str], list[MovedKey], list[int]]:
    """A table with a key before and after; what was said; keys of rows written again."""
    keys = st.integers(0, 7)
    before = draw(st.dictionaries(keys, st.sampled_from("abc"), max_size=8))
    now = dict(before)
    moves = KeyMoves()
    for kind in draw(st.lists(st.sampled_from("IUDMMM"), max_size=8)):
        if kind == "I":
            now.setdefault(draw(keys), draw(st.sampled_from("xyz")))
        elif kind == "M":
            # Several at once, as UPDATE ... SET id = f(id) WHERE ...
            step = draw(st.integers(-3, 3))
            least = draw(keys)
            there = [k for k in now if k >= least]
            target = {k: (k + step) % 12 for k in there}
            rest = {k: v for k, v in now.items() if k not in target}
            if len({*target.values()}) < len(target) or rest.keys() & {
                *target.values()
            }:
                continue
            pairs = [(k, t) for k, t in target.items() if k != t]
            now = rest | {target[k]: now[k] for k in there}
            moves = moves.then(moved(*pairs))
        elif now:
            one = draw(st.sampled_from(sorted(now)))
            if kind == "D":
                del now[one]
            else:
                now[one] = draw(st.sampled_from("abcxyz"))
    said = list(moves.moved)
    # Whatever is said, the rows are those of the difference.
    if draw(st.booleans()):
        said += moved(*draw(st.lists(st.tuples(keys, keys), max_size=4)))
    again = draw(st.lists(keys, unique=True))
    return before, now, said, again


@settings(max_examples=examples(80), deadline=None)
@given(transactions())
def test_a_subscriber_with_a_primary_key_can_apply_it(
    found: tuple[dict[int, str], dict[int, str], list[MovedKey], list[int]],
) -> None:
    before, now, said, again = found

    def rows(one: dict[int, str], other: dict[int, str]) -> list[Row]:
        return [
            (str(k).encode(), v.encode())
            for k, v in one.items()
            if other.get(k) != v or k in again
        ]

    copy = {str(k).encode(): v.encode() for k, v in before.items()}
    for kind, old, new in compared(rows(before, now), rows(now, before), [0], said):
        if kind != INSERT:
            assert copy.pop(old[0]) == old[1]
        if kind != DELETE:
            assert new[0] not in copy
            copy[new[0]] = new[1]
        assert (kind == MOVE) == (kind in (UPDATE, MOVE) and old[0] != new[0])
    assert copy == {str(k).encode(): v.encode() for k, v in now.items()}


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_rows_without_a_key_are_moved_as_a_whole(data: st.DataObject) -> None:
    row = st.tuples(st.sampled_from([b"1", b"2"]), st.sampled_from([b"a", b"b"]))
    before = data.draw(st.lists(row, max_size=6))
    now = list(before)
    moves = KeyMoves()
    for _ in range(data.draw(st.integers(0, 3))):
        one, other = data.draw(row), data.draw(row)
        texts = [tuple(v.decode() for v in r) for r in (one, other)]
        moves = moves.then([MovedKey(*texts) for r in now if r == one and one != other])
        now = [other if r == one else r for r in now]
    added = data.draw(st.lists(row, max_size=3))
    now += added
    found = compared(before, now, [], list(moves.moved))
    copy = Counter(before)
    for kind, old, new in found:
        assert kind != UPDATE
        if kind != INSERT:
            assert copy[old] > 0
            copy[old] -= 1
        if kind != DELETE:
            copy[new] += 1
    assert +copy == Counter(now)
    if not added:
        assert {kind for kind, _, _ in found} <= {MOVE}


def test_a_row_that_takes_the_place_of_a_deleted_one() -> None:
    found = compared(
        [(b"1", b"one"), (b"2", b"two"), (b"5", b"same")],
        [(b"2", b"one"), (b"5", b"same"), (b"1", b"new")],
        [0],
        moved((1, 2)),
    )
    assert found == [
        (DELETE, (b"2", b"two"), (None, None)),
        (MOVE, (b"1", b"one"), (b"2", b"one")),
        (INSERT, (None, None), (b"1", b"new")),
    ]


def test_rows_that_swap_their_keys_are_updated_where_they_are() -> None:
    found = compared(
        [(b"1", b"one"), (b"2", b"two")],
        [(b"1", b"two"), (b"2", b"one")],
        [0],
        moved((1, 2), (2, 1)),
    )
    assert sorted(found) == [
        (UPDATE, (b"1", b"one"), (b"1", b"two")),
        (UPDATE, (b"2", b"two"), (b"2", b"one")),
    ]


@pytest.mark.parametrize(
    ("updated", "told"), [(2, [b"1", b"2"]), (1, [b"2"]), (0, [b"2"])]
)
def test_rows_that_were_updated_to_what_they_were_are_told_if_nothing_else_went(
    tmp_path: Path, updated: int, told: list[bytes]
) -> None:
    # 1 is written as it was; 2 has another value.
    gone, came = [(b"1", b"7"), (b"2", b"8")], [(b"1", b"7"), (b"2", b"9")]
    said, memory = RecordedUpdates((), updated), ComparisonMemory(64 << 20, tmp_path)
    for key in ([0], [0, 1]):
        parts = compare(table(gone), table(came), SCHEMA, key, said, memory)
        rows = [row for part in parts for row in part.to_pylist()]
        updates = [row["v0"] for row in rows if row["kind"] == UPDATE]
        # Compared as a whole the second row is one that went and one that came.
        assert updates == (told if key == [0] else told[:-1])
