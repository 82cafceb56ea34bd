"""How many examples of a property a run tries."""

from __future__ import annotations

import pytest
from tests.examples import VARIABLE, examples


def test_a_quarter_is_tried_and_never_fewer_than_eight_of_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert [examples(count) for count in (6, 12, 60, 300)] == [6, 8, 15, 75]


def test_a_full_run_tries_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert [examples(count) for count in (6, 12, 60, 300)] == [6, 12, 60, 300]
