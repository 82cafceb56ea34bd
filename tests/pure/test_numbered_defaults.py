"""Values of sequences for rows that a publisher sends: each its own, wherever it is staged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from wal2lake.catalog import Catalog, ColumnDef, OwnedSequence, TableDef
from wal2lake.engine.columndefaults import EvaluatedDefaults
from wal2lake.errors import UsageError
from wal2lake.lake.staging.defaults import Fill, behind, filled, have_sequences
from wal2lake.local.concurrency.sequencevalues import SequenceLocks
from wal2lake.model import Oid

pytestmark = pytest.mark.usefixtures("no_fsync")

COLUMNS = (
    ColumnDef("id", Oid(23)),
    ColumnDef("s", Oid(21), sequence=Oid(501), not_null=True),
    ColumnDef("i", Oid(20), sequence=Oid(502), identity="a", not_null=True),
)
TABLE = TableDef(Oid(500), "public", "t", Oid(10), COLUMNS, (), "/t")
SEQUENCES = (
    OwnedSequence(Oid(501), "public", "t_s_seq", Oid(500), Oid(21)),
    OwnedSequence(Oid(502), "public", "t_i_seq", Oid(500), Oid(20), -10, -5),
)


@pytest.fixture
def defaults(tmp_path: Path) -> EvaluatedDefaults:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "boss", None)
    catalog.create_table(TABLE, owning=SEQUENCES)
    no_queries: Any = None
    return EvaluatedDefaults(catalog, no_queries, SequenceLocks())


def test_rows_that_are_inserted_have_the_next_ones() -> None:
    rows = np.array([True, False, True, True])
    fill = Fill(sequence=Oid(501), first=7, step=2)
    assert filled(fill, rows, pa.int16()).to_pylist() == [7, None, 9, 11]
    nobody = np.zeros(2, np.bool_)
    assert filled(Fill(sequence=Oid(501)), nobody, pa.int16()).to_pylist() == [None] * 2


@pytest.mark.parametrize(("first", "step"), [(32767, 1), (-32767, -2)])
def test_a_number_beyond_the_columns_type_is_out_of_range(
    first: int, step: int
) -> None:
    """It became a negative one in silence, where a serial column was made smallint."""
    rows = np.ones(2, np.bool_)
    with pytest.raises(UsageError, match="smallint out of range") as caught:
        filled(Fill(sequence=Oid(501), first=first, step=step), rows, pa.int16())
    assert caught.value.sqlstate == "22003"


def test_rows_that_a_restart_removes_may_have_any_number() -> None:
    rows = np.ones(40_002, np.bool_)
    found = filled(Fill(sequence=Oid(501), first=1 - 40_000, step=1), rows, pa.int16())
    assert found.to_pylist()[-2:] == [1, 2]
    found = filled(Fill(sequence=Oid(501), first=40_000 - 1, step=-1), rows, pa.int16())
    assert found.to_pylist()[-2:] == [-1, -2]


def test_what_is_taken_once_is_nobody_elses(defaults: EvaluatedDefaults) -> None:
    fills = defaults(TABLE.oid, ["s", "i"])
    assert have_sequences(fills) and not have_sequences({"a": Fill(pa.array([1]))})
    assert defaults.numbered(fills, 0) == fills
    first = defaults.numbered(fills, 3)
    again = defaults.numbered(fills, 1)
    found = [(one["s"].first, one["i"].first) for one in (first, again)]
    assert found == [(1, -10), (4, -25)]
    rest = behind(first, 2)
    assert (rest["s"].first, rest["i"].first) == (3, -20)
    assert behind(first, 0) is first


def test_a_sequence_that_has_not_so_many_is_an_error_of_its_column(
    defaults: EvaluatedDefaults,
) -> None:
    fills = defaults.numbered(defaults(TABLE.oid, ["s", "i"]), 32_768)
    assert fills["s"].error == (
        "2200H",
        'nextval: reached maximum value of sequence "t_s_seq" (32767)',
    )
    assert fills["i"].first == -10
    assert behind(fills, 3)["s"] == fills["s"]
    assert defaults.numbered(defaults(TABLE.oid, ["s"]), 32_767)["s"].first == 1
