"""What an engine or a library says is for the log: users get the node's texts, or PostgreSQL's."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.stored_table import StoredTable

from wal2lake.catalog import Catalog
from wal2lake.changelog import LogReader
from wal2lake.changelog.files import storage_error
from wal2lake.changelog.manifest import LogFile
from wal2lake.cli import sql
from wal2lake.door.hba import parse_rules
from wal2lake.errors import (
    DAMAGED,
    RESTORE_HINT,
    ConfigurationError,
    CorruptLogError,
    InternalError,
    StorageError,
    Wal2LakeError,
    description_of,
    words_of,
)
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.logrows import LogPart, LogSource, LsnRange, read_rows
from wal2lake.launch.start.java import check_java
from wal2lake.model import Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.observe.logs import render
from wal2lake.publish.driver import Decoding
from wal2lake.settings.loading import load

WORDS = (
    "Parquet magic bytes not found",
    "file is not a database",
    "codec can't decode",
    "Invalid value",
    "does not appear to be an IPv4",
    "unterminated",
    "[Errno",
    "Traceback",
)


def logged(error: Wal2LakeError) -> str:
    event: dict[str, Any] = {
        "timestamp": "now",
        "level": "ERROR",
        "event": error.message,
        "error": error,
    }
    return render(None, "error", event)


def refusal(call: Callable[[], object], kind: type[Wal2LakeError]) -> Wal2LakeError:
    with pytest.raises(kind) as refused:
        call()
    error = refused.value
    assert not [one for one in WORDS if one in description_of(error)]
    return error


def damaged_log(path: Path) -> Callable[[], object]:
    return lambda: LogReader(path.parent).read(LogFile(path.name, 1000, 0))


def damaged_batches(path: Path) -> Callable[[], object]:
    return lambda: list(LogReader(path.parent).batches(LogFile(path.name, 1000, 0)))


def damaged_rows(path: Path) -> Callable[[], object]:
    relation = Relation(Oid(1), "s", "t", ReplicaIdentity.FULL, ())
    part = LogPart(LogSource(str(path), relation, 1, 1000))
    return lambda: list(read_rows(part, LsnRange(0), list))


@pytest.mark.parametrize("call", [damaged_log, damaged_batches, damaged_rows])
def test_a_damaged_file_of_the_log(
    tmp_path: Path, call: Callable[[Path], Callable[[], object]]
) -> None:
    path = tmp_path / "seg-0000000000000001-0.parquet"
    path.write_bytes(b"x" * 1000)
    error = refusal(call(path), CorruptLogError)
    assert (error.sqlstate, error.message, error.detail, error.hint) == (
        "XX001",
        f'change log file "{path}" is corrupted',
        DAMAGED,
        RESTORE_HINT,
    )
    assert "Parquet magic bytes not found" in (error.original or "")
    assert "\nnow ORIGINAL:  " not in error.describe()
    assert "ORIGINAL:  ArrowInvalid: Parquet magic bytes not found" in logged(error)
    assert pickle.loads(pickle.dumps(error)).original == error.original
    path.unlink()
    assert refusal(call(path), CorruptLogError).detail == "The file is missing."


@pytest.mark.parametrize("cut", [0, 4])
def test_a_damaged_data_file(tmp_path: Path, cut: int) -> None:
    """Its footer, or a page in the middle of it."""
    fields = (FieldSpec("id", "bigint", pg_type_oid=Oid(20)),)
    schema = pa.schema([("id", pa.int64())])
    table = StoredTable(tmp_path / "t", fields, schema, [(i,) for i in range(999)], 1)
    (path,) = (tmp_path / "t").glob("*.parquet")
    content = path.read_bytes()
    if cut:
        start = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
        path.write_bytes(content[:start] + b"\xff" * 64 + content[start + 64 :])
    else:
        path.write_bytes(content[:-8] + b"x" * 8)
    error = refusal(table.read, StorageError)
    assert (error.sqlstate, error.detail) == ("XX001", DAMAGED)
    assert error.message.startswith(f'could not read "{tmp_path / "t"}')
    assert error.original


def test_a_store_that_has_no_error_number() -> None:
    said = OSError("When reading a key: AWS Error NETWORK_CONNECTION\nand more")
    error = storage_error("read file", Path("/log/x"), said)
    assert error.message == 'could not read file "/log/x": Input/output error'
    assert error.original == (
        "OSError: When reading a key: AWS Error NETWORK_CONNECTION"
    )


def test_a_catalog_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    path.write_bytes(b"no database, and longer than the header of a page" * 40)
    error = refusal(lambda: Catalog(path), StorageError)
    assert error.message == f'could not read catalog "{path}": the file is damaged'
    assert "file is not a database" in (error.original or "")


def test_files_of_settings_rules_and_statements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wal2lake.toml"

    def refused(content: bytes) -> str:
        path.write_bytes(content)
        return refusal(lambda: load(tmp_path, {}, {}), ConfigurationError).message

    assert (
        refused(b"[node]\nport = here\n") == f'syntax error in file "{path}" at line 2'
    )
    assert (
        refused(b'[node]\nport = "') == f'syntax error in file "{path}" at end of file'
    )
    wrong = 'invalid byte sequence for encoding "UTF8": 0xff'
    assert (
        refused(b"\xff\xfe") == f'could not read configuration file "{path}": {wrong}'
    )
    for line in ("host all /[ 127.0.0.1/32 trust", "host all all nowhere trust"):
        refusal(partial(parse_rules, line, "hba"), ConfigurationError)
    path.write_bytes(b"select '\xff'")
    error = refusal(lambda: sql._read(str(path)), ConfigurationError)
    assert error.message == f"{path}: {wrong}"
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("no program")
    monkeypatch.setattr("os.access", lambda *_: True)
    environment = {"JAVA_HOME": str(java.parent.parent), "PATH": "/usr/bin"}
    error = refusal(lambda: check_java(environment), ConfigurationError)
    assert "does not run (Permission denied)" in error.message


class Failing:
    """An output plugin, as far as it gets."""

    def startup(self, *_: object) -> None:
        raise ValueError("its own words")


def test_what_a_plugin_of_the_user_says_is_said() -> None:
    def start(name: str) -> None:
        context: Any = SimpleNamespace(plugin=name, slot="s", two_phase=False)
        unused: Any = None
        decoding = Decoding(unused, Failing(), context, Lsn(0), 0)  # type: ignore[arg-type]
        decoding.begin([], lambda: None, lambda _: None)

    with pytest.raises(InternalError) as refused:
        start("own")
    assert (refused.value.message, refused.value.context) == (
        "ValueError: its own words",
        'slot "s", output plugin "own", in the startup callback',
    )
    # One of ours does not fail on purpose: nothing of its text goes to clients.
    with pytest.raises(ValueError, match="its own words") as bug:
        start("pgoutput")
    assert description_of(bug.value) == (
        "internal error\nHINT:  The server log has the details."
    )


def test_words_are_one_line() -> None:
    assert words_of(ValueError("\n one \n two")) == "ValueError: one"
    assert words_of(io.UnsupportedOperation()) == "UnsupportedOperation"
