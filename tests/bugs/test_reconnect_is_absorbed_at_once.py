"""The seal thread left a new connection lying at the head of its queue for the whole interval,
with the gulps behind it, if these were few."""

from __future__ import annotations

import threading

from tests.fakes.publisher import gulp, inserts, payloads

from wal2lake.changelog.journal.handover import Connected, Handover
from wal2lake.changelog.journal.journal import JournalPlace

LONG = 60.0
ENOUGH = 1 << 20
HERE = JournalPlace(1, 64)


class Peeking:
    """A thread that waits for items."""

    def __init__(self, handover: Handover) -> None:
        self.found: list[object] = []
        self._handover = handover
        self._thread = threading.Thread(target=self._peek, daemon=True)
        self._thread.start()

    def _peek(self) -> None:
        self.found.append(self._handover.peek(LONG, enough_bytes=ENOUGH))

    def ended(self) -> bool:
        self._thread.join(LONG / 6)
        return not self._thread.is_alive()


def test_a_connection_that_waits_is_returned_at_once() -> None:
    handover = Handover()
    handover.put_connected(HERE)
    handover.put(HERE, *gulp(payloads(inserts(100, 1))))
    handover.release()
    peeking = Peeking(handover)
    assert peeking.ended()
    assert peeking.found == [Connected(HERE)]


def test_a_connection_that_comes_ends_the_wait() -> None:
    handover = Handover()
    peeking = Peeking(handover)
    handover.put_connected(HERE)
    handover.release()
    assert peeking.ended()
    assert peeking.found == [Connected(HERE)]


def test_few_bytes_before_a_connection_do_not_end_the_wait() -> None:
    handover = Handover()
    handover.put(HERE, *gulp(payloads(inserts(100, 1))))
    handover.put_connected(HERE)
    handover.release()
    before = handover.peek(0.01, enough_bytes=ENOUGH)
    assert isinstance(before, list) and len(before) == 1
    handover.done(1)
    assert handover.peek(LONG, enough_bytes=ENOUGH) == Connected(HERE)
