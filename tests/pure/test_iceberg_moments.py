"""The file of moments: written by the engine, read by another process, cut by crashes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.catalog import MirrorMoment, MomentReader, MomentWriter
from wal2lake.catalog.mirrored import moments as module
from wal2lake.model import Lsn, Oid
from wal2lake.web.iceberg.moments import NoSuchMoment, moment_of


def moment(number: int, since_ms: int, lsn: int = 1) -> MirrorMoment:
    return MirrorMoment(
        number,
        since_ms,
        since_ms + 5,
        {Oid(7): (Lsn(lsn), Lsn(lsn + 1))},
        frozenset({Oid(3)}),
    )


def read_anew(directory: Path) -> list[MirrorMoment]:
    """Return what another process reads."""
    with closing(MomentReader(directory)) as reader:
        return list(reader.read())


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[MomentReader]:
    with closing(MomentReader(tmp_path)) as reader:
        yield reader


def test_a_reader_sees_what_was_completed(tmp_path: Path, reader: MomentReader) -> None:
    assert reader.read() == []
    writer = MomentWriter(tmp_path)
    assert writer.has_begun
    first = moment(writer.begin(1000), 1000)
    assert list(reader.read()) == []
    writer.complete(first, 0)
    assert not writer.has_begun and list(reader.read()) == [first]
    longer = moment(first.number, 1000, lsn=5)
    writer.complete(longer, 0)
    assert list(reader.read()) == [longer]
    # The clock was set back.
    second = moment(writer.begin(10), 1010)
    assert second.number > first.number
    writer.complete(second, 0)
    assert list(reader.read()) == [longer, second]


def test_moments_that_were_replaced_before_a_time_go(
    tmp_path: Path, reader: MomentReader
) -> None:
    writer = MomentWriter(tmp_path)
    made = []
    for time_ms in (1000, 2000, 3000, 4000):
        made.append(moment(writer.begin(time_ms), time_ms))
        writer.complete(made[-1], 0)
    assert list(reader.read()) == made
    writer.complete(made[-1], 3000)
    # The second one was replaced at 3000.
    assert list(reader.read()) == made[1:]
    assert read_anew(tmp_path) == made[1:]
    writer.complete(made[-1], 9000)
    assert list(reader.read()) == made[-1:]


def test_the_file_does_not_grow(
    tmp_path: Path, reader: MomentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SPARE_LINES", 10)
    writer = MomentWriter(tmp_path)
    made = [moment(writer.begin(1), 1)]
    for lsn in range(1, 100):
        writer.complete(moment(made[0].number, 1, lsn), 0)
        assert list(reader.read()) == [moment(made[0].number, 1, lsn)]
    assert (tmp_path / module.FILE_NAME).read_bytes().count(b"\n") < 20
    number = writer.begin(1)
    for _ in range(30):
        number = writer.begin(1)
    assert MomentWriter(tmp_path).begin(1) > number


@given(st.integers(min_value=0, max_value=2000), st.binary(max_size=30))
def test_a_file_that_was_cut_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int, rubbish: bytes
) -> None:
    """A power loss may leave any end; numbers that were seen do not come again."""
    directory = tmp_path_factory.mktemp("cut")
    writer = MomentWriter(directory)
    made = []
    for time_ms in range(1000, 6000, 1000):
        made.append(moment(writer.begin(time_ms), time_ms))
        writer.complete(made[-1], 0)
    path = directory / module.FILE_NAME
    content = path.read_bytes()[:cut]
    path.write_bytes(content + rubbish)
    again = MomentWriter(directory)
    kept = [kept for kept in made if f'"moment":{kept.number},'.encode() in content]
    following = moment(again.begin(9000), 9000)
    again.complete(following, 0)
    moments = read_anew(directory)
    assert moments[-1] == following
    assert moments[:-1] in (kept, kept[:-1])


def test_positions_of_another_source_are_not_compared() -> None:
    """The node follows a server whose WAL is shorter since the second moment."""
    former, present = moment(1, 1000, lsn=0x900), moment(2, 2000, lsn=0x100)
    latest = moment(3, 3000, lsn=0x200)
    moments, names = [former, present, latest], {Oid(7): "s"}

    def number(name: str) -> int:
        chosen = moment_of(name, moments, names)
        assert chosen is not None
        return chosen.number

    assert [number(f"lsn-0-{lsn}") for lsn in ("100", "1FF", "200", "201")] == [
        2,
        2,
        3,
        3,
    ]
    with pytest.raises(NoSuchMoment, match="lies ahead"):
        number("lsn-0-900")
    with pytest.raises(NoSuchMoment, match="no longer kept"):
        number("lsn-0-FF")
