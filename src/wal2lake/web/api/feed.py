"""One reading of the node that all browsers share.

In: a function that reads facts and problems (files only; it may take a while). Out: a ``Reading``
for each second, told to subscribers, and kept as the latest.

    thread "page"    read, rates, documents, history     every second while somebody looks,
                          │                              else every fifth
                          │ call_soon_threadsafe
    event loop            ▼
                     latest = reading; each subscriber's callback

No request waits for a reading: it takes the latest one. A reading that fails is sent, too, with the
reason; the last good documents stay.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from wal2lake.health import NodeFacts, Problem, SubscriptionFacts, TableFacts
from wal2lake.observe import get_logger
from wal2lake.web.api import documents
from wal2lake.web.api.history import PageHistory
from wal2lake.web.api.rates import RateWindow

INTERVAL_SECONDS: Final = 1.0
"""Time between two readings while somebody looks."""

IDLE_SECONDS: Final = 5.0
"""Time between two readings while nobody looks; the history needs them."""

LOOKING_SECONDS: Final = 30.0
"""Time after a request in which somebody still looks."""

_PLAIN: Final = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_ESCAPED: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

TableKey = tuple[int, int]
"""OIDs of the subscription and of the table."""

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Reading:
    """The documents of one moment, as JSON texts in bytes."""

    number: int
    """Number of the reading; the first has 1."""
    state: bytes
    problems: bytes
    tables: Mapping[TableKey, bytes]
    """One JSON array per table."""
    changed: tuple[TableKey, ...]
    """Tables whose rows differ from the reading before."""
    gone: tuple[TableKey, ...]
    facts: NodeFacts | None
    """None if no reading has succeeded yet."""
    trouble: str | None = None
    """Reason why the node cannot be read; the documents are then older."""


EMPTY_READING: Final = Reading(0, b"null", b"null", {}, (), (), None)


class TableRows:
    """Rows of tables as JSON. A row that is made of the same is not made again. For one thread."""

    def __init__(self) -> None:
        self._known: dict[TableKey, _Row] = {}

    def encode(
        self,
        facts: NodeFacts,
        rates: Mapping[Hashable, float],
        worst: documents.Worst,
    ) -> dict[TableKey, bytes]:
        """Return the rows of all tables."""
        before = self._known
        after: dict[TableKey, _Row] = {}
        for s in facts.subscriptions:
            for t in s.tables:
                key = int(s.oid), int(t.oid)
                rate = rates.get(("rows", *key))
                problem = worst.get((s.name, t.qualified))
                row = before.get(key)
                if row is None or not row.is_of(t, rate, problem):
                    shown = documents.table_row(int(s.oid), t, rate, problem)
                    row = _Row(t, rate, problem, encode(shown))
                after[key] = row
        self._known = after
        return {key: row.text for key, row in after.items()}


@dataclass(frozen=True, slots=True)
class _Row:
    """A row, and what it was made of."""

    table: TableFacts
    rate: float | None
    problem: Problem | None
    text: bytes

    def is_of(
        self, table: TableFacts, rate: float | None, problem: Problem | None
    ) -> bool:
        """Return whether the row is made of these. Facts that have not changed are the same
        object; it would take longer to compare others than to make the row."""
        return self.table is table and self.rate == rate and self.problem == problem


class PageFeed:
    """Reads in a thread of its own; tells subscribers on an event loop."""

    def __init__(
        self,
        read: Callable[[], tuple[NodeFacts, Sequence[Problem]]],
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """``read`` is called by the feed's thread only, so it may hold an SQLite connection that
        it opens at the first call."""
        self._read = read
        self._interval = interval_seconds
        self._idle = idle_seconds
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that ``start`` was called on."""
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._ending = False
        self._looked_at = time.monotonic()
        self._rates = RateWindow()
        self._rows = TableRows()
        self._failing: str | None = None
        self._subscribers: dict[int, Callable[[Reading | None], None]] = {}
        self.history = PageHistory()
        self.latest = EMPTY_READING
        """The newest reading. Replaced on the event loop; read there, too."""

    # ---- the event loop's side --------------------------------------------------

    def start(self) -> None:
        """Start the thread; called on the event loop."""
        self.loop = asyncio.get_running_loop()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end, and tell every subscriber that the feed ends."""
        self._ending = True
        self._wake.set()
        for callback in tuple(self._subscribers.values()):
            callback(None)
        self._subscribers.clear()

    def look(self) -> None:
        """Note that somebody looks: readings come every second for a while."""
        quiet = time.monotonic() - self._looked_at > LOOKING_SECONDS
        self._looked_at = time.monotonic()
        if quiet:
            self._wake.set()

    def subscribe(self, callback: Callable[[Reading | None], None]) -> int:
        """Call ``callback`` with each further reading, with None at the end of the feed. Return
        the number for ``unsubscribe``."""
        number = max(self._subscribers, default=0) + 1
        self._subscribers[number] = callback
        self.look()
        return number

    def unsubscribe(self, number: int) -> None:
        """Forget a subscriber; an unknown number is no error."""
        self._subscribers.pop(number, None)

    @property
    def subscribers(self) -> int:
        """Number of subscribers."""
        return len(self._subscribers)

    def _deliver(self, reading: Reading) -> None:
        self.latest = reading
        for callback in tuple(self._subscribers.values()):
            callback(reading)

    # ---- the thread's side ------------------------------------------------------

    def _run(self) -> None:
        previous = EMPTY_READING
        while not self._ending:
            began = time.monotonic()
            previous = self._reading(previous)
            loop = self.loop
            assert loop is not None
            # The loop may be closed by now: the process ends.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._deliver, previous)
            self._wait(began)

    def _wait(self, began: float) -> None:
        """Wait until the next reading is due; a look after a quiet time ends the wait."""
        looking = bool(self._subscribers) or began - self._looked_at <= LOOKING_SECONDS
        self._wake.wait(self.pause(time.monotonic() - began, looking=looking))
        self._wake.clear()

    def pause(self, spent: float, *, looking: bool) -> float:
        """Return the pause after a reading that took ``spent`` seconds. A reading that takes
        long (many tables, a busy machine) gets at most half of one core."""
        return max((self._interval if looking else self._idle) - spent, spent)

    def _reading(self, previous: Reading) -> Reading:
        try:
            facts, problems = self._read()
            reading = self._documents(facts, problems, previous)
        except Exception as error:  # whatever is wrong, the page says it and goes on
            if self._failing is None:
                _log.warning("cannot read the node's state", error=str(error))
            self._failing = str(error) or type(error).__name__
            return replace(
                previous,
                number=previous.number + 1,
                changed=(),
                gone=(),
                trouble=self._failing,
            )
        self._failing = None
        return reading

    def _documents(
        self, facts: NodeFacts, problems: Sequence[Problem], previous: Reading
    ) -> Reading:
        if previous.facts is facts:
            # Others have asked for this reading just before.
            return replace(
                previous,
                number=previous.number + 1,
                changed=(),
                gone=(),
                trouble=None,
            )
        moment = facts.taken_at.timestamp()
        rates = self._rates.add(moment, documents.totals(facts))
        self.history.add(
            moment,
            {s.oid: sample(s, rates) for s in facts.subscriptions},
        )
        tables = self._rows.encode(facts, rates, documents.worst_problems(problems))
        before = previous.tables
        return Reading(
            previous.number + 1,
            encode(documents.state(facts, problems, rates)),
            encode(documents.problems(problems)),
            tables,
            tuple(k for k, row in tables.items() if before.get(k) != row),
            tuple(k for k in before if k not in tables),
            facts,
        )


def sample(
    s: SubscriptionFacts, rates: Mapping[Hashable, float]
) -> dict[str, float | None]:
    """Return one sample of a subscription's history."""
    return {
        "rows": rates.get(("rows", int(s.oid))),
        "bytes": rates.get(("bytes", int(s.oid))),
        "received": s.received.behind_seconds,
        "durable": s.durable.behind_seconds,
        "applied": s.applied.behind_seconds,
        "visible": s.visible.behind_seconds,
        "behind_bytes": s.visible.behind_bytes,
    }


def encode(document: Any) -> bytes:
    """Return compact JSON in UTF-8. Lone surrogates, which a name could hold, are escaped."""
    try:
        return _PLAIN.encode(document).encode()
    except UnicodeEncodeError:
        return _ESCAPED.encode(document).encode()
