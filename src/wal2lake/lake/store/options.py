"""Options of an object store's client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a client, all with a default."""

    config: tuple[tuple[str, str], ...] = ()
    """obstore's own options by name, as ``endpoint``, ``region``, ``access_key_id``,
    ``account_name``."""
    connect_seconds: float = 5.0
    request_seconds: float = 30.0
    """Most time for one request with its answer."""
    attempts_seconds: float = 60.0
    """Most time for one operation, repeated requests and pauses included. A guess: longer than a
    store takes to fail over, shorter than an operator waits for a word."""
    pause_seconds: float = 0.1
    """Upper bound of the first pause between two requests; it doubles up to
    ``longest_pause_seconds``."""
    longest_pause_seconds: float = 10.0
