"""What a publisher has prepared in the node's log: a PREPARE with its rows, and its end."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.fakes.xids import Numbers
from tests.pure.test_capture_writer import (
    OTHER,
    RELATION,
    inserts,
    placed,
    read,
    rows_of,
    theirs,
)

from wal2lake.changelog import HandedOn, Step
from wal2lake.model import Lsn, Relation
from wal2lake.publish.capture.writer import PublisherLogWriter

ONE = HandedOn(16390, 700, Lsn(1000), None, (16384,), (1,), 2)


def rows(at: int) -> list[tuple[Relation, pa.RecordBatch]]:
    return [(RELATION, placed(inserts(RELATION, 0, 2), (at, 0), (at, 3)))]


def hand_on(writer: PublisherLogWriter) -> bool:
    return writer.hand_on(
        ONE, "pg_gid_16390_700", theirs(5), "pg_16390", iter(rows(1000))
    )


def test_a_prepare_and_its_commit_are_one_of_each(tmp_path: Path) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    assert hand_on(writer)
    assert writer.seal(note=False) is not None
    # What is known of it outlives the process.
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    (known,) = writer.handed_on.values()
    assert known.two_phase is not None and known.key == ONE.key
    changes = [*rows(2000), (OTHER, placed(inserts(OTHER, 0, 1), (1000, 0)))]
    ends = {2000: known}
    assert writer.replay(theirs(1, 5, 1), "pg_16390", iter(changes), {}, ends) == 2
    assert writer.handed_on == {}
    more = iter([(OTHER, placed(inserts(OTHER, 5, 1), (1000, 0)))])
    assert writer.replay(theirs(1), "pg_16390", more, {}) == 1
    assert writer.seal(note=False) is not None
    prepare, between, commit, last = read(tmp_path / "log")
    assert [one.step for one, _ in (prepare, between, commit, last)] == [
        Step.PREPARE,
        None,
        Step.COMMIT,
        None,
    ]
    prepared, committed = rows_of(prepare[1]), rows_of(commit[1])
    assert [change.new for change in prepared] == [change.new for change in committed]
    xid = prepare[0].xid
    assert [one.xid for one, _ in (between, commit, last)] == [xid + 1, xid, xid + 2]
    assert prepare[0].two_phase == commit[0].two_phase == known.two_phase
    assert known.two_phase.prepare_lsn == prepare[0].commit_lsn
    assert (prepare[0].origin, prepare[0].origin_lsn) == ("pg_16390", Lsn(1008))
    assert (
        PublisherLogWriter(
            tmp_path / "log", segment_bytes=1 << 20, xids=Numbers()
        ).handed_on
        == {}
    )


def test_what_is_withdrawn_is_not_handed_on_again(tmp_path: Path) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    assert hand_on(writer)
    writer.withdraw(writer.handed_on[ONE.key], 5)
    # Once.
    writer.withdraw(writer.handed_on[ONE.key], 5)
    assert writer.seal(note=False) is not None
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    (known,) = writer.handed_on.values()
    assert known.two_phase is None
    # Its rows come as those of any other.
    assert writer.replay(theirs(1, 5), "pg_16390", iter(rows(2000)), {}) == 1
    writer.forget(known)
    assert writer.seal(note=False) is not None
    found = read(tmp_path / "log")
    assert [one.step for one, _ in found] == [Step.PREPARE, Step.ROLLBACK, None]
    assert found[0][0].xid == found[1][0].xid != found[2][0].xid
    assert (
        PublisherLogWriter(
            tmp_path / "log", segment_bytes=1 << 20, xids=Numbers()
        ).handed_on
        == {}
    )


@pytest.mark.parametrize("what", ["nothing is in it", "its rows cannot be read"])
def test_what_cannot_be_handed_on_leaves_nothing(tmp_path: Path, what: str) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    if what == "nothing is in it":
        assert not writer.hand_on(ONE, "g", theirs(5), "pg_16390", iter([]))
    else:
        wrong = iter([*rows(1000), *rows(1500)])
        with pytest.raises(Exception, match="of no transaction"):
            writer.hand_on(ONE, "g", theirs(5), "pg_16390", wrong)
    assert writer.handed_on == {}
    assert writer.seal(note=False) is None and read(tmp_path / "log") == []
