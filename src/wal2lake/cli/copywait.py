"""``wal2lake sql --wait-copies``: waits until all tables are copied.

CREATE SUBSCRIPTION and REFRESH return at once, as in PostgreSQL, while their tables are copied; a
script may want the rows. A terminal gets bars meanwhile. What keeps a copy from going on ends the
wait: the node tries again by itself, but whoever waits would wait for long.

Called by: ``sql``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from wal2lake.cli.looking import Look, Looker
from wal2lake.cli.terminal.copybars import CopyBars, is_copied
from wal2lake.cli.terminal.words import problem_lines
from wal2lake.health import Problem, Severity, SubscriptionFacts

_POLL_SECONDS: Final = 0.2


def wait_copies(directory: Path) -> int:
    """Wait; returns 1 after printing the problem if a copy cannot go on."""
    with Looker(directory) as looker, CopyBars() as bars:
        while True:
            look = looker.look()
            waiting = [s for s in look.facts.subscriptions if _copies(s)]
            if not waiting:
                return 0
            problem = _obstacle(look, waiting)
            if problem is not None:
                break
            bars.show(look.facts)
            time.sleep(_POLL_SECONDS)
    print("\n".join(problem_lines(problem, look.facts.taken_at)), file=sys.stderr)
    return 1


def _copies(subscription: SubscriptionFacts) -> bool:
    return subscription.enabled and not all(map(is_copied, subscription.tables))


def _obstacle(look: Look, waiting: list[SubscriptionFacts]) -> Problem | None:
    """Return what stops the node or one of the subscriptions."""
    names = {subscription.name for subscription in waiting}
    for problem in look.problems:
        concerned = problem.subscription is None or problem.subscription in names
        if concerned and problem.severity is Severity.ERROR:
            return problem
    return None
