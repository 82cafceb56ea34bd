"""A loop that fails in the same way again and again says it once, then counts."""

from __future__ import annotations

from wal2lake.observe import RepeatedErrors


class Events:
    """What is logged."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def error(self, text: str) -> None:
        self.said.append(text)

    def info(self, text: str) -> None:
        self.said.append(text)


def test_an_error_is_said_once_then_counted() -> None:
    events, repeats = Events(), RepeatedErrors()
    new = [repeats.is_new(events, "no column\nDETAIL: v") for _ in range(100)]
    assert new == [True] + [False] * 99
    assert events.said == [
        "the same error for the 10th time: no column",
        "the same error for the 100th time: no column",
    ]
    events.said.clear()
    assert repeats.is_new(events, "another")
    assert events.said == ["the error before this one came 100 times"]
    events.said.clear()
    repeats.passed(events)
    assert events.said == []
    assert repeats.is_new(events, "another"), "it has passed in between"
    repeats.is_new(events, "another")
    repeats.passed(events)
    assert events.said == ["an error has passed that came 2 times"]
