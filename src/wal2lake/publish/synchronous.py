"""Synchronous standbys: selects the subscribers that a COMMIT waits for, and waits.

In: ``synchronous_standby_names``, walsenders with their positions. Out: priorities and states as in
pg_stat_replication; the end of a wait. Everything but ``CommitWaits`` is pure.

    s1, s2            FIRST 1 (s1, s2)
    2 (s1, s2, s3)    FIRST 2 (s1, s2, s3): the first two in the list that stream
    ANY 2 (s1, s2)    any two of them
    *                 every streaming client

The names are application names. PostgreSQL's subscribers set them to the subscription's name.

Source: syncrep.c, syncrep_gram.y, syncrep_scanner.l; PostgreSQL manual, 19.6.2.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import ConfigurationError, UsageError, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.publish.capture.requests import Point
from wal2lake.publish.capture.worker import Capture
from wal2lake.publish.walsender.page import WalsenderPositions

_ALL: Final = "*"

LEVELS: Final = {"remote_write": "write", "on": "flush", "remote_apply": "apply"}
"""Values of synchronous_commit that wait, each with the position that it waits for."""

_LONGEST_PAUSE_SECONDS: Final = 0.02
"""Longest pause between two looks at the positions, which are in memory."""

_LOOK_SECONDS: Final = 5.0
"""Time limit of one request to capture. The wait then repeats the request."""


@dataclass(frozen=True, slots=True)
class Walsender:
    """A streaming walsender."""

    pid: int
    application_name: str
    positions: WalsenderPositions


@dataclass(frozen=True, slots=True)
class Standbys:
    """A parsed list of standbys."""

    quorum: bool
    """True for ANY, False for FIRST."""
    count: int
    names: tuple[str, ...]

    def priority(self, application_name: str) -> int:
        """Return the place in the list, from 1; 0 if the name is not in the list."""
        wanted = application_name.lower()
        for place, name in enumerate(self.names, 1):
            if name == _ALL or name.lower() == wanted:
                # All members of a quorum have the same priority.
                return 1 if self.quorum else place
        return 0

    def state(self, walsender: Walsender, all_: Iterable[Walsender]) -> str:
        """Return pg_stat_replication.sync_state."""
        if not self.priority(walsender.application_name):
            return "async"
        if self.quorum:
            return "quorum"
        chosen = {candidate.pid for candidate in self._chosen(all_)}
        return "sync" if walsender.pid in chosen else "potential"

    def confirmed(self, all_: Iterable[Walsender], word: str) -> Lsn | None:
        """Return the position that enough standbys have reached; None if there are not enough
        standbys. ``word``: write, flush or apply."""
        candidates = self._candidates(all_) if self.quorum else self._chosen(all_)
        positions = sorted(
            (_position(walsender, word) for walsender in candidates), reverse=True
        )
        return positions[self.count - 1] if len(positions) >= self.count else None

    def _candidates(self, all_: Iterable[Walsender]) -> list[Walsender]:
        return [
            walsender
            for walsender in all_
            if walsender.positions.streaming
            and walsender.positions.flush
            and self.priority(walsender.application_name)
        ]

    def _chosen(self, all_: Iterable[Walsender]) -> list[Walsender]:
        def place(walsender: Walsender) -> tuple[int, int]:
            return self.priority(walsender.application_name), walsender.pid

        return sorted(self._candidates(all_), key=place)[: self.count]


def _position(walsender: Walsender, word: str) -> Lsn:
    positions = walsender.positions
    return {
        "write": positions.write,
        "flush": positions.flush,
        "apply": positions.apply,
    }[word]


_AGAIN_SECONDS: Final = 0.5
"""Pause after capture has failed."""


# ---- the setting ---------------------------------------------------------------------


_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*)
    |"(?P<quoted>(?:[^"]|"")*)"|(?P<number>\d+)|(?P<sign>[*,()]))""",
    re.VERBOSE,
)


def parse_standbys(text: str) -> Standbys | None:
    """Parse synchronous_standby_names; None if it is empty. Raises ConfigurationError."""
    if not text.strip():
        return None
    tokens = _tokens(text)
    quorum, count = False, 1
    if tokens and tokens[0][0] == "keyword":
        quorum = tokens.pop(0)[1] == "any"
        if not tokens or tokens[0][0] != "number":
            raise _wrong(text, _near(tokens))
        if len(tokens) < 2 or tokens[1][1] != "(":
            raise _wrong(text, _near(tokens[1:]))
    if len(tokens) > 1 and tokens[0][0] == "number" and tokens[1][1] == "(":
        count = int(tokens[0][1])
        if tokens[-1][1] != ")":
            raise _wrong(text, "syntax error at end of input")
        tokens = tokens[2:-1]
    names = []
    while True:
        if not tokens or tokens[0][0] not in ("name", "number", "keyword"):
            raise _wrong(text, _near(tokens))
        names.append(tokens.pop(0)[1])
        if not tokens:
            break
        if tokens[0][1] != "," or tokens[0][0] != "sign":
            raise _wrong(text, _near(tokens))
        tokens.pop(0)
    if count < 1:
        raise _wrong(
            text,
            f"number of synchronous standbys ({count}) must be greater than zero",
        )
    return Standbys(quorum, count, tuple(names))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    offset, end = 0, len(text.rstrip())
    while offset < end:
        match = _TOKEN.match(text, offset)
        if match is None:
            rest = text[offset:].strip()
            if rest.startswith('"'):
                raise _wrong(text, "unterminated quoted identifier")
            raise _wrong(text, f'syntax error at or near "{rest[:1]}"')
        offset = match.end()
        kind, value = str(match.lastgroup), str(match[str(match.lastgroup)])
        if kind == "quoted":
            kind, value = "name", value.replace('""', '"')
        elif kind == "name" and value.lower() in ("any", "first"):
            kind, value = "keyword", value.lower()
        elif value == _ALL:
            kind = "name"
        tokens.append((kind, value))
    return tokens


def _near(tokens: Sequence[tuple[str, str]]) -> str:
    if not tokens:
        return "syntax error at end of input"
    return f'syntax error at or near "{tokens[0][1]}"'


def _wrong(text: str, detail: str) -> ConfigurationError:
    return ConfigurationError(
        f'invalid value for parameter "synchronous_standby_names": "{text}"',
        detail=detail,
        hint='It is a list of application names, or like: FIRST 2 (a, b), ANY 1 ("c d", e).',
    )


# ---- the wait ------------------------------------------------------------------------


class CommitWaits:
    """Waits of the sessions of one node."""

    def __init__(
        self,
        capture: Capture,
        walsenders: Callable[[], Sequence[Walsender]],
        standbys: Callable[[], Standbys | None],
    ) -> None:
        """``standbys`` returns the present setting, so that a change of the setting ends waits."""
        self._capture = capture
        self._walsenders = walsenders
        self._standbys = standbys

    def wait(self, level: str, check: Callable[[], None]) -> bool:
        """Wait until the standbys have this session's commits, as ``level`` (synchronous_commit)
        demands. Return False if ``check`` has ended the wait with 57014."""
        word = LEVELS.get(level)
        if word is None:
            return True
        try:
            end: Lsn | None = None
            pause = 0.0005
            while (standbys := self._standbys()) is not None:
                check()
                if end is None:
                    end = self._captured(check)
                    continue
                confirmed = standbys.confirmed(self._walsenders(), word)
                if confirmed is not None and confirmed >= end:
                    return True
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except UsageError as error:
            if error.sqlstate != "57014":
                raise
            return False
        return True

    def _captured(self, check: Callable[[], None]) -> Lsn | None:
        """Return the end of the log once it has everything visible now; None if that takes
        longer."""
        try:
            point: Point = self._capture.catch_up(_LOOK_SECONDS, check)
        except TimeoutError:
            return None
        except Wal2LakeError as error:
            if error.sqlstate == "57014":
                raise
            # Capture retries, and the commit is not lost, so the wait goes on.
            time.sleep(_AGAIN_SECONDS)
            return None
        return point.lsn
