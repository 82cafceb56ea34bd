"""The shutdown of a node: phases in order, as a table.

    phase               wanted                    clients    left when
    -----------------   ----------------------    -------    -------------------------
    RUNNING             engine, receivers, web    yes        a shutdown request
    DRAINING (smart)    running ones, no restart  old ones   the engine has ended
    STOPPING_ENGINE     receivers and web         no         the engine has ended
    STOPPING_RECEIVERS  nothing                   no         all have ended
    ABORTING            nothing, by SIGKILL       no         all have ended
    DONE

The engine goes first: it finishes or abandons its batch, and the receivers' last feedback still
tells the publisher what it has applied. The web process tells until then that the node is stopping.

Requests only go down the table: a fast shutdown can overtake a smart one, and an immediate one
both. Called by: supervisor. Source: PostgreSQL manual, 18.5 (shutting down).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

from wal2lake.launch.plan import ENGINE, ChildRole, Desired


class Mode(Enum):
    """A request to stop, as ``wal2lake stop --mode`` names it."""

    SMART = "smart"
    """Wait for the clients to leave."""
    FAST = "fast"
    """Disconnect the clients and end in order."""
    IMMEDIATE = "immediate"
    """End now; the next start finds everything that was confirmed."""


SIGNAL_OF_MODE: Final[Mapping[Mode, signal.Signals]] = MappingProxyType(
    {
        Mode.SMART: signal.SIGUSR2,
        Mode.FAST: signal.SIGTERM,
        Mode.IMMEDIATE: signal.SIGQUIT,
    }
)
"""Signals to the supervisor. SIGTERM is PostgreSQL's smart shutdown, but the fast one here (DESIGN
2.1), since that is what service managers mean by it."""


class Phase(Enum):
    """Phases of a shutdown; the module's table describes them."""

    RUNNING = 0
    """Everything that should run is started and restarted."""
    DRAINING = 1
    """No new clients; the engine ends when the last one leaves."""
    STOPPING_ENGINE = 2
    """The engine has been told to end."""
    STOPPING_RECEIVERS = 3
    """The receivers have been told to send their last feedback and end, and the web process to
    end."""
    ABORTING = 4
    """Everything has been killed."""
    DONE = 5
    """No child is left."""


_REQUESTED: Final[Mapping[Mode, Phase]] = MappingProxyType(
    {
        Mode.SMART: Phase.DRAINING,
        Mode.FAST: Phase.STOPPING_ENGINE,
        Mode.IMMEDIATE: Phase.ABORTING,
    }
)


def mode_of_signal(number: signal.Signals) -> Mode | None:
    """Return the request that a signal means; SIGINT is a fast shutdown, too."""
    if number == signal.SIGINT:
        return Mode.FAST
    return next((m for m, s in SIGNAL_OF_MODE.items() if s == number), None)


def request(phase: Phase, mode: Mode) -> Phase:
    """Return the phase after a request, which is never an earlier one."""
    return max(phase, _REQUESTED[mode], key=lambda p: p.value)


def advance(phase: Phase, running: Sequence[ChildRole]) -> Phase:
    """Return the phase that follows from the running children."""
    engine = ChildRole.ENGINE in running
    if phase in (Phase.DRAINING, Phase.STOPPING_ENGINE) and not engine:
        phase = Phase.STOPPING_RECEIVERS
    if phase in (Phase.STOPPING_RECEIVERS, Phase.ABORTING) and not running:
        phase = Phase.DONE
    return phase


def wanted(
    phase: Phase,
    subscribed: Sequence[Desired],
    receivers: Sequence[Desired],
    web: Sequence[Desired] = (),
) -> list[Desired]:
    """Return the children that should run.

    ``subscribed``: by the catalog; ``receivers``: those that run now; ``web``: the web process,
    if the settings want one."""
    if phase is Phase.RUNNING:
        return [Desired(ENGINE), *subscribed, *web]
    if phase is Phase.DRAINING:
        return [Desired(ENGINE), *receivers, *web]
    if phase is Phase.STOPPING_ENGINE:
        return [*receivers, *web]
    return []
