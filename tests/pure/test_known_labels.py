"""Renamed labels of enums, as copies and looks at the publisher find them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal2lake.model import KnownLabels, Lsn, Oid
from wal2lake.model.relations.remoteschema import EnumColumns, EnumLabel

MOOD, LABEL = Oid(20000), Oid(20001)
OLD, JOINED = (Oid(1), 1), (Oid(2), 1)


def seen(label: str, *columns: tuple[Oid, int]) -> EnumColumns:
    labels = {LABEL: EnumLabel(MOOD, "public.mood", label)}
    return EnumColumns(labels, {MOOD: frozenset(columns)})


def renamed(labels: KnownLabels) -> list[tuple[str, str, list[tuple[Oid, int]]]]:
    return [(r.before, r.after, sorted(r.columns)) for r in labels.renames]


def test_a_table_joins_whose_type_is_not_known() -> None:
    first = KnownLabels({}).then(seen("sad", JOINED), Lsn(10), seen("sad", JOINED))
    assert first == KnownLabels({LABEL: "sad"})
    second = first.then(seen("blue", JOINED), Lsn(20))
    assert renamed(second) == [("sad", "blue", [JOINED])]
    assert second.renames[0].noticed_lsn == Lsn(20)


def test_a_label_gets_another_name_between_snapshot_and_look() -> None:
    found = KnownLabels({}).then(seen("blue", JOINED), Lsn(10), seen("sad", JOINED))
    assert renamed(found) == [("sad", "blue", [JOINED])]


def test_a_copy_that_has_the_new_name_is_not_repeated() -> None:
    known = KnownLabels({LABEL: "sad"})
    after = known.then(seen("blue", OLD, JOINED), Lsn(10), seen("blue", JOINED))
    assert renamed(after) == [("sad", "blue", [OLD])]


def test_labels_of_tables_that_a_look_did_not_see_stay() -> None:
    known = KnownLabels({LABEL: "sad"}).then(EnumColumns({}, {}), Lsn(10))
    assert known.labels == {LABEL: "sad"}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=8))
def test_every_rename_concerns_all_rows_that_have_the_old_label(
    steps: list[tuple[str, bool]],
) -> None:
    """Each step gives the label a name, and copies the second table or only looks."""
    labels = KnownLabels({}).then(seen("a", OLD), Lsn(1))
    rows = {OLD: "a"}
    name = "a"
    for number, (next_name, copies) in enumerate(steps):
        in_snapshot, name = name, next_name
        columns = {*rows, JOINED} if copies else set(rows)
        copied = seen(in_snapshot, JOINED) if copies else None
        before = {**rows, **({JOINED: in_snapshot} if copies else {})}
        position = Lsn(number + 2)
        labels = labels.then(seen(name, *columns), position, copied)
        due = {
            c for r in labels.renames if r.noticed_lsn == position for c in r.columns
        }
        assert due == {c for c in columns if before[c] != name}
        rows = dict.fromkeys(columns, name)
