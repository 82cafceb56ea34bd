"""A report of a conflict named the columns of a replica identity FULL, which PostgreSQL's does
not. Found by random changes beside a native subscriber."""

from __future__ import annotations

import io

from wal2lake.apply.conflicts import FoundConflict, log_conflicts
from wal2lake.catalog import TableDef
from wal2lake.model import Conflict, ConflictType, Lsn, Oid, Resolution
from wal2lake.observe import configure


def test_is_its_values_alone() -> None:
    log = io.StringIO()
    configure("engine", stream=log)
    key = "(n, v)=(1, it=(x))"
    kind = ConflictType.UPDATE_MISSING
    conflict = Conflict(Oid(1), kind, Resolution.SKIP, Lsn(1), key, 758, None, None, 1)
    table = TableDef(Oid(1), "public", "plain", Oid(10), (), (), "/plain")
    log_conflicts(
        "pg_1",
        [FoundConflict(conflict, table, "(1, y)")],
        quotes=lambda _: True,
        exists=bool,
    )
    assert "Remote row (1, y); replica identity full (1, it=(x))." in log.getvalue()
