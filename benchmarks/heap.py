"""The heap of a JVM while something happens, as the JVM itself counts it.

Comes in: a pid. Goes out: the largest heap in use, and the largest that was taken from the
system, both as sampled. The JVM's resident set is another figure: it has compiled code, class data
and thread stacks, too, and no setting bounds it.

``jstat`` reads counters that the JVM keeps in shared memory, so asking costs it nothing. It
comes with a JDK, not with a JRE; without it there are no figures.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from wal2lake.settings import load

_INTERVAL: Final = "250ms"

_IN_USE: Final = ("S0U", "S1U", "EU", "OU")
_TAKEN: Final = ("S0C", "S1C", "EC", "OC")
"""Columns of jstat -gc: survivor spaces, eden, old generation, in KiB."""


class Heap:
    """A context manager that samples from entry to exit."""

    def __init__(self, pid: int | None) -> None:
        """``pid`` of the JVM; None: there is none, and no figures."""
        self._pid = pid
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._read, name="heap", daemon=True)
        self.in_use_bytes: int | None = None
        """The largest that was seen; None: not known."""
        self.taken_bytes: int | None = None
        """The same of what the JVM had taken from the system for its heap."""

    def __enter__(self) -> Heap:
        program = shutil.which("jstat")
        if self._pid is not None and program is not None:
            self._process = subprocess.Popen(
                [program, "-gc", str(self._pid), _INTERVAL],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._thread.join()
            self._process.wait()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            names = next(lines, "").split()
            for line in lines:
                self.note(dict(zip(names, line.split(), strict=False)))

    def note(self, columns: dict[str, str]) -> None:
        """One line of jstat, by its headings; one that was cut short says nothing."""
        try:
            in_use = sum(float(columns[name]) for name in _IN_USE)
            taken = sum(float(columns[name]) for name in _TAKEN)
        except (KeyError, ValueError):
            return
        self.in_use_bytes = max(self.in_use_bytes or 0, round(in_use * 1024))
        self.taken_bytes = max(self.taken_bytes or 0, round(taken * 1024))


def configured_bytes(directory: Path) -> int:
    """The heap that the settings of a node in ``directory`` allow its JVM."""
    return size_bytes(load(directory, os.environ).spark.driver_memory)


def size_bytes(text: str) -> int:
    """Of Java's notation: 512m, 4g."""
    match = re.fullmatch(r"([0-9]+)([kmgt])", text.lower())
    if match is None:
        raise ValueError(f"no size: {text}")
    return int(match[1]) << 10 * (1 + "kmgt".index(match[2]))
