"""A cancel that came while a statement was still being prepared found nothing to stop, and
every later one was taken for a repetition: the statement ran to its end."""

from __future__ import annotations

import threading

import pytest

from wal2lake.door.session.interrupts import Interrupt, Interrupts
from wal2lake.errors import UsageError


def test_a_cancel_before_the_engine_has_the_statement_is_not_lost() -> None:
    in_engine, stopped = threading.Event(), threading.Event()

    def cancel() -> None:
        if in_engine.is_set():
            stopped.set()

    interrupts = Interrupts(cancel, lambda: None)
    with pytest.raises(UsageError) as caught, interrupts.running():
        interrupts.request(Interrupt.CANCEL)
        in_engine.set()
        stopped.wait(10)
        raise UsageError("engine's own words", sqlstate="57014")
    assert stopped.is_set(), "the engine was never told"
    assert caught.value.message == "canceling statement due to user request"


def test_a_cancel_does_not_reach_the_next_statement() -> None:
    told: list[str] = []
    interrupts = Interrupts(lambda: told.append("cancel"), lambda: None)
    with pytest.raises(UsageError), interrupts.running():
        interrupts.request(Interrupt.CANCEL)
        interrupts.check()
    before = len(told)
    with interrupts.running():
        # Longer than the pause between two repetitions.
        assert not threading.Event().wait(0.2)
        interrupts.check()
    assert len(told) == before
