"""The daemon from which a Spark executor forks its Python workers (``spark.python.daemon.module``).

    JVM ─▶ this process, with the imports of a node's tasks ─▶ fork ─▶ a worker per task at a time

PySpark's own daemon does the work; this one prepares the interpreter it works in:

- Spark puts archives (PySpark, Py4J, its own jar) before the installed packages, and before each
  task a worker has the contents of every archive listed again, in Python: 80 ms of CPU, more than
  all else that a small task costs. The installed packages are used instead.
- What the tasks import is here before the fork: a worker that is new needs no time for it, and its
  pages are shared.

Without an installed PySpark (an operator's own cluster) the archive stays.

Source: PythonWorkerFactory.scala (how the daemon is started); pyspark/worker_util.py,
``setup_spark_files``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from zipimport import zipimporter


def _forget_archives() -> None:
    """Leave the archives out of the search for modules, if PySpark is found without."""
    before = list(sys.path)
    sys.path[:] = [path for path in before if not Path(path).is_file()]
    if importlib.util.find_spec("pyspark") is None:
        sys.path[:] = before
        return
    cached = sys.path_importer_cache
    for path in [p for p, finder in cached.items() if isinstance(finder, zipimporter)]:
        del cached[path]


def main() -> None:
    """Serve the JVM until it goes; the argument is the module that a worker runs."""
    _forget_archives()
    from pyspark.daemon import manager

    import wal2lake.tablesync.copy  # noqa: F401

    manager()


if __name__ == "__main__":
    main()
