"""The demo's comparison finds every kind of difference, else its verdict is worthless."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal2lake.cli.demo.compare import compare_rows, describe

SOURCE = [("1", "a"), ("2", None), ("3", "c")]


def compare(copy):
    return compare_rows("t", [0], SOURCE, copy)


def test_the_same_rows_in_any_order_are_equal():
    found = compare(list(reversed(SOURCE)))
    assert found.is_equal
    assert describe(found) == ["t                   3 rows   equal"]


def test_each_kind_of_difference_is_found_and_shown():
    assert compare(SOURCE[:2]).missing == (("3",),)
    assert compare([*SOURCE, ("4", "d")]).extra == (("4",),)
    assert compare([*SOURCE[:2], ("3", "C")]).different == ((("3", "c"), ("3", "C")),)
    assert compare([*SOURCE, SOURCE[0]]).repeated == 1
    # A null is not an empty text.
    wrong = compare([SOURCE[0], ("2", ""), SOURCE[2]])
    assert not wrong.is_equal
    lines = describe(wrong)
    assert "NOT EQUAL: 0 missing, 0 too many, 1 different, 0 repeated" in lines[0]
    assert lines[1:] == ["    source   2, null", "    copy     2, "]


ROWS = st.dictionaries(
    st.text("ab", max_size=2),
    st.one_of(st.none(), st.text("xy", max_size=2)),
    max_size=5,
)


@given(ROWS, ROWS)
def test_equal_means_equal(one, two):
    found = compare_rows("t", [0], list(one.items()), list(two.items()))
    assert found.is_equal == (one == two)
