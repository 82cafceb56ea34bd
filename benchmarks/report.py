"""Figures, their ratio, their target, and how they are printed. Pure.

Comes in: what a workload measured, ours and the native subscriber's. Goes out: a table for
people, a dictionary for ``--json``. A ratio is always ours divided by native's, so for a
speed more is better and for a time less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

_HEADINGS: Final = ("what", "ours", "native", "ratio", "target", "met")


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be reached; one bound, on the ratio or on our own figure."""

    ratio_at_least: float | None = None
    ratio_at_most: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    aim: float | None = None
    """What is hoped for beyond ``ratio_at_least``."""

    def met(self, result: Result) -> bool | None:
        """None: what it is about was not measured."""
        if self.ratio_at_least is not None:
            return None if result.ratio is None else result.ratio >= self.ratio_at_least
        if self.ratio_at_most is not None:
            return None if result.ratio is None else result.ratio <= self.ratio_at_most
        if result.ours is None:
            return None
        if self.at_most is not None:
            return result.ours <= self.at_most
        if self.at_least is not None:
            return result.ours >= self.at_least
        return None

    def aim_met(self, result: Result) -> bool | None:
        """None: there is no aim, or what it is about was not measured."""
        if self.aim is None or result.ratio is None:
            return None
        return result.ratio >= self.aim

    def __str__(self) -> str:
        if self.ratio_at_least is not None:
            aim = "" if self.aim is None else f" (aim {self.aim:g})"
            return f"ratio >= {self.ratio_at_least:g}{aim}"
        if self.ratio_at_most is not None:
            return f"ratio <= {self.ratio_at_most:g}"
        if self.at_most is not None:
            return f"<= {self.at_most:,.12g}"
        return f">= {self.at_least:,.12g}"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    workload: str
    what: str
    unit: str
    ours: float | None
    native: float | None = None
    target: Target | None = None

    @property
    def ratio(self) -> float | None:
        """Ours divided by native's; None if there is no such thing."""
        if self.ours is None or not self.native:
            return None
        return self.ours / self.native

    @property
    def met(self) -> bool | None:
        """None: no target, or not measured."""
        return None if self.target is None else self.target.met(self)

    @property
    def aim_met(self) -> bool | None:
        """None: no aim, or not measured."""
        return None if self.target is None else self.target.aim_met(self)


def rate(count: int, seconds: float | None) -> float | None:
    """Per second; None if it was not measured."""
    return None if not seconds else count / seconds


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest rank: a value that did occur; None if there are none."""
    if not values:
        return None
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


def milliseconds(values: Sequence[float], percent: float) -> float | None:
    """A percentile of seconds."""
    seconds = percentile(values, percent)
    return None if seconds is None else seconds * 1000


def megabytes(size: int | None) -> float | None:
    """Of bytes; None if they are not known."""
    return None if size is None else size / 1e6


def show(value: float | None) -> str:
    """Three significant digits, thousands grouped, never an exponent."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def render(results: Sequence[Result]) -> str:
    """The table, a block per workload."""
    rows = [_cells(r) for r in results]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    lines = [_line(_HEADINGS, widths), "  ".join("-" * w for w in widths)]
    position = 0
    for workload, group in groupby(results, key=lambda r: r.workload):
        lines.append(f"{workload}:")
        for _ in group:
            lines.append(_line(rows[position], widths))
            position += 1
    return "\n".join(lines)


def _cells(result: Result) -> tuple[str, ...]:
    met = {None: "", True: "yes", False: "NO"}[result.met]
    if result.aim_met:
        met = "aim"
    return (
        f"  {result.what} [{result.unit}]",
        show(result.ours),
        show(result.native),
        "-" if result.ratio is None else f"{result.ratio:.2f}",
        "" if result.target is None else str(result.target),
        met,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    parts = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return "  ".join(parts).rstrip()


def as_json(
    facts: Mapping[str, object], results: Sequence[Result]
) -> dict[str, object]:
    """Everything, for a machine."""
    return {
        "facts": dict(facts),
        "results": [
            {
                "workload": r.workload,
                "what": r.what,
                "unit": r.unit,
                "ours": r.ours,
                "native": r.native,
                "ratio": r.ratio,
                "target": None if r.target is None else str(r.target),
                "met": r.met,
                "aim_met": r.aim_met,
            }
            for r in results
        ],
    }
