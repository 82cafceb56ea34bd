"""Logs of the tables with which the Delta project tests its own readers: delta-rs and the node read
the same files, before and behind a checkpoint that the node writes.

``fixtures/delta_logs.tar.xz`` has the ``_delta_log`` of each table in the repository of Delta Lake
(Apache License 2.0, in the archive): ``connectors/golden-tables``, ``kernel``, ``spark``; without
data files.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from wal2lake.errors import FeatureNotSupportedError, StorageError
from wal2lake.lake.delta.log.checksum import Totals
from wal2lake.lake.delta.protocol.features import refuse_unknown
from wal2lake.lake.delta.versions.checkpoints import write_checkpoint
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.delta.versions.replay import Replay, replay
from wal2lake.lake.store import LocalStore
from wal2lake.lake.tablefiles import DataFile

ARCHIVE: Final = Path(__file__).parent / "fixtures/delta_logs.tar.xz"

NO_TABLES: Final = {
    "data-reader-absolute-paths-escaped-chars",
    "deltalog-state-reconstruction-from-checkpoint-missing-metadata",
    "deltalog-state-reconstruction-from-checkpoint-missing-protocol",
    "deltalog-state-reconstruction-without-metadata",
    "deltalog-state-reconstruction-without-protocol",
    "versions-not-contiguous",
}
"""Logs that no reader can read."""

NOT_OF_DELTA_RS: Final = {
    "basic_catalog_managed": 2,
    "canonicalized-paths-normal-a": 0,
    "canonicalized-paths-normal-b": 0,
    "canonicalized-paths-special-a": 0,
    "canonicalized-paths-special-b": 0,
    "catalog-owned-preview": 0,
    "corrupted-last-checkpoint": 11,
    "deltalog-commit-info": 1,
    "deltalog-invalid-protocol-version": 1,
    "update-deleted-directory": 10,
}
"""Logs that delta-rs does not read: metadata without a schema, catalogs, an invalid protocol. By
name the number of files."""

REFUSED: Final = {
    "basic_catalog_managed": '"catalogManaged"',
    "catalog-owned-preview": '"catalogManaged"',
    "collations-preview-table": '"collations-preview"',
    "collations-table": '"collations"',
    "table-with-icebegCompatV2Enabled": '"icebergCompatV2"',
    "deltalog-invalid-protocol-version": "99 for readers",
}
"""Tables that the node does not write, and what the error says."""

_NOT_KEPT: Final = {"dataChange", "tags", "stats", "some_new_column_in_add_action"}
"""Parts of an action that a checkpoint has in another form, or not at all."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        # Python before 3.11.4 has no filter.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)
    return sorted(log.parent for log in root.glob("**/_delta_log"))


def _name(table: Path) -> str:
    return table.parent.name if table.name == "delta" else table.name


def _shape(files: dict[str, DataFile]) -> dict[str, Any]:
    return {
        key: (
            {k: v for k, v in file.action.items() if k not in _NOT_KEPT},
            json.loads(file.action.get("stats") or "{}"),
        )
        for key, file in files.items()
    }


def _by_delta_rs(table: Path) -> tuple[int, list[str]]:
    found = DeltaTable(str(table))
    paths = pa.table(found.get_add_actions(flatten=True))["path"].to_pylist()
    return found.version(), sorted(map(unquote, paths))


def _replayed(table: Path, number: int) -> Replay:
    return replay(str(table), LocalStore(table), number)


def test_every_log_is_read_as_others_read_it(logs: list[Path]) -> None:
    names = {_name(table) for table in logs}
    assert len(logs) > 130
    assert names >= NO_TABLES | set(NOT_OF_DELTA_RS)
    for table in logs:
        name = _name(table)
        if name in NO_TABLES:
            with pytest.raises(StorageError) as unreadable:
                KnownVersions().newest(str(table))
            assert unreadable.value.sqlstate == "58P01", name
            continue
        known = KnownVersions().newest(str(table))
        assert known is not None
        number = known.state.version
        before = _replayed(table, number)
        assert known.totals == Totals.of(before.files.values()), name
        ours = number, sorted(map(unquote, before.files))
        if name in NOT_OF_DELTA_RS:
            assert len(before.files) == NOT_OF_DELTA_RS[name], name
        else:
            assert ours == _by_delta_rs(table), name
        write_checkpoint(str(table), LocalStore(table), number)
        after = _replayed(table, number)
        assert _shape(after.files) == _shape(before.files), name
        assert after.transactions == before.transactions, name
        assert after.domains == before.domains, name
        if name not in NOT_OF_DELTA_RS:
            assert ours == _by_delta_rs(table), name


def test_tables_that_the_node_cannot_write_are_refused(logs: list[Path]) -> None:
    refused = {}
    for table in logs:
        if _name(table) in NO_TABLES:
            continue
        known = KnownVersions().newest(str(table))
        assert known is not None
        try:
            refuse_unknown(str(table), known.protocol)
        except FeatureNotSupportedError as error:
            refused[_name(table)] = str(error.detail)
    assert set(refused) == set(REFUSED)
    for name, words in REFUSED.items():
        assert words in refused[name]
