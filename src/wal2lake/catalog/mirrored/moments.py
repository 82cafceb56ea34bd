"""Moments at which the Iceberg mirrors of all tables agree with each other.

A round of the worker reads the published states once and brings each mirror to them. When it is
done, the mirrors show one moment. Its number is in the summary of each snapshot that the round has
made, so a table at moment N is its newest snapshot with a number up to N: nothing is written for
tables that have not changed.

    run/iceberg/moments    one JSON object a line; a later line about a number replaces an earlier
      {"begun": N}                              snapshots may have number N from here on
      {"moment": N, "since": ms, "until": ms,   the moment is complete; it holds from the time
       "at": {subid: [lsn, lsn]},               and position at which its states were published
       "behind": [oid, ...], "oldest": N}       to the last ones at which nothing had changed

A number that has begun and is not complete, because of a crash, is never given again. A line that
is not complete is not there. The file is not synced: if it is lost, so are the earlier moments, and
new ones begin.

Called by ``local.mirrors`` (``MomentWriter``) and by the web process (``MomentReader``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from wal2lake.model import Lsn, Oid

FILE_NAME: Final = "moments"

_SPARE_LINES: Final = 1_000
"""Lines that the file may have beyond twice the number of moments before it is written anew."""


@dataclass(frozen=True, slots=True)
class MirrorMoment:
    """One state of all mirrors."""

    number: int
    since_ms: int
    """Time at which the newest of its states was published; milliseconds since 1970."""
    until_ms: int
    """Last time at which nothing newer had been published."""
    positions: Mapping[Oid, tuple[Lsn, Lsn]] = field(default_factory=dict)
    """By subscription: the first and the last position at which the state is this one."""
    behind: frozenset[Oid] = frozenset()
    """Tables (OIDs of their storage) whose mirrors do not show the moment."""


class MomentWriter:
    """The moments of a node, in the engine. For one thread."""

    def __init__(self, directory: Path) -> None:
        """Take up what the directory has."""
        self._path = directory / FILE_NAME
        self._content = _Content()
        content = self._path.read_bytes() if self._path.exists() else b""
        taken = self._content.take(content)
        # A line that a crash has cut would swallow the next one.
        self._lines = content.count(b"\n") if taken == len(content) else None

    @property
    def newest(self) -> MirrorMoment | None:
        """The newest complete moment."""
        moments = self._content.moments
        return moments[-1] if moments else None

    @property
    def has_begun(self) -> bool:
        """Whether snapshots may be newer than the newest complete moment."""
        return self.newest is None or self._content.begun > self.newest.number

    def begin(self, now_ms: int) -> int:
        """Return a number above all that snapshots have, for those of a new moment. OSError if it
        cannot be recorded."""
        number = max(self._content.begun + 1, now_ms)
        self._append({"begun": number})
        return number

    def complete(self, moment: MirrorMoment, oldest_ms: int) -> None:
        """Record a moment, or how long the newest one holds; forget those that were replaced before
        a time. OSError if it cannot be recorded."""
        kept = [
            earlier
            for earlier in self._content.moments
            if earlier.number != moment.number
        ]
        kept.append(moment)
        first = 0
        while first + 1 < len(kept) and kept[first + 1].since_ms < oldest_ms:
            first += 1
        self._append(_document(moment, kept[first].number))

    def _append(self, document: Mapping[str, Any]) -> None:
        line = _line(document)
        lines, self._lines = self._lines, None
        if lines is None or lines > 2 * len(self._content.moments) + _SPARE_LINES:
            lines = self._write_anew()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(f'could not write to "{self._path}": the disk is full')
        finally:
            os.close(descriptor)
        self._lines = lines + 1
        self._content.take(line)

    def _write_anew(self) -> int:
        """Replace the file by one without what later lines have replaced; return its lines."""
        moments = self._content.moments
        documents: list[Mapping[str, Any]] = [
            _document(moment, moments[0].number) for moment in moments
        ]
        documents.append({"begun": self._content.begun})
        draft = self._path.with_name(f".{FILE_NAME}.tmp")
        draft.touch(0o600)
        draft.write_bytes(b"".join(map(_line, documents)))
        draft.replace(self._path)
        return len(documents)


class MomentReader:
    """The moments of a node, in another process. For one thread."""

    def __init__(self, directory: Path) -> None:
        """Read nothing yet."""
        self._path = directory / FILE_NAME
        self._content = _Content()
        self._taken = 0
        # Open, so that no later file gets its inode number.
        self._file: BinaryIO | None = None

    def read(self) -> Sequence[MirrorMoment]:
        """Return the complete moments, oldest first. Reads what is new in the file."""
        if self._file is None or not self._is_current(self._file):
            self.close()
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return self._content.moments
        self._file.seek(self._taken)
        self._taken += self._content.take(self._file.read())
        return self._content.moments

    def close(self) -> None:
        """Forget everything."""
        if self._file is not None:
            self._file.close()
        self._file, self._content, self._taken = None, _Content(), 0

    def _is_current(self, file: BinaryIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False


class _Content:
    """The lines of the file, as far as they still say something."""

    def __init__(self) -> None:
        self.moments: list[MirrorMoment] = []
        self.begun = 0

    def take(self, content: bytes) -> int:
        """Take up further lines; return how many bytes of the content are complete lines."""
        complete = content.rfind(b"\n") + 1
        for line in content[:complete].splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError):
                # After a power loss the end of the file may be zeros.
                continue
        return complete

    def _take(self, document: Mapping[str, Any]) -> None:
        if "begun" in document:
            self.begun = max(self.begun, int(document["begun"]))
            return
        moment = _moment(document)
        if self.moments and self.moments[-1].number == moment.number:
            self.moments.pop()
        self.moments.append(moment)
        self.begun = max(self.begun, moment.number)
        oldest = int(document["oldest"])
        first = next(i for i, kept in enumerate(self.moments) if kept.number >= oldest)
        # Another list, since a reader may still have this one.
        self.moments = self.moments[first:]


def _document(moment: MirrorMoment, oldest: int) -> Mapping[str, Any]:
    return {
        "moment": moment.number,
        "since": moment.since_ms,
        "until": moment.until_ms,
        "at": {
            str(int(subid)): [int(first), int(last)]
            for subid, (first, last) in moment.positions.items()
        },
        "behind": sorted(map(int, moment.behind)),
        "oldest": oldest,
    }


def _moment(document: Mapping[str, Any]) -> MirrorMoment:
    return MirrorMoment(
        int(document["moment"]),
        int(document["since"]),
        int(document["until"]),
        {
            Oid(int(subid)): (Lsn(first), Lsn(last))
            for subid, (first, last) in document["at"].items()
        },
        frozenset(Oid(oid) for oid in document["behind"]),
    )


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
