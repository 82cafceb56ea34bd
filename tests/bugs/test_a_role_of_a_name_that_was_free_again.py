"""A session knew its role by name: who was dropped, and whose name another role got, a superuser
perhaps, was that one at the next statement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.catalog_source import session

from wal2lake.catalog import Catalog
from wal2lake.engine.session.lakebackend import LakeBackend
from wal2lake.errors import UsageError
from wal2lake.local.node import EngineParts
from wal2lake.settings import Settings


def _run(backend: LakeBackend, sql: str) -> str | None:
    return backend.execute(backend.prepare(sql, ()), (), ()).tag


def test_it_is_not_that_role(tmp_path: Path) -> None:
    catalog = Catalog.create(tmp_path / "catalog", "boss", None)
    unused: Any = None
    node = EngineParts(
        catalog=catalog,
        settings=Settings(directory=tmp_path),
        tables=unused,
        queries=unused,
        apply=unused,
        sync=unused,
        locks=unused,
        branches=unused,
        keys=unused,
        compactor=unused,
        mirrors=unused,
        changed=lambda: None,
    )
    system: Any = SimpleNamespace(cancel=lambda pid: None)

    def logged_in(name: str) -> LakeBackend:
        context = replace(session(), user=name)
        return LakeBackend(node, system, context)

    boss = logged_in("boss")
    _run(boss, "create role joe login")
    joe = logged_in("joe")
    with pytest.raises(UsageError, match="permission denied to create role"):
        _run(joe, "create role mine")
    _run(boss, "drop role joe")
    _run(boss, "create role joe login superuser")
    with pytest.raises(UsageError) as raised:
        _run(joe, "create role mine superuser")
    assert raised.value.sqlstate == "28000"
    assert catalog.role("mine") is None
    with pytest.raises(UsageError):
        joe.become(None, authorization=False)
