"""Many small tables in one subscription: few connections to the source, commits that are ours to
write, a change to each of them seen together."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Database
from tests.fakes.outside import assert_equal_outside

from wal2lake.pg import connect
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

TABLES = 60

WORKERS = 2
"""max_sync_workers_per_subscription: each asks once about its tables."""


def test_sixty_small_tables_over_few_connections(
    node: Node, database: Callable[..., Database], subscribe: Callable[..., Mirror]
) -> None:
    name, source = "sixty", database(18)
    tables = [f"{name}.t{n}" for n in range(TABLES)]
    source.psql(
        f"create schema {name};"
        + "".join(
            f"create table {table} (id int primary key, v text);"
            f"insert into {table} select i, '{table} ' || i"
            " from generate_series(1, 5) i;"
            for table in tables
        )
        + f"create publication {name} for tables in schema {name}"
    )
    peak = [0]
    over = threading.Event()

    def watch() -> None:
        asked = (
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and application_name ~ '^pg_[0-9]+_sync_'"
        )
        with connect(source.conninfo(), application_name="watch") as session:
            while not over.wait(0.02):
                peak[0] = max(peak[0], int(session.query(asked)[0][0] or 0))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        mirror = subscribe(source, name)
        mirror.synced()
    finally:
        over.set()
        watcher.join()
    readers = len(os.sched_getaffinity(0))
    # The snapshot's two connections are the receiver's.
    assert 0 < peak[0] <= readers + WORKERS + 2

    source.transactions(
        [
            "".join(f"insert into {table} values (6, 'new');" for table in tables),
            *(f"update {table} set v = 'changed' where id = 3" for table in tables),
            f"truncate {tables[7]}",
        ]
    )
    mirror.caught_up()
    assert_equal_outside(node, source.conninfo(), tuple(tables))

    logs = node.directory.glob(f"warehouse/{name}/*/_delta_log/*.json")
    engines = [_engine(log) for log in logs if not log.name.startswith(f"{0:020}")]
    assert len(engines) >= 2 * TABLES
    assert set(engines) == {"wal2lake"}


def _engine(log: Path) -> str:
    """Who wrote a commit."""
    first = log.read_text(encoding="utf-8").partition("\n")[0]
    return str(json.loads(first)["commitInfo"]["engineInfo"])
