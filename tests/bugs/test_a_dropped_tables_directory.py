"""A reader that writes a copied range after its table was dropped. It made the table's directory
again, and that was in the way of the next table of the name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from wal2lake.errors import StorageError
from wal2lake.lake.delta.datafile import DataFileWriter


def test_it_does_not_come_back(tmp_path: Path) -> None:
    directory = tmp_path / "t"
    with pytest.raises(StorageError), DataFileWriter(str(directory)) as writer:
        writer.write(pa.table({"a": [1]}))
    assert not directory.exists()
