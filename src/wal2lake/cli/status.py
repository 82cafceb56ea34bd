"""``wal2lake status``: the state of a node, running or not.

Reads only files (the lock, ``run/status.json``, the catalog, the positions). It therefore answers
at once, even while the engine is starting, busy or down. ``--json`` is for programs; its names are
a contract.

Exit codes, as pg_ctl's: 0 running, 3 not running, 4 not a node's directory.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from wal2lake.catalog import Catalog, ProgressFile, Subscription, WorkerKind
from wal2lake.catalog.progress import progress_path
from wal2lake.cli.terminal.errors import print_error
from wal2lake.errors import ConfigurationError, StorageError
from wal2lake.launch import is_locked, read_lock, read_status
from wal2lake.model import Lsn, SyncState

NOT_RUNNING: Final = 3
NO_DIRECTORY: Final = 4

_CATALOG: Final = "catalog.sqlite"


def run(options: argparse.Namespace) -> int:
    """Print the status; returns the module's exit codes."""
    directory: Path = options.directory.absolute()
    if not is_locked(directory) and not (directory / _CATALOG).exists():
        print_error(
            ConfigurationError(
                f'directory "{directory}" is not a wal2lake node',
                hint=f"Make one with: wal2lake init -D {directory}",
            )
        )
        return NO_DIRECTORY
    facts = describe(directory)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print("\n".join(_lines(facts)))
    return NOT_RUNNING if facts["state"] == "stopped" else 0


def describe(directory: Path) -> dict[str, Any]:
    """Return all known facts, in JSON's types."""
    facts: dict[str, Any] = {
        "directory": str(directory),
        "state": "stopped",
        "version": None,
        "pid": None,
        "address": None,
        "port": None,
        "started_at": None,
        "processes": [],
    }
    if is_locked(directory):
        facts.update(_running(directory))
    facts["subscriptions"] = _subscriptions(directory, facts["processes"])
    return facts


def _running(directory: Path) -> dict[str, Any]:
    lock, status = read_lock(directory), read_status(directory / "run")
    facts: dict[str, Any] = {"state": "starting"}
    if lock is not None:
        facts.update(
            state=lock.state,
            pid=lock.pid,
            address=lock.address,
            port=lock.port,
            started_at=_time(lock.started_at),
        )
    # With another pid, the file is from an earlier start.
    if lock is None or status is None or status.supervisor_pid != lock.pid:
        return facts
    facts["version"] = status.version
    facts["processes"] = [
        {"role": "supervisor", "pid": lock.pid, "started_at": facts["started_at"]},
        {
            "role": "guardian",
            "pid": status.guardian_pid,
            "started_at": facts["started_at"],
        },
        *(
            {
                "role": w.role,
                "pid": w.pid,
                "started_at": _time(w.started_at),
                "starts": w.starts,
                **({"subscription": w.subscription} if w.subscription else {}),
            }
            for w in status.workers
        ),
    ]
    return facts


def _subscriptions(
    directory: Path, processes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    receivers = {p.get("subscription"): p["pid"] for p in processes}
    catalog = Catalog(directory / _CATALOG)
    try:
        return [
            _subscription(directory, catalog, s, receivers.get(s.name))
            for s in catalog.subscriptions()
        ]
    except StorageError as error:
        raise ConfigurationError(error.message) from None
    finally:
        catalog.close()


def _subscription(
    directory: Path, catalog: Catalog, subscription: Subscription, receiver: int | None
) -> dict[str, Any]:
    received = logged = applied = subscription.floor
    # Opening a missing file would create it, and a status must not change anything.
    if progress_path(directory / "run", subscription.oid).exists():
        with ProgressFile(directory / "run", subscription.oid) as file:
            progress = file.read()
        applied = Lsn(max(progress.applied, progress.replay_lsn, subscription.floor))
        logged = Lsn(max(progress.logged, applied))
        received = Lsn(max(progress.received, logged))
    rels = catalog.rels(subscription.oid)
    noted = [e for e in catalog.errors() if e.subid == subscription.oid]
    errors = {e.worker.value: e.error for e in sorted(noted, key=lambda e: e.noted_at)}
    of_copy = next((rel.error for rel in rels if rel.error is not None), None)
    if of_copy is not None:
        errors[WorkerKind.COPY.value] = of_copy
    states = Counter(rel.state for rel in rels)
    return {
        "name": subscription.name,
        "enabled": subscription.enabled,
        "state": _state(subscription, receiver, failing=bool(errors)),
        "receiver_pid": receiver,
        "received_lsn": str(received),
        "logged_lsn": str(logged),
        "applied_lsn": str(applied),
        "lag_bytes": int(received) - int(applied),
        "tables": len(rels),
        "tables_ready": states[SyncState.READY],
        "rows_copied": sum(rel.rows_copied for rel in rels),
        "last_error": next(reversed(errors.values()), None),
        "errors": errors,
    }


def _state(subscription: Subscription, receiver: int | None, *, failing: bool) -> str:
    if not subscription.enabled:
        return "disabled"
    if receiver is not None:
        return "retrying" if failing else "streaming"
    return "down" if subscription.slot_name is not None else "no slot"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    if facts["state"] == "stopped":
        yield f'no node is running in "{facts["directory"]}"'
    else:
        where = f"{facts['address']}:{facts['port']}"
        listening = f", listening on {where}" if facts["state"] == "ready" else ""
        yield f"node is {facts['state']} (PID {facts['pid']}){listening}"
    for process in facts["processes"][2:]:
        name = process.get("subscription")
        of = f' of subscription "{name}"' if name else ""
        restarted = process["starts"] - 1
        restarts = f", restarted {restarted}x" if restarted else ""
        yield (
            f"  {process['role']}{of}: PID {process['pid']}"
            f" since {process['started_at']}{restarts}"
        )
    for s in facts["subscriptions"]:
        yield (
            f'subscription "{s["name"]}": {s["state"]},'
            f" {s['tables_ready']} of {s['tables']} tables ready,"
            f" applied {s['applied_lsn']}, {s['lag_bytes']} bytes behind"
        )
        for worker, error in s["errors"].items():
            yield f"  error ({worker}): " + error.replace("\n", "\n    ")
