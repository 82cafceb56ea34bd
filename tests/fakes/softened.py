"""What a table that keeps deleted rows has after changes that a trigger has noted (``audited``).

Comes in: rows of a source before its work, its notes, a node with mirror and history. Goes out: the
publisher's rows and the marked ones, expected and found, each mark as the number of the transaction
that has set it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.fakes.audited import KEYED, KEYLESS, Change

from wal2lake.testing.node import Node

Row = tuple[str | None, ...]
Rows = Counter[tuple[Row, str | None]]
"""Rows and their marks; None: not marked."""


def expected_keyed(start: Sequence[Row], notes: Sequence[Change]) -> Rows:
    """Rows by their first column, after the notes."""
    live = {row[0]: row for row in start}
    marked: dict[str | None, tuple[Row, str | None]] = {}
    for op, xid, old, new in notes:
        if op == "truncate":
            marked |= {key: (row, xid) for key, row in live.items()}
            live.clear()
            continue
        if old is not None:
            row = live.pop(old["id"])
            if new is None or new["id"] != old["id"]:
                marked[old["id"]] = row, xid
        if new is not None:
            live[new["id"]] = tuple(new[name] for name in KEYED)
            marked.pop(new["id"], None)
    return Counter({(row, None): 1 for row in live.values()}) + Counter(marked.values())


def expected_keyless(start: Sequence[Row], notes: Sequence[Change]) -> Rows:
    """Rows of a table without a key, after the notes."""
    live, marked = Counter(start), Rows()
    for op, xid, old, new in notes:
        if op == "truncate":
            marked.update((row, xid) for row in live.elements())
            live.clear()
            continue
        if old is not None:
            row = tuple(old[name] for name in KEYLESS)
            live[row] -= 1
            if new is None:
                marked[row, xid] += 1
        if new is not None:
            live[tuple(new[name] for name in KEYLESS)] += 1
    return Rows({(row, None): count for row, count in (+live).items()}) + marked


def found(node: Node, table: str, history: str, columns: Sequence[str]) -> Rows:
    """The rows of a mirrored table, with the transactions by whose commit times they are marked."""
    facts = node.sql(f"select commit_time, xid from {history} where xid is not null")
    xids = {str(at): str(xid) for at, xid in facts}
    names = ", ".join(columns)
    rows = node.sql(f"select {names}, _deleted_at from {table}")
    return Counter(
        (tuple(row[:-1]), None if row[-1] is None else xids[str(row[-1])])
        for row in rows
    )
