"""History tables: which table's changes they have, and which subscription feeds them.

A history table names the table whose changes it has in a storage parameter, ``HISTORY_OF``. It is
fed while a subscription with that table keeps its histories in the history table's schema. Called
by ``store``.
"""

from __future__ import annotations

import json
import sqlite3
from functools import lru_cache

from wal2lake.catalog.objects.historyrecords import HISTORY_OF, HistoryFeed
from wal2lake.errors import UndefinedObjectError
from wal2lake.model import Oid


def feeds(connection: sqlite3.Connection) -> dict[Oid, HistoryFeed]:
    """Return the history tables that are fed, by OID."""
    feeds_by_table: dict[Oid, HistoryFeed] = {}
    subscriptions = connection.execute(
        "select oid, json_extract(options, '$.history') as schema from subscription"
        " where coalesce(json_extract(options, '$.history'), '') <> ''"
    ).fetchall()
    for subscription in subscriptions:
        histories: dict[int, Oid] = {}
        for row in connection.execute(
            "select oid, parameters from relation"
            " where namespace = ? and instr(parameters, ?)",
            (subscription["schema"], HISTORY_OF),
        ):
            mirror = _mirror_of(row["parameters"])
            if mirror is not None:
                histories[mirror] = Oid(row["oid"])
        if not histories:
            continue
        for (relid,) in connection.execute(
            "select relid from subscription_rel where subid = ?", (subscription["oid"],)
        ):
            if relid in histories:
                feed = HistoryFeed(Oid(subscription["oid"]), Oid(relid))
                feeds_by_table[histories[relid]] = feed
    return feeds_by_table


@lru_cache(maxsize=1 << 14)
def _mirror_of(parameters: str) -> int | None:
    """Return the table that these storage parameters name. Each statement of a session asks for all
    history tables."""
    mirror = dict(json.loads(parameters)).get(HISTORY_OF)
    return None if mirror is None else int(mirror)


def link(connection: sqlite3.Connection, oid: Oid, mirror: Oid) -> None:
    """Let a history table have the changes of the table ``mirror`` from now on."""
    row = connection.execute(
        "select parameters from relation where oid = ?", (oid,)
    ).fetchone()
    if row is None:
        raise UndefinedObjectError(f"relation with OID {oid} does not exist")
    parameters = dict(json.loads(row["parameters"]))
    parameters[HISTORY_OF] = str(int(mirror))
    connection.execute(
        "update relation set parameters = ? where oid = ?",
        (json.dumps(list(parameters.items())), oid),
    )
