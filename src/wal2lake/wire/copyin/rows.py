"""Blocks of rows, which the readers of all formats give, and errors in the form of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BLOCK_BYTES: Final = 4 << 20
"""Bytes of data that are read at once. They bound the memory of a COPY, and are enough to make the
cost of a block negligible."""

BAD_COPY_FILE_FORMAT: Final = "22P04"


@dataclass(frozen=True, slots=True)
class BadFormat:
    """An error in the form of the data, behind the rows that precede it."""

    message: str
    line: int
    """The number of the line, from 1; 0 if there is none."""
    text: bytes | None = None
    """The line, which the context of the error shows; None in binary format."""
    hint: str | None = None
    sqlstate: str = BAD_COPY_FILE_FORMAT
    fields: tuple[bytes | None, ...] = ()
    """The fields that precede a missing one. PostgreSQL reads them first."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows, by column."""

    columns: tuple[Any, ...]
    """Arrow binary arrays; null for NULL."""
    lines: npt.NDArray[np.int64]
    """The number of each row's last line, from 1."""
    error: BadFormat | None = None
    """The error that follows the rows."""
    data: bytes = b""
    """The lines of the rows, if they are texts, from which ``text_of`` cuts one."""
    starts: npt.NDArray[np.int64] | None = None
    """Where each line begins in ``data``; None: each line is a row."""

    def __len__(self) -> int:
        return len(self.lines)

    def text_of(self, row: int) -> bytes | None:
        """Return the text of a row's lines; None in binary format."""
        if self.starts is None:
            if not self.data:
                return None
            return self.data.split(b"\n", row + 1)[row].rstrip(b"\r")
        start = int(self.starts[row])
        last = row + 1 == len(self.starts)
        end = len(self.data) if last else int(self.starts[row + 1])
        return self.data[start:end].rstrip(b"\r\n")
