"""The rows that make a copy equal to its source, whatever the copy has; which rows of the source
are read for it; heal is an option of REFRESH PUBLICATION."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wal2lake.errors import SqlSyntaxError, Wal2LakeError
from wal2lake.sql.grammar import OptionSet, subscription_options
from wal2lake.sql.grammar.parser import parse
from wal2lake.sql.grammar.statements import AlterSubscriptionRefresh
from wal2lake.verify import (
    DifferingRows,
    LakeSide,
    TableStatements,
    differing_rows,
    form_of,
)
from wal2lake.verify.compare import _differing_keys
from wal2lake.verify.digests import BlockDigests
from wal2lake.verify.division import Division, divided_by_hash
from wal2lake.verify.rowhashes import Hashes, RowHashes, hash_rows
from wal2lake.verify.sides import ServerSide, Texts

FORMS = (form_of(pa.int32(), 23), form_of(pa.string(), 25))
KEY = (0,)
Row = tuple[int, str | None]


def columns_of(rows: Sequence[Row]) -> list[pa.Array]:
    return [
        pa.array([row[0] for row in rows], pa.int32()),
        pa.array([row[1] for row in rows], pa.string()),
    ]


class ReadInMemory:
    """Reads rows in batches of 7."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._table = pa.table(dict(zip("ab", columns_of(rows), strict=True)))
        self.rows = len(rows)

    def batches(self) -> AbstractContextManager[Iterable[pa.RecordBatch]]:
        return nullcontext(self._table.to_batches(max_chunksize=7))


class SourceInMemory:
    """A server's rows, hashed here."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.all = rows
        self.read: list[list[int]] = []

    def _hashed(self) -> tuple[list[pa.Array], RowHashes]:
        columns = columns_of(self.all)
        return columns, hash_rows(columns, FORMS, KEY)

    def digests(self, division: Division) -> BlockDigests:
        digests = BlockDigests.empty(division.blocks)
        columns, hashes = self._hashed()
        digests.add(division.of(columns, hashes), hashes)
        return digests

    def within(self, division: Division, blocks: Sequence[int]) -> SourceInMemory:
        self.read.append(list(blocks))
        return self

    def hashes(self, division: Division, blocks: NDArray[np.int64]) -> RowHashes:
        columns, hashes = self._hashed()
        return hashes.chosen(np.isin(division.of(columns, hashes), blocks))

    def whole_rows(self, keys: Hashes) -> Iterator[tuple[Texts, Texts]]:
        _, hashes = self._hashed()
        for row, key in zip(self.all, hashes.key, strict=True):
            if key in keys:
                yield (str(row[0]),), (str(row[0]), row[1])


def served(rows: Sequence[Row]) -> ServerSide:
    return cast(ServerSide, SourceInMemory(rows))


def healed(
    source: Sequence[Row], copy: Sequence[Row], division: Division
) -> tuple[list[Row], DifferingRows]:
    """The copy after the differing rows were removed and written."""

    side = LakeSide(ReadInMemory(copy), None, FORMS, KEY, lambda rows: None)
    with patch.object(LakeSide, "divide", return_value=division):
        differing = differing_rows(served(source), side, 1000, 100_000)
    assert differing is not None
    removed = {int(str(key[0])) for key in differing.removed}
    written = {int(str(row[0])): row[1] for row in differing.written}
    kept = [(key, written.pop(key, value)) for key, value in copy if key not in removed]
    return sorted([*kept, *written.items()], key=str), differing


values = st.one_of(st.none(), st.sampled_from(["", "a", "b"]))


@given(
    st.dictionaries(st.integers(-5, 40), values),
    st.lists(st.tuples(st.integers(-5, 40), values)),
    st.booleans(),
)
def test_any_copy_becomes_its_source(
    source: dict[int, str | None], copy: list[Row], by_order: bool
) -> None:
    division = Division(3, (5, 20)) if by_order else divided_by_hash(40_000)
    rows = list(source.items())
    result, _ = healed(rows, copy, division)
    assert result == sorted(rows, key=str)


def test_only_what_differs_is_read_and_written() -> None:
    rows: list[Row] = [(n, "v") for n in range(100)]
    copy = [row for row in rows if row[0] != 50]
    copy[10] = (10, None)
    copy += [(7, "v"), (200, "extra")]
    result, differing = healed(rows, copy, Division(4, (25, 50, 75)))
    assert result == sorted(rows, key=str)
    assert differing.written == (("7", "v"), ("10", "v"), ("50", "v"))
    assert sorted(differing.removed) == [("200",), ("7",)]
    assert (differing.blocks, differing.differing_blocks) == (4, 3)


@pytest.mark.parametrize(("rows", "characters"), [(2, 100), (3, 5)])
def test_too_many_differences_are_left_to_a_copy(rows: int, characters: int) -> None:
    source = served([(n, "vv") for n in range(3)])
    copy = LakeSide(ReadInMemory([]), None, FORMS, KEY, lambda rows: None)
    assert differing_rows(source, copy, rows, characters) is None


def test_rows_count_as_often_as_they_are_there() -> None:
    columns = columns_of([(1, "a"), (2, "b"), (2, "b"), (3, "c")])
    hashes = hash_rows(columns, FORMS, KEY)
    other = hashes.chosen(np.array([3, 2, 0]))
    assert _differing_keys(hashes, other).tolist() == [hashes.key[1]]
    assert len(_differing_keys(hashes, hashes)) == 0


def test_blocks_are_ranges_that_an_index_finds() -> None:
    statements = TableStatements("ONLY public.t", ("a", "b"), FORMS, KEY)
    division = Division(5, (10, 20, 30, 40))
    assert list(division.ranges([0, 1, 3])) == [(None, 20), (30, 40)]
    assert list(division.ranges([4])) == [(40, None)]
    assert list(division.ranges(range(5))) == [(None, None)]
    within = statements.within(division, [0, 1, 3])
    assert within.rows == (
        'ONLY public.t WHERE (("a" < 20) OR ("a" >= 30 AND "a" < 40))'
    )
    filtered = TableStatements("t WHERE (a > 1)", ("a", "b"), FORMS, KEY, filtered=True)
    assert filtered.within(division, [4]).rows == 't WHERE (a > 1) AND (("a" >= 40))'
    assert statements.within(divided_by_hash(40_000), [0]) == statements


def options_of(text: str) -> bool:
    statement = parse(f"alter subscription s refresh publication with ({text})")
    assert isinstance(statement, AlterSubscriptionRefresh)
    return subscription_options(statement.options, OptionSet.REFRESH).heal


def test_heal_is_an_option_of_refresh() -> None:
    assert options_of("heal = true")
    assert options_of("heal")
    assert not options_of("recopy = true, heal = false")
    for text in ("heal, recopy", "heal, copy_data = false", "heal = 3"):
        with pytest.raises((SqlSyntaxError, Wal2LakeError)):
            options_of(text)
