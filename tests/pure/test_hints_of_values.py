"""Hints about forms of values, done word by word: what was refused is then taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.spark.expressions.allowed import FUNCTIONS
from wal2lake.pgtypes import arrow_to_binary, arrow_to_text
from wal2lake.pgtypes.encode.interval import interval_of

DOCUMENT = Path(__file__).parents[2] / "docs/arch/5_apply.md"
TEXT = 25


def hint_of(call: Callable[..., object], *arguments: object, **named: object) -> str:
    with pytest.raises(Wal2LakeError) as caught:
        call(*arguments, **named)
    assert caught.value.hint is not None, caught.value
    return caught.value.hint


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [(1033, "{a=r/b}"), (2202, "f(a)"), (3614, "a:1"), (1007, "{{1}}")],
)
def test_a_value_without_a_binary_format(type_oid: int, text: str) -> None:
    values = pa.array([text])
    assert hint_of(arrow_to_binary, values, type_oid) == (
        "Ask for the text format, or cast the column to text."
    )
    assert arrow_to_text(values, type_oid) == [text.encode()]
    assert arrow_to_binary(values, TEXT) == [text.encode()]


def test_intervals() -> None:
    hint = hint_of(interval_of, "1.5 months")
    assert hint == "Write whole units, as 1 year 2 mons 3 days 04:05:06.7."
    written = hint.rpartition("as ")[2].rstrip(".")
    assert str(interval_of(written)) == written


def test_functions_of_expressions_are_those_that_the_documentation_lists() -> None:
    part = DOCUMENT.read_text().partition("functions of Spark's:\n")[2]
    part = part.partition("Any other function is 0A000")[0]
    listed = re.sub(r"^ +- [a-zA-Z, ]+:", "", part, flags=re.MULTILINE).split()
    assert sorted(listed) == sorted(FUNCTIONS)
