"""A loop that fails in the same way again and again says it once, then counts."""

from __future__ import annotations

from wal2lake.errors import InternalError, Wal2LakeError
from wal2lake.observe import RepeatedErrors


class Events:
    """What is logged."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def error(
        self, text: str, *, error: object = None, exc_info: object = None
    ) -> None:
        whole = " in full" if error or exc_info else ""
        self.said.append(text + whole)

    def info(self, text: str) -> None:
        self.said.append(text)


def test_an_error_is_said_once_then_counted() -> None:
    events, repeats = Events(), RepeatedErrors()
    for _ in range(100):
        repeats.say(events, "failed", Wal2LakeError("no column", detail="v"))
    assert events.said == [
        "failed in full",
        "the same error for the 10th time: failed: no column",
        "the same error for the 100th time: failed: no column",
    ]
    events.said.clear()
    repeats.say(events, "failed", Wal2LakeError("no column", detail="w"))
    assert events.said == [
        "the error before this one came 100 times",
        "failed in full",
    ]
    events.said.clear()
    repeats.passed(events)
    assert events.said == []
    error = Wal2LakeError("no column", detail="w")
    repeats.say(events, "failed", error)
    assert events.said == ["failed in full"], "it has passed in between"
    repeats.say(events, "failed", error)
    repeats.passed(events)
    assert events.said[1:] == ["an error has passed that came 2 times"]


def test_failures_that_share_a_text_are_told_apart_by_what_is_behind_them() -> None:
    events, repeats = Events(), RepeatedErrors()

    def fail(original: str) -> None:
        repeats.say(
            events, "failed", InternalError("could not query", original=original)
        )

    fail("java.io.IOException: part 17 of task 3, 6f1c2b1e-0000-4000-8000-00000000abcd")
    fail("java.io.IOException: part 18 of task 4, 0a1c2b1e-0000-4000-8000-00000000abce")
    assert events.said == ["failed in full"], "numbers are others at each attempt"
    fail("java.lang.OutOfMemoryError: heap")
    assert events.said[1:] == [
        "the error before this one came 2 times",
        "failed in full",
    ]


def test_bugs_are_counted_as_well() -> None:
    events, repeats = Events(), RepeatedErrors()
    for _ in range(10):
        repeats.say(events, "apply failed", ValueError("a"))
    repeats.say(events, "apply failed", ValueError("b"))
    assert events.said == [
        "apply failed in full",
        "the same error for the 10th time: apply failed",
        "the error before this one came 10 times",
        "apply failed in full",
    ]
