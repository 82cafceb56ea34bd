"""``money``, whose text depends on lc_monetary. Two sample texts of the publisher show its format.

Comes in: the publisher's texts of MONEY_SAMPLES. Goes out: a reader of binary values that writes
the same format.

Source: cash_out and cash_send in src/backend/utils/adt/cash.c (one size for all groups of
digits, a separator always, the fraction's digits by frac_digits).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.pgtypes.binary import incorrect_format

MONEY: Final = 790

MONEY_SAMPLES: Final = (1_234_567, -1_234_567)
"""Samples in whole units: ``$1,234,567.00`` and ``-$1,234,567.00`` in the locale C."""

_DIGITS: Final = str(MONEY_SAMPLES[0])


@dataclass(frozen=True, slots=True)
class _Format:
    fraction: int
    """Digits behind the decimal point."""
    point: str
    group: int
    """Digits between two separators."""
    separator: str
    positive: tuple[str, str]
    """Text before and after the number."""
    negative: tuple[str, str]

    def text(self, value: int) -> str:
        """Write ``value``, which is in the smallest unit."""
        digits = str(abs(value)).zfill(self.fraction + 1)
        whole = digits[: len(digits) - self.fraction]
        first = len(whole) % self.group
        groups = [whole[:first]] if first else []
        groups += [
            whole[position : position + self.group]
            for position in range(first, len(whole), self.group)
        ]
        number = self.separator.join(groups)
        if self.fraction:
            number += self.point + digits[-self.fraction :]
        front, behind = self.negative if value < 0 else self.positive
        return front + number + behind


def money_reader(samples: Sequence[str]) -> Callable[[bytes], str]:
    """Return a reader that writes the format of these texts of MONEY_SAMPLES; UsageError if the
    format is not understood."""
    form = _format(samples)

    def read(data: bytes) -> str:
        if len(data) != 8:
            raise incorrect_format()
        return form.text(int.from_bytes(data, "big", signed=True))

    return read


def _format(samples: Sequence[str]) -> _Format:
    matches = [re.fullmatch(r"(\D*)(\d.*\d)(\D*)", sample) for sample in samples]
    match matches:
        case [re.Match() as positive, re.Match() as negative]:
            number = positive[2]
            if number == negative[2]:
                parts = re.split(r"(\D+)", number)
                digits, between = parts[::2], parts[1::2]
                fraction = len("".join(digits)) - len(_DIGITS)
                point = between.pop() if fraction else ""
                form = _Format(
                    fraction=fraction,
                    point=point,
                    group=len(digits[-2 if fraction else -1]),
                    separator=between[-1] if between else "",
                    positive=(positive[1], positive[3]),
                    negative=(negative[1], negative[3]),
                )
                units = 10**fraction
                if tuple(samples) == tuple(form.text(n * units) for n in MONEY_SAMPLES):
                    return form
    raise UsageError(f"the format of money is not understood: {', '.join(samples)}")
