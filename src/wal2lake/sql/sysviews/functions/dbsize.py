"""Sizes of tables and of the database, in bytes and as text.

Comes in: a table or database. Goes out: the bytes of its current files, from the source.

Source: src/backend/utils/adt/dbsize.c; manual, section 9.28.7.
"""

from __future__ import annotations

from wal2lake.sql.sysviews.functions.call import Call
from wal2lake.sql.sysviews.functions.regproc import regclass_in


def pg_table_size(call: Call, target: object) -> int | None:
    """Return the bytes of a lake table's current files; 0 if the size is not known."""
    if target is None:
        return None
    oid = regclass_in(call, target)
    relation = call.facts.by_oid.get(oid or 0)
    if relation is None:
        return None
    if relation.kind != "r" or relation.table is None:
        return 0
    return call.source.table_bytes(relation.oid) or 0


def pg_database_size(call: Call, target: object) -> int | None:
    """Return the bytes of all lake tables."""
    if target is None:
        return None
    return sum(call.source.table_bytes(r.oid) or 0 for r in call.facts.lake_tables())


def pg_size_pretty(call: Call, size: float | None) -> str | None:
    """Return a size with its unit. As in PostgreSQL, each unit is used up to 10,239."""
    if size is None:
        return None
    number = int(size)
    if abs(number) < 10 * 1024:
        return f"{number} bytes"
    # The number is doubled from here, so that halves round away from zero.
    doubled = number // 512 if number >= 0 else -(-number // 512)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        last = unit == "PB"
        if last or abs(doubled) < 20 * 1024 - 1:
            half = (abs(doubled) + 1) // 2
            return f"{half if doubled >= 0 else -half} {unit}"
        doubled = doubled // 1024 if doubled >= 0 else -(-doubled // 1024)
    return None
