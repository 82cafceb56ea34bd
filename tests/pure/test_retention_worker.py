"""The retention worker goes on with other tables when one cannot be vacuumed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import TableDef
from wal2lake.errors import StorageError
from wal2lake.local.concurrency.vacuumturns import VacuumTurns
from wal2lake.local.retention import (
    RetentionWorker,
    TablePlace,
    Vacuum,
    VacuumRequest,
)
from wal2lake.model import Oid


def table(number: int, location: str) -> TableDef:
    return TableDef(Oid(number), "public", f"t{number}", Oid(10), (), (), location)


def refuse(location: str) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_directory_that_cannot_be_read_is_an_error_of_its_table(
    tmp_path: Path,
) -> None:
    node: Any = SimpleNamespace(
        vacuums=VacuumTurns(),
        settings=SimpleNamespace(lake=None),
        tables=SimpleNamespace(state=refuse),
    )
    place = TablePlace(str(tmp_path), (table(1, str(tmp_path)),))
    with pytest.raises(StorageError, match="Permission denied") as raised:
        Vacuum(node).run(place, VacuumRequest())
    assert raised.value.sqlstate == "58030"


def test_a_table_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    tables = [table(number, f"/w/{number}") for number in range(3)]
    node: Any = SimpleNamespace(
        catalog=SimpleNamespace(
            tables=lambda: tables, subscriptions=list, system_identifier=1
        ),
        settings=SimpleNamespace(run_directory=tmp_path, warehouse=str(tmp_path)),
    )
    met: list[str] = []

    def run(place: TablePlace, request: VacuumRequest) -> Any:
        met.append(place.location)
        if place.location == "/w/1":
            raise ValueError("a file of another program")
        return SimpleNamespace(count=0, states=0)

    vacuum: Any = SimpleNamespace(run=run)
    worker = RetentionWorker(node, vacuum)
    worker.round()
    assert met == ["/w/0", "/w/1", "/w/2"]
