"""Keeps Iceberg mirrors of tables up to date while the engine runs.

Takes: the node's tables, and the versions that are published. Gives: mirrors that show them, and
the moments at which all do. Owns: the thread that mirrors. Never: publishes, or writes rows.

    wanted    which tables are mirrored, and which version of each is to be shown
    moments   records what all mirrors show together, for the web process
    worker    mirrors them, every ``iceberg.interval_ms``
"""

from wal2lake.local.mirrors.wanted import WantedMirror, wanted_mirrors
from wal2lake.local.mirrors.worker import MirrorWorker

__all__ = ["MirrorWorker", "WantedMirror", "wanted_mirrors"]
