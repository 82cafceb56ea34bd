"""The catalog keeps what the last comparison of each table has found: an earlier one changes
nothing, a difference keeps the time of its first finding, and a new copy begins anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.commands import KEPT, SUB, World

from wal2lake.catalog import Catalog, ComparedTable, FoundDifference
from wal2lake.model import Lsn, Oid

pytestmark = pytest.mark.usefixtures("no_fsync")

LOST = FoundDifference("missing", (("id", "1"),), ())
CHANGED = FoundDifference("changed", (("id", "2"),), (("v", "a", None),))


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    yield World(tmp_path, monkeypatch).catalog


def note(catalog: Catalog, lsn: int, *differences: FoundDifference) -> None:
    compared = ComparedTable(
        Lsn(lsn), f"2026-01-{lsn:02}", 3, 100, len(differences), differences
    )
    catalog.note_verification(SUB, KEPT, compared)


def test_the_last_comparison_counts(catalog: Catalog) -> None:
    note(catalog, 5)
    note(catalog, 7, LOST, CHANGED)
    note(catalog, 6)
    (found,) = catalog.verifications()
    assert (found.subid, found.relid, found.blocks, found.rows) == (SUB, KEPT, 3, 100)
    assert (found.compared_lsn, found.differing_rows) == (Lsn(7), 2)
    assert (found.verified_lsn, found.verified_at) == (Lsn(5), "2026-01-05")
    assert (found.different_lsn, found.different_at) == (Lsn(7), "2026-01-07")
    assert [noted.difference for noted in catalog.differences()] == [LOST, CHANGED]
    note(catalog, 8)
    (found,) = catalog.verifications()
    assert (found.verified_lsn, found.different_lsn) == (Lsn(8), Lsn(7))
    assert catalog.differences() == []


def test_a_difference_keeps_the_time_of_its_first_finding(catalog: Catalog) -> None:
    note(catalog, 5, LOST)
    note(catalog, 6, CHANGED, LOST)
    assert [(d.difference, d.lsn, d.since) for d in catalog.differences()] == [
        (CHANGED, Lsn(6), "2026-01-06"),
        (LOST, Lsn(6), "2026-01-05"),
    ]


def test_nothing_is_known_about_a_new_copy(catalog: Catalog) -> None:
    note(catalog, 5, LOST)
    catalog.update_rel(SUB, KEPT, epoch=77)
    assert (catalog.verifications(), catalog.differences()) == ([], [])
    note(catalog, 4, CHANGED)
    (found,) = catalog.verifications()
    assert (found.compared_lsn, found.verified_lsn) == (Lsn(4), None)
    assert [noted.difference for noted in catalog.differences()] == [CHANGED]


def test_a_table_that_has_left_is_forgotten(catalog: Catalog) -> None:
    note(catalog, 5, LOST)
    catalog.note_verification(
        SUB, Oid(99999), ComparedTable(Lsn(5), "2026-01-05", 1, 1, 0)
    )
    assert len(catalog.verifications()) == 1
    catalog.drop_subscription(SUB)
    assert (catalog.verifications(), catalog.differences()) == ([], [])


def test_repaired_rows_are_counted_and_leave_the_list(catalog: Catalog) -> None:
    note(catalog, 5, LOST, CHANGED)
    repaired = [noted for noted in catalog.differences() if noted.difference == LOST]
    for _ in range(2):
        # The second time, a crash has left the rows listed.
        catalog.note_repaired(SUB, KEPT, repaired)
    (found,) = catalog.verifications()
    assert (found.differing_rows, found.repaired_rows) == (1, 2)
    assert [noted.difference for noted in catalog.differences()] == [CHANGED]
