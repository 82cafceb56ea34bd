"""A node shows the replication settings that PostgreSQL has."""

from __future__ import annotations

from pathlib import Path

from wal2lake.settings import Settings
from wal2lake.sql.parameters import Parameters
from wal2lake.sql.parameters.node import node_parameters


def test_a_node_shows_the_replication_settings_of_postgresql(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    parameters = Parameters(node=lambda: node_parameters(settings))
    workers = str(settings.subscription.max_logical_replication_workers)
    shown = {
        "max_worker_processes": workers,
        "max_parallel_apply_workers_per_subscription": "0",
        "max_active_replication_origins": "65534",
        "sync_replication_slots": "off",
        "synchronized_standby_slots": "",
    }
    assert {name: parameters[name] for name in shown} == shown
