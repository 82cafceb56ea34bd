"""A cursor's rows while it is closed."""

from __future__ import annotations

import pytest

from wal2lake.door.session.commands import Fetch, FetchDirection
from wal2lake.door.session.cursors import QueryCursor
from wal2lake.errors import UsageError
from wal2lake.sql.backend import Outcome, ResultBatch


def opened(*, scroll: bool) -> QueryCursor:
    """Return a cursor over two batches of two rows."""
    batches = [ResultBatch(2, ([b"1", b"2"],)), ResultBatch(2, ([b"3", b"4"],))]
    return QueryCursor(Outcome("SELECT", (), iter(batches)), scroll=scroll)


@pytest.mark.parametrize(
    ("scroll", "backward"), [(False, False), (True, False), (True, True)]
)
def test_a_fetch_whose_cursor_is_closed_fails_and_does_not_end_early(
    scroll: bool, backward: bool
) -> None:
    cursor = opened(scroll=scroll)
    direction = FetchDirection.FORWARD
    if backward:
        assert cursor.move(Fetch("c", direction, None, move=True)) == 4
        direction = FetchDirection.BACKWARD
    rows = cursor.fetch(Fetch("c", direction, None))
    assert next(rows).rows == 2
    cursor.close()
    with pytest.raises(UsageError) as caught:
        next(rows)
    assert caught.value.sqlstate == "34000"
