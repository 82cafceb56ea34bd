"""A transaction whose branch cannot be removed when it has been committed.

Spark's errors were let through, so a COMMIT that had taken effect was an error for its client, and
the branches of its other tables stayed."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from wal2lake.errors import InternalError
from wal2lake.lake.spark.branch.branches import Branch, Branches


def test_it_is_no_error() -> None:
    unused: Any = None
    tables: Any = MagicMock()
    tables.drop.side_effect = InternalError("Spark says no")
    branches = Branches(MagicMock(), tables, unused)
    branches.drop(Branch("/branch", "/table", "id", 1))
    tables.drop.assert_called_once_with("/branch")
