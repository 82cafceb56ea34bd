"""Follows rows through several key changes of one batch, in log order.

Comes in: *links*, one per key-changing UPDATE, ascending by (lsn, ord). A link has what its old
key held before it (``from``: the kind and place of the key's last reset, or null: whatever the
table holds) and the same for its new key (``onto``). Goes out: for each link whether its row was
there, and if so where that row's life began.

Called by ``moves`` inside a Python worker, for the links that depend on other links only. A batch
has none of them unless a row changes its key twice, or takes the key that another row left. Since
they depend on each other in log order, one worker resolves them one by one, at about 1 microsecond
and 300 bytes each.

If an arrival had no row (its own old row was missing), its key is as it was before: the walk then
continues at the arrival's ``onto``. The walk is linear in all, because the leave that starts it
resets the key for later links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from wal2lake.lake.staging.layout import INSERT

LEAVE: Final = ord("L")
ARRIVE: Final = ord("A")

LINKS: Final = (
    "alsn bigint, aord bigint, fkind tinyint, flsn bigint, ford bigint, "
    "okind tinyint, olsn bigint, oord bigint, stored boolean"
)
"""Schema of links. ``stored``: the table has a row at the link's old key."""

FOUND: Final = (
    "alsn bigint, aord bigint, there boolean, inserted boolean, "
    "rlsn bigint, rord bigint"
)
"""Schema of resolved links. ``there``: the UPDATE found its row. Then (rlsn, rord) is the INSERT
that the row comes from (``inserted``), or the link whose old key is the row's key in the table."""

_Place = tuple[int | None, int | None]
_Link = tuple[
    int,
    int,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    bool,
]
_Found = tuple[int, int, bool, bool, int | None, int | None]


def follow(links: Iterable[_Link]) -> Iterator[_Found]:
    """Resolve links. Tuples have the columns of ``LINKS`` and ``FOUND``."""
    onto: dict[_Place, tuple[int | None, _Place]] = {}
    roots: dict[_Place, tuple[bool, _Place] | None] = {}
    for lsn, ordinal, fkind, flsn, ford, okind, olsn, oord, stored in links:
        here = (lsn, ordinal)
        kind, place = fkind, (flsn, ford)
        while kind == ARRIVE and roots[place] is None:
            kind, place = onto[place]
        root: tuple[bool, _Place] | None = None
        if kind == ARRIVE:
            root = roots[place]
        elif kind == INSERT:
            root = (True, place)
        elif kind is None and stored:
            root = (False, here)
        roots[here] = root
        onto[here] = (okind, (olsn, oord))
        if root is None:
            yield lsn, ordinal, False, False, None, None
        else:
            yield lsn, ordinal, True, root[0], *root[1]
