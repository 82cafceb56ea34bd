"""Checks where the log's store is, and what it needs. Pure.

In: all settings. Out: nothing, or ConfigurationError. Called by ``loading``.
"""

from __future__ import annotations

from pathlib import Path

from wal2lake.errors import ConfigurationError
from wal2lake.settings.sections import Settings


def check_log_store(settings: Settings) -> None:
    """Raise ConfigurationError if segments and catalog cannot be where the settings say."""
    chosen, place = settings.log.store, settings.log_store
    if place is None:
        if settings.log.confirm != "store":
            return
        raise ConfigurationError(
            'parameter "log.confirm" needs "log.store"',
            detail="Positions are to be confirmed when their segments are in the store, and"
            f' nothing says where that is: beside the warehouse "{settings.warehouse}" is no'
            " place of an object store.",
            hint='Set "store" of [log] to a URL like s3://bucket/node-log, or to a directory that'
            " outlives this machine.",
        )
    if "://" not in place and not place.startswith("/"):
        raise ConfigurationError(
            f'invalid value for parameter "log.store": "{chosen}"',
            hint="Write a URL like s3://bucket/node-log, or an absolute path.",
        )
    warehouse = settings.warehouse
    if f"{place}/".startswith(f"{warehouse}/") or f"{warehouse}/".startswith(
        f"{place}/"
    ):
        raise ConfigurationError(
            f'the log\'s store "{place}" and the warehouse "{warehouse}" are one inside the'
            " other",
            detail="The store has the passwords of subscriptions, which readers of tables must"
            " not read.",
            hint='Set "store" of [log] to a place beside the warehouse.',
        )
    directory = settings.directory
    if settings.log.confirm == "store":
        for name, where in (("log.store", place), ("spark.warehouse", warehouse)):
            if Path(where).is_relative_to(directory):
                raise ConfigurationError(
                    f'"{where}" ({name}) is inside the node\'s directory, which may be lost'
                    " with log.confirm = store",
                    hint="Set it to a URL like s3://bucket/lake, or to a directory that outlives"
                    " this machine.",
                )
