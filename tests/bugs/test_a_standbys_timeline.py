"""A standby that streams changes its timeline without a word.

Only a promotion was noticed. One that follows its upstream server to a new timeline was, once it
had been started again, refused as a server with another history. And one that was promoted between
IDENTIFY_SYSTEM and the question whether it is a standby was taken for a primary on the old
timeline, and never asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fakes.publisher import inserts, payloads
from tests.fakes.receiver import SUBSCRIPTION, Receiver
from tests.fakes.walsender import FakeWalsender, Scripted

from wal2lake.changelog import ChangeLog
from wal2lake.changelog.confirmed import ConfirmedFile
from wal2lake.errors import PublisherError
from wal2lake.pg import Publisher, Session, connect
from wal2lake.receive.source import source as module
from wal2lake.receive.source.source import SourceCheck

pytestmark = pytest.mark.usefixtures("no_fsync")

FIRST = inserts(100, 3)


class Streaming:
    """What a receiver has on record of a standby that streams to it."""

    def __init__(self, directory: Path, publisher: FakeWalsender) -> None:
        self._stack = ExitStack()
        self._publisher = publisher
        self._receiver = Receiver(directory, publisher)
        self.walsender: Callable[[], Session] = lambda: self._connect(replication=True)
        subscription = self._receiver.catalog.subscription(SUBSCRIPTION)
        assert subscription is not None
        log = ChangeLog.open(self._receiver.log, self._receiver.settings.log)
        self._stack.callback(log.close)
        confirmed = self._stack.enter_context(ConfirmedFile.open(self._receiver.log))
        self._source = SourceCheck(
            self._receiver.catalog,
            subscription,
            log,
            confirmed,
            self._connect,
            lambda: self.walsender(),
        )

    def begin(self) -> None:
        with self._connect(replication=True) as session:
            self._source.check(Publisher(session))
        self._source.accepted()

    def look(self) -> int | None:
        """The timeline on record after another look."""
        with self._connect() as session:
            self._source.check_timeline(session)
        found = self._receiver.catalog.subscription(SUBSCRIPTION)
        assert found is not None
        return found.timeline

    def _connect(self, *, replication: bool = False) -> Session:
        return connect(
            self._publisher.conninfo, application_name="x", replication=replication
        )

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def publisher() -> Iterator[FakeWalsender]:
    script = [Scripted(FIRST.end_lsn, tuple(payloads(FIRST)))]
    with FakeWalsender([script]) as one:
        one.in_recovery, one.started = True, "2026-01-01 00:00:00+00"
        yield one


@pytest.fixture
def streaming(
    tmp_path: Path, publisher: FakeWalsender, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Streaming]:
    monkeypatch.setattr(module, "FOLLOW_SECONDS", 0.0)
    one = Streaming(tmp_path, publisher)
    yield one
    one.close()


def test_one_that_follows_its_upstream_server_is_on_record_with_each_timeline(
    streaming: Streaming, publisher: FakeWalsender
) -> None:
    streaming.begin()
    assert streaming.look() == 1
    publisher.timeline = 2
    assert streaming.look() == 2
    publisher.timeline = 3
    assert streaming.look() == 3
    publisher.timeline, publisher.in_recovery = 4, False
    assert streaming.look() == 4


def test_one_that_is_promoted_while_it_is_checked_is_asked_again(
    streaming: Streaming, publisher: FakeWalsender
) -> None:
    def promote() -> None:
        publisher.timeline, publisher.in_recovery = 2, False

    publisher.on_identify = promote
    streaming.begin()
    assert streaming.look() == 2


def test_its_timeline_is_not_asked_of_another_server(
    streaming: Streaming, publisher: FakeWalsender
) -> None:
    streaming.begin()
    publisher.timeline, publisher.started = 2, "2026-02-02 00:00:00+00"
    assert streaming.look() == 1


def test_without_a_free_walsender_the_others_questions_go_on(
    streaming: Streaming, publisher: FakeWalsender
) -> None:
    streaming.begin()
    free, publisher.timeline = streaming.walsender, 2

    def refuse() -> Session:
        raise PublisherError(
            "number of requested standby connections exceeds max_wal_senders",
            sqlstate="53300",
        )

    streaming.walsender = refuse
    assert streaming.look() == 1
    streaming.walsender = free
    assert streaming.look() == 2
