"""It stopped capture for ever, also where nobody wanted the table. Who needs it hears of it; all
others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.fakes.publishing import FakeCaptureHost, PublishingNode, capture_of

from wal2lake.catalog import ReplicationSlot, TableDef
from wal2lake.model import Lsn, Oid

WAIT_SECONDS = 30


class Tables:
    """Logs of tables; an empty commit is one that was removed."""

    def __init__(self) -> None:
        self.commits: dict[str, list[list[dict[str, Any]]]] = {}

    def actions(
        self, location: str, first: int, last: int
    ) -> Iterator[list[dict[str, Any]]]:
        yield from self.commits[location][first : last + 1]

    def state_at(self, location: str, version: int) -> object:
        raise TypeError("nobody has expected this")


NOTHING: list[dict[str, Any]] = [{"commitInfo": {"timestamp": 0}}]
ROWS = [*NOTHING, {"add": {"path": "f", "size": 1, "stats": '{"numRecords":1}'}}]


@pytest.mark.parametrize("what", ["it is gone", "nobody understands it"])
@pytest.mark.parametrize("published", [False, True])
def test_it_is_passed_over(
    tmp_path: Path,
    no_fsync: None,
    monkeypatch: pytest.MonkeyPatch,
    published: bool,
    what: str,
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    node.run("create table a (id int primary key)")
    node.run("create table b (id int primary key)")
    node.run(f"create publication p for table {'a, b' if published else 'a'}")
    a, b = sorted(node.catalog.tables(), key=lambda table: table.name)
    tables = Tables()
    tables.commits = {a.location: [NOTHING], b.location: [NOTHING]}

    def visible(wanted: object) -> dict[Oid, int]:
        return {t.oid: len(tables.commits[t.location]) - 1 for t in (a, b)}

    node.catalog.create_slot(ReplicationSlot("s", "pgoutput", Lsn(8), Lsn(8), 0))
    with capture_logs() as events:
        _pass_over(node, tables, visible, tmp_path, (a, b), what, published)
    stopped = [one for one in events if one["event"] == "capture stopped"]
    assert len(stopped) == (0 if what == "it is gone" else 1), "each is said once"
    (passed,) = [one for one in events if one["event"] == "a commit cannot be captured"]
    if stopped:
        assert passed["error"].detail == "Reading it failed 3 times."
        assert passed["error"].original == "TypeError: nobody has expected this"


def _pass_over(
    node: PublishingNode,
    tables: Tables,
    visible: Callable[[object], dict[Oid, int]],
    tmp_path: Path,
    both: tuple[TableDef, TableDef],
    what: str,
    published: bool,
) -> None:
    a, b = both
    host = FakeCaptureHost(node.catalog.tables, visible)
    capture = capture_of(node.catalog, tmp_path, host, tables)
    capture.start()
    try:
        first = capture.catch_up(WAIT_SECONDS)
        gone = what == "it is gone"
        tables.commits[b.location] += [[] if gone else ROWS, NOTHING]
        tables.commits[a.location] += [NOTHING]
        # It is tried again before anybody loses a slot for it.
        for _ in range(0 if gone else 2):
            with pytest.raises(TypeError):
                capture.catch_up(WAIT_SECONDS)
            assert all(s.invalidation is None for s in node.catalog.slots())
        second = capture.catch_up(WAIT_SECONDS)
        assert second.versions == {a.oid: 1, b.oid: 2}
        assert second.lsn > first.lsn
        assert capture.catch_up(WAIT_SECONDS) == second
        (slot,) = node.catalog.slots()
        assert slot.invalidation == ("wal_removed" if published else None)
    finally:
        capture.stop(10)
