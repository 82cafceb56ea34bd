"""ALTER TABLE whose commit was made, and then an error came back instead of its version: the
catalog kept the old definition until the next start, and everybody worked with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wal2lake.apply.local.altering import Anew, alter_table
from wal2lake.catalog import (
    AddColumn,
    Catalog,
    ColumnDef,
    TableDef,
    local_writer,
    plan_changes,
)
from wal2lake.errors import StorageError
from wal2lake.lake import FieldSpec, TableState
from wal2lake.model import Oid

pytestmark = pytest.mark.usefixtures("no_fsync")

INT = Oid(23)
LOCATION = "/lake/t"


class Tables:
    """A table of which the metadata is committed, or not, before it fails."""

    def __init__(self, writer: str, *, makes: bool) -> None:
        self._makes = makes
        self._writer = writer
        self._cursors: dict[str, int] = {}
        self._version = 4
        self.synced: list[int] = []

    def state(self, location: str) -> TableState:
        fields = (FieldSpec("a", "int", pg_type_oid=INT),)
        made = SimpleNamespace(
            location=location,
            table_id="id",
            version=self._version,
            fields=fields,
            cursors=self._cursors,
            cursor=self._cursors.get,
        )
        return cast(TableState, made)

    def prepare_columns(self, location: str, fields: object) -> TableState:
        return self.state(location)

    def metadata(self, location: str, fields: object) -> dict[str, object]:
        return {}

    def commit_metadata(self, *arguments: object, **options: object) -> object:
        if self._makes:
            self._version += 1
            self._cursors[self._writer] = 1
        raise StorageError("the answer is lost", sqlstate="58030")

    def actions(self, location: str, first: int, last: int) -> list[list[Any]]:
        return [
            [{"txn": {"appId": self._writer, "version": 1}}]
            for _ in range(first, last + 1)
        ]

    def sync(self, location: str, version: int) -> None:
        self.synced.append(version)


@pytest.mark.parametrize("makes", [True, False])
def test_it_is_finished_at_once(tmp_path: Path, makes: bool) -> None:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    columns = (ColumnDef("a", INT),)
    table = TableDef(Oid(30000), "public", "t", Oid(10), columns, (), LOCATION)
    catalog.create_table(table)
    tables = Tables(local_writer(catalog.system_identifier), makes=makes)
    plan = plan_changes(table, [AddColumn(ColumnDef("b", INT))])
    anew = cast(Anew, None)
    if makes:
        alter_table(catalog, cast(Any, tables), plan, anew)
        assert tables.synced[0] == 5
    else:
        with pytest.raises(StorageError):
            alter_table(catalog, cast(Any, tables), plan, anew)
    now = catalog.table_by_oid(table.oid)
    assert now is not None
    assert [c.name for c in now.columns] == (["a", "b"] if makes else ["a"])
    assert catalog.local_commits() == []
