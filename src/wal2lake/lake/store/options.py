"""Options of an object store's client.

In: the environment, in which the supervisor hands the settings of [store] to each process of a
node; in a Python worker of Spark, those that its task has brought (``use_options``), since workers
of a cluster do not have that environment. Out: ``StoreOptions``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_PREFIX: Final = "WAL2LAKE_STORE_"

_CONFIG: Final = (
    "endpoint",
    "region",
    "access_key_id",
    "secret_access_key",
    "credentials_file",
    "account_key",
    "sas_token",
)
"""Settings with a text of which a client is made."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a client, all with a default."""

    config: tuple[tuple[str, str], ...] = ()
    """Settings of [store] by name, as ``endpoint``, ``access_key_id``, ``account_key``. The client
    of a cloud reads its own."""
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
    credentials_command: str = ""
    """Shell command that prints credentials; empty: there is none."""
    anonymous: bool = False
    """Requests are sent without credentials."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> StoreOptions:
        """Read the settings of [store]. An empty variable, or none, is the default."""
        settings = {
            name.removeprefix(_PREFIX).lower(): text
            for name, text in environment.items()
            if name.startswith(_PREFIX) and text
        }
        # Defaults are the settings' own.
        seconds = {
            name: int(settings[f"{setting}_timeout_ms"]) / 1000
            for name, setting in (
                ("connect_seconds", "connect"),
                ("request_seconds", "request"),
                ("attempts_seconds", "retry"),
            )
            if f"{setting}_timeout_ms" in settings
        }
        return cls(
            tuple((name, settings[name]) for name in _CONFIG if name in settings),
            credentials_command=settings.get("credentials_command", ""),
            anonymous=settings.get("anonymous") == "True",
            **seconds,
        )


_OF_PROCESS: Final[list[StoreOptions]] = []
"""The options of this process, once they were needed or brought."""


def process_options() -> StoreOptions:
    """Return the options of this process: those of its environment, or that a task has brought."""
    if not _OF_PROCESS:
        _OF_PROCESS.append(StoreOptions.from_environment(os.environ))
    return _OF_PROCESS[0]


def use_options(options: StoreOptions) -> None:
    """Make ``options`` those of this process from now on."""
    _OF_PROCESS[:] = [options]
