"""Retention: removes states and files that are no longer needed.

Takes: the catalog, the tables' stores, the versions that sessions, batches, capture and the
catalog hold. Gives: fewer files; reports. Owns: the order in which states, files and entries of the
log are removed. Never: commits to a table, removes a file that a kept version needs.

    holders       the holders of a table's versions and files
    vacuuming     vacuums one table
    branchplaces  branches without an owner
    worker        vacuums all tables now and then, in the background
"""

from wal2lake.local.retention.branchplaces import (
    LeftBranch,
    remove_branch,
    unknown_branches,
)
from wal2lake.local.retention.holders import TablePlace, places_of
from wal2lake.local.retention.vacuuming import (
    Skipped,
    Vacuum,
    VacuumReport,
    VacuumRequest,
)
from wal2lake.local.retention.worker import RetentionWorker

__all__ = [
    "LeftBranch",
    "RetentionWorker",
    "Skipped",
    "TablePlace",
    "Vacuum",
    "VacuumReport",
    "VacuumRequest",
    "places_of",
    "remove_branch",
    "unknown_branches",
]
