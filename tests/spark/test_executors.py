"""Where a node's tasks run: workers of the node's own daemon.

The functions are inside the tests, so that they are sent by value: a worker knows nothing of
this folder.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from wal2lake.errors import StorageError
from wal2lake.lake.executors import Pool
from wal2lake.lake.spark.executors import SparkExecutors


def test_a_worker_has_its_imports_and_reads_no_archive(
    spark_session: SparkSession,
) -> None:
    def interpreter(_: None) -> tuple[list[str], list[str], bool, str]:
        import sys
        from pathlib import Path
        from zipimport import zipimporter

        finders = sys.path_importer_cache
        return (
            [path for path in sys.path if Path(path).is_file()],
            [path for path, finder in finders.items() if type(finder) is zipimporter],
            "wal2lake.tablesync.copy" in sys.modules,
            sys.modules["pyspark"].__file__ or "",
        )

    executors = SparkExecutors(spark_session)
    for _ in range(2):
        files, importers, imported, pyspark = executors.run(
            Pool.SYNC, interpreter, None
        )
        assert files == importers == []
        assert imported
        assert ".zip" not in pyspark


def test_an_error_of_ours_comes_back_as_itself(spark_session: SparkSession) -> None:
    def refuse(reason: str) -> None:
        raise StorageError(reason, sqlstate="53100")

    with pytest.raises(StorageError, match="disk is full") as caught:
        SparkExecutors(spark_session).run(Pool.SYNC, refuse, "disk is full")
    assert caught.value.sqlstate == "53100"
