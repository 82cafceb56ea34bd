"""What a command may do about the tables that are published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import Catalog, Role
from wal2lake.commands.subscription.targets import (
    Choices,
    WantedTables,
    check_targets,
)
from wal2lake.errors import UsageError
from wal2lake.local.node import Caller
from wal2lake.model import Oid

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_a_published_tables_schema_is_used_with_the_callers_privileges(
    tmp_path: Path,
) -> None:
    node: Any = SimpleNamespace(
        catalog=Catalog.create(tmp_path / "catalog.sqlite", "boss", None)
    )
    node.catalog.create_namespace("closed", Oid(10))
    unseen: Any = None
    wanted = WantedTables({("closed", "t"): unseen}, True, True, Choices.of("", ""))
    caller = Caller(Role(Oid(20000), "somebody", False, None), lambda notice: None)
    with pytest.raises(UsageError) as caught:
        check_targets(node, caller, wanted)
    assert caught.value.sqlstate == "42501"
    assert caught.value.message == "permission denied for schema closed"
