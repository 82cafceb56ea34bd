"""SHOW gave the names that the file has, and commits waited for those that were in force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wal2lake.engine.publishing import in_force
from wal2lake.settings import Settings


@pytest.mark.parametrize(
    ("read", "wanted"), [("ANY 1 (b)", "ANY 1 (b)"), ("", ""), ("FIRST x (", "a")]
)
def test_what_nobody_can_obey_is_not_in_force(
    tmp_path: Path, read: str, wanted: str
) -> None:
    start = Settings(directory=tmp_path)
    before, after = (
        replace(start, publish=replace(start.publish, synchronous_standby_names=names))
        for names in ("a", read)
    )
    assert in_force(after, before).publish.synchronous_standby_names == wanted
