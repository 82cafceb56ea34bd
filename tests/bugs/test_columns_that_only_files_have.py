"""A column of a table with the name of one that its files have besides, for who has written a
row: its values were taken for that, and no file of the table could be written."""

from __future__ import annotations

import pytest

from wal2lake.errors import DuplicateObjectError
from wal2lake.lake.origins import COLUMNS
from wal2lake.pgtypes.columnnames import check_column_names


@pytest.mark.parametrize("name", [*COLUMNS, COLUMNS[0].upper()])
def test_is_refused(name: str) -> None:
    with pytest.raises(DuplicateObjectError, match="conflicts with a system") as caught:
        check_column_names(["id", name], "public.t")
    assert caught.value.sqlstate == "42701"
    assert caught.value.hint is not None


def is_refused(name: str) -> bool:
    try:
        check_column_names([name], "public.t")
    except DuplicateObjectError:
        return True
    return False


def test_others_may_begin_like_them() -> None:
    assert [is_refused(f"{name}s") for name in COLUMNS] == [False] * len(COLUMNS)
    assert not is_refused("_wal2lake")
