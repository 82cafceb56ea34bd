"""Of which published tables every row's end is sent, so that an insert cannot meet a row.

Once only the publication's operations counted: rows that left a row filter or a partition were
inserted a second time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import Database

from wal2lake.catalog import Catalog, Role
from wal2lake.commands.subscription.targets import (
    Choices,
    ask_wanted,
    made_targets,
    new_rels,
)
from wal2lake.local.node import Caller
from wal2lake.model import Oid
from wal2lake.pg import Publisher, connect
from wal2lake.settings import Settings

TABLES = """
    create table plain (id int primary key, v int);
    create table part (id int primary key) partition by range (id);
    create table part_1 partition of part for values from (0) to (10);
    create publication whole for table plain, part;
    create publication roots for table plain, part
      with (publish_via_partition_root = true);
    create publication filtered for table plain where (v > 5);
    create publication inserts for table plain with (publish = 'insert');
"""


@pytest.mark.parametrize(
    ("publications", "origin", "trusted"),
    [
        ("whole", "any", {"plain": True, "part_1": True}),
        ("whole", "none", {"plain": False, "part_1": False}),
        ("roots", "any", {"plain": True, "part": False}),
        ("filtered", "any", {"plain": False}),
        # One publication without the filter publishes every row.
        ("filtered whole", "any", {"plain": True, "part_1": True}),
        ("inserts", "any", {"plain": False}),
    ],
)
def test_a_table_is_trusted_only_if_no_row_can_leave_it_unnoticed(
    pg18: Database,
    tmp_path: Path,
    publications: str,
    origin: str,
    trusted: dict[str, bool],
) -> None:
    pg18.psql(TABLES)
    lake = SimpleNamespace(
        exists=lambda location: False,
        create=lambda *arguments: None,
        state=lambda location: SimpleNamespace(version=0),
    )
    node: Any = SimpleNamespace(
        unfinished=set(),
        catalog=Catalog.create(tmp_path / "catalog.sqlite", "boss", None),
        settings=Settings(directory=tmp_path),
        tables=lake,
    )
    caller = Caller(Role(Oid(10), "boss", True, None), lambda notice: None)
    with connect(pg18.conninfo(), application_name="test") as session:
        wanted = ask_wanted(
            Publisher(session),
            publications.split(),
            create_tables=True,
            choices=Choices.of("", ""),
            origin=origin,
        )
    with made_targets(node, caller, wanted) as targets:
        rels = new_rels(node, Oid(1), targets, copy_data=True)
        found = {rel.remote_name: rel.trusted for rel in rels}
    assert found == trusted
