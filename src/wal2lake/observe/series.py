"""Series: the names of numbers and the numbers themselves, kept apart.

A process with 1,000 tables has 11,000 series. Their names seldom change, their numbers always do,
so the numbers of two moments share one ``SeriesNames``. A reader that meets the same object again
knows that each position means what it meant before, and need not look at the names.

In: names with labels, values in their order. Out: ``SeriesValues``, a mapping. Called by:
``telemetry``, and those who read its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of label and value, sorted by label."""
SeriesKey: TypeAlias = tuple[str, Labels]
"""Name and labels of one series."""


class SeriesNames:
    """Names and labels of some series, in order. Immutable; equal if it is the same object."""

    def __init__(self, keys: Iterable[SeriesKey] = ()) -> None:
        self.keys = tuple(keys)

    @cached_property
    def positions(self) -> Mapping[SeriesKey, int]:
        """Position of each series."""
        return {key: position for position, key in enumerate(self.keys)}


class SeriesValues(Mapping[SeriesKey, T]):
    """Values of some series at one moment."""

    def __init__(self, names: SeriesNames, values: Iterable[T]) -> None:
        """Raises ValueError if there is not one value for each name."""
        self.names = names
        self.values_in_order = tuple(values)
        """The values, at the positions of their names."""
        if len(names.keys) != len(self.values_in_order):
            raise ValueError("the number of values is not the number of names")

    @staticmethod
    def of(values: Mapping[SeriesKey, T]) -> SeriesValues[T]:
        """Return the values of a mapping."""
        return SeriesValues(SeriesNames(values), values.values())

    def __getitem__(self, key: SeriesKey) -> T:
        return self.values_in_order[self.names.positions[key]]

    def __iter__(self) -> Iterator[SeriesKey]:
        return iter(self.names.keys)

    def __len__(self) -> int:
        return len(self.names.keys)

    def __repr__(self) -> str:
        return f"SeriesValues({dict(self)!r})"
