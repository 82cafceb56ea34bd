"""Named places where a test can make the process fail.

``failpoint("segment.manifest_renamed")`` does nothing unless the environment variable
WAL2LAKE_FAILPOINTS names a directory that holds a file of that name. The first process that
reaches the failpoint removes the file, so that one file is one fault even if processes restart,
and does what its content says:

    kill              SIGKILL this process
    kill-tree         SIGKILL the supervisor, its children, then this process
    error             raise InternalError
    enospc            raise OSError(ENOSPC)
    pause SECONDS     sleep that long, once
    always ACTION     any of these actions, and the file stays
    ahead SECONDS     for ``seconds_ahead`` only: so much time has passed; the file stays

``NAMES`` lists every name. A test that armed an unknown name could never fail, so ``arm`` and
``failpoint`` both check the name.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Final

from wal2lake.errors import InternalError

VARIABLE: Final = "WAL2LAKE_FAILPOINTS"

NAMES: Final = frozenset(
    {
        # receive: the journal, the segments, feedback to the publisher
        "journal.appended",
        "journal.synced",
        "segment.file_written",
        "segment.manifest_written",
        "segment.manifest_renamed",
        "log.trimmed",
        # transactions that have not committed
        "spool.piece_written",
        "spool.linked",
        "spool.checkpoint_written",
        "spool.checkpoint_renamed",
        "spool.removed",
        "confirmed.recorded",
        "archive.transaction",
        "archive.prepared",
        "archive.segment",
        "feedback.sent",
        "schemas.asked",
        # lake: one Delta commit
        "lake.files_synced",
        "lake.committed",
        "lake.commit_synced",
        # mirrors: a snapshot, a moment, an entry in a catalog
        "mirror.written",
        "mirror.committed",
        "moment.recorded",
        "catalog.noted",
        "catalog.told",
        # apply: a batch
        "schemas.agreed",
        "apply.staged",
        "apply.history_waits",
        "apply.table_committed",
        "apply.tables_committed",
        "apply.vector_recorded",
        "apply.altered",
        # apply: rows that are put right
        "repair.staged",
        "repair.committed",
        # tablesync: a copy of differing rows
        "heal.staged",
        "heal.committed",
        # tablesync: a copy
        "copy.snapshot_taken",
        "copy.range_recorded",
        "copy.widening_noted",
        "copy.committed",
        "copy.history_waits",
        "copy.state_written",
        # local transactions: a commit
        "local.files_carried",
        "local.recorded",
        "local.made_tables_written",
        "local.defined",
        "local.table_committed",
        "local.tables_committed",
        "local.published",
        # prepared transactions
        "prepare.recorded",
        "prepare.logged",
        "commit_prepared.recorded",
        "commit_prepared.published",
        "rollback_prepared.recorded",
        "rollback_prepared.logged",
        # ALTER TABLE
        "alter.written_anew",
        "alter.recorded",
        "alter.committed",
        "alter.published",
        # publish: from commits of tables into the publisher's log
        "capture.read",
        "capture.sealed",
        # retention
        "vacuum.states_removed",
        "vacuum.file_removed",
        "vacuum.files_removed",
        "vacuum.commit_removed",
        "vacuum.ages",
        # commands
        "subscription.slot_planned",
        "subscription.slot_created",
        "subscription.recorded",
        "subscription.drop_marked",
        "subscription.slot_dropped",
        "subscription.log_removed",
        "recopy.marked",
        "recopy.slot_dropped",
        "recopy.given_up",
        "recopy.log_removed",
        "recopy.slot_created",
        "recopy.recorded",
        "recopy.table_recorded",
        "refresh.targets_made",
        "refresh.recorded",
        "auto_refresh.recorded",
        "pause.recorded",
        "resume.recorded",
        "origin.advanced",
        # cli: the command backup
        "backup.linked",
        "backup.file_copied",
    }
)


def failpoint(name: str) -> None:
    """Trigger the armed fault of this name, if there is one."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    if name not in NAMES:
        raise InternalError(f'unknown failpoint "{name}"')
    path = Path(directory) / name
    try:
        action = path.read_text().strip()
        if action.startswith("always "):
            action = action.removeprefix("always ")
        else:
            path.unlink()
    except FileNotFoundError:
        return
    _trigger(name, action)


def seconds_ahead(name: str) -> float:
    """Return the seconds that a test has let pass; 0 without one."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return 0.0
    if name not in NAMES:
        raise InternalError(f'unknown failpoint "{name}"')
    try:
        verb, _, argument = (Path(directory) / name).read_text().partition(" ")
    except FileNotFoundError:
        return 0.0
    if verb != "ahead":
        raise InternalError(f'failpoint "{name}": unknown action "{verb}"')
    return float(argument)


def arm(directory: Path, name: str, action: str) -> None:
    """Place a fault (for tests); raises ValueError for an unknown name."""
    if name not in NAMES:
        raise ValueError(f"no such failpoint: {name}")
    directory.mkdir(parents=True, exist_ok=True)
    # The rename makes file and content visible at once: a process may read it at any moment.
    temporary = directory / f".{name}.tmp"
    temporary.write_text(action)
    temporary.rename(directory / name)


def _trigger(name: str, action: str) -> None:
    verb, _, argument = action.partition(" ")
    if verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "kill-tree":
        # Children have PDEATHSIG set: they die with the supervisor.
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "error":
        raise InternalError(f'failpoint "{name}" was asked for an error')
    elif verb == "enospc":
        raise OSError(errno.ENOSPC, "No space left on device")
    elif verb == "pause":
        time.sleep(float(argument))
    else:
        raise InternalError(f'failpoint "{name}": unknown action "{action}"')
