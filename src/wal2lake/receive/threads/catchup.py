"""Recognizes that the publisher sends what has been waiting, and when that is over. Pure.

In: commit times of the transactions that wait to be sealed, moments, whether the stream is behind
the position that the publisher had when it was connected, and whether everything has come. Out:
whether to seal now, or to wait for more. Called by ``sealer``.

After a pause or a lost connection the publisher sends in a second what was committed in many. If
segments were as short as usual, apply would take the first one, and then the others, and pay the
fixed costs of a batch twice. So such a segment ends when everything has come, or after
``LONGEST_SECONDS``.

Whatever lies below the publisher's position at the connection was waiting. Beyond it the commit
times tell. They are compared only with each other, because the publisher's clock may differ from
ours. A stream that keeps up is never taken for one that catches up: its commits span no more time
than it took to receive them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wal2lake.model import INVALID_LSN, Lsn

LONGEST_SECONDS: Final = 4.0
"""Longest duration of a segment while the publisher catches up. Until then apply has nothing to do,
which does not count beside a backlog that takes so long to arrive."""

LOOK_SECONDS: Final = 0.05
"""Interval between looks while the publisher catches up."""

LAST_SECONDS: Final = 0.005
"""The same once everything has come: what is still missing is on its way through the journal."""

_WAITED_SECONDS: Final = 1.0
"""If commits span so much more time than it took to receive them, they had been waiting. More than
a stream that keeps up is usually delayed on its way."""

_RATIO: Final = 2.0
"""Least number of seconds of commits that arrive in a second while the publisher catches up."""

_RATE_SECONDS: Final = 0.5
"""Least time over which that is measured. For shorter times it is less: while the publisher reads
a large transaction it sends only the few that committed meanwhile."""

_SILENCE_SECONDS: Final = 0.25
"""The publisher may send nothing for so long while it reads a large transaction. A guess."""

_BEHIND_SILENCE_SECONDS: Final = 1.0
"""The same below the position that the publisher had at the connection, where there certainly is
more to read, though perhaps no transaction of ours."""


@dataclass(slots=True)
class Arrival:
    """Positions of one connection's stream, as its reader sees it."""

    position: Lsn = INVALID_LSN
    """The publisher's position at the connection."""
    received: Lsn = INVALID_LSN
    """End of the last change that has come."""
    alive: Lsn = INVALID_LSN
    """Position of a keepalive that came after it; 0 if there was none."""

    @property
    def is_whole(self) -> bool:
        """Whether the publisher has sent everything: it sends a keepalive then. Below its position
        at the connection a keepalive has another reason."""
        return self.alive != INVALID_LSN and self.alive >= self.position

    @property
    def is_behind(self) -> bool:
        """Whether the stream has not reached the publisher's position at the connection."""
        return max(self.received, self.alive) < self.position


class CatchUp:
    """State of one connection. Moments are in seconds of any single clock, commit times in
    microseconds of the publisher's."""

    def __init__(self, now: float) -> None:
        self.is_on = False
        """Whether the publisher sends what has been waiting."""
        self.has_ended = False
        """Whether that has ended since the last seal: there is nothing to wait for."""
        self._empty_at = now
        """Last look at which nothing waited to be sealed."""
        self._came_at = now
        self._measured: tuple[float, int] = (now, 0)
        """Moment, and last commit time then, from which the rate is measured."""

    def look(
        self,
        committed: tuple[int, int] | None,
        now: float,
        *,
        came: bool,
        behind: bool = False,
    ) -> None:
        """Note the first and the last commit time of the transactions that wait to be sealed; None
        if there are none. ``came``: data have come since the last look, or are being written.
        ``behind``: the stream has not reached the publisher's position at the connection."""
        if came:
            self._came_at = now
        if self.is_on:
            self._measure(committed, now, behind=behind)
        elif committed is None:
            self._empty_at = now
        else:
            span = (committed[1] - committed[0]) / 1e6
            waited = span - (now - self._empty_at) >= _WAITED_SECONDS
            if waited or (behind and came):
                self.is_on = True
                self._measured = (now, committed[1])

    def _measure(
        self, committed: tuple[int, int] | None, now: float, *, behind: bool
    ) -> None:
        """End the state if the stream is silent, or no faster than commits are made."""
        silence = _BEHIND_SILENCE_SECONDS if behind else _SILENCE_SECONDS
        if now - self._came_at >= silence:
            self.end()
            return
        if behind:
            # The rate counts from the position on.
            self._measured = (now, self._measured[1] if not committed else committed[1])
            return
        since, last = self._measured
        if committed is None or committed[1] <= last or now - since < _RATE_SECONDS:
            # Perhaps a large transaction is arriving.
            return
        if (committed[1] - last) / 1e6 < _RATIO * (now - since):
            self.end()
        self._measured = (now, committed[1])

    def end(self) -> None:
        """Note that everything has come, if the publisher was catching up."""
        if self.is_on:
            self.is_on = False
            self.has_ended = True

    def is_due(self, elapsed: float, usual: float) -> bool:
        """Whether to seal a segment ``elapsed`` seconds after the last seal, if segments last
        ``usual`` seconds."""
        if self.has_ended:
            return True
        return elapsed >= (max(usual, LONGEST_SECONDS) if self.is_on else usual)

    def sealed(self, now: float) -> None:
        """Note that everything was sealed that waited."""
        self.has_ended = False
        self._empty_at = now
