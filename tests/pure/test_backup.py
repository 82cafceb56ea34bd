"""``wal2lake backup`` and ``restore`` without a running node: what is copied, what is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow import table as rows_of

from wal2lake.catalog import Catalog, TableDef
from wal2lake.cli.__main__ import main
from wal2lake.cli.backup import leftover
from wal2lake.cli.backup import moment as moments
from wal2lake.cli.backup.links import Links
from wal2lake.cli.backup.manifest import (
    BackupFile,
    BackupManifest,
    decode,
    encode,
    read_manifest,
)
from wal2lake.cli.backup.moment import is_of_version
from wal2lake.cli.restore.rewriting import with_value
from wal2lake.errors import ConfigurationError
from wal2lake.model import Oid
from wal2lake.settings import FILE_NAME, load

JOURNAL = f"journal-{4:020}"


class Stopped:
    """A node that does not run, with one table of two versions and two logs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        assert main(["init", "-D", str(directory)]) == 0
        self.root = self.made("t")
        for log, name in (("16400", JOURNAL), ("publish", f"seg-{1:020}.json")):
            (directory / "log" / log).mkdir()
            (directory / "log" / log / name).write_text(log)
        (directory / "certificates").mkdir()
        (directory / "certificates/node.key").write_text("secret")
        (directory / "run/engine.sock").write_text("")
        (directory / "wal2lake.log").write_text("")

    def made(self, name: str, location: Path | None = None) -> Path:
        place = location or self.directory / "warehouse/public" / name
        for number in (1, 2):
            write_deltalake(str(place), rows_of({"i": [number]}), mode="append")
        catalog = Catalog(self.directory / "catalog.sqlite")
        oid = Oid(max((int(t.oid) for t in catalog.tables()), default=50000) + 1)
        catalog.create_table(TableDef(oid, "public", name, Oid(10), (), (), str(place)))
        catalog.close()
        return place

    def backup(self, target: Path) -> int:
        return main(["backup", "-D", str(self.directory), "--to", str(target)])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stopped:
    for name in ("WAL2LAKE_SPARK_WAREHOUSE", "WAL2LAKE_LOG_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    return Stopped(tmp_path / "one")


def restore(backup: Path, directory: Path, *more: str) -> int:
    return main(["restore", str(backup), "-D", str(directory), *more])


def numbers(root: Path) -> list[int]:
    found = QueryBuilder().register("t", DeltaTable(str(root)))
    return sorted(found.execute("select i from t").read_all()["i"].to_pylist())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_node_is_backed_up_and_restored(
    node: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "two"
    commit = node.root / "_delta_log" / f"{1:020}.json"
    os.utime(commit, (1000, 1000))
    assert node.backup(backup) == 0
    assert "1 table," in capsys.readouterr().out
    assert {mode(p) for p in backup.rglob("*") if p.is_file()} == {0o600}
    assert {mode(p) for p in (backup, *backup.rglob("*")) if p.is_dir()} == {0o700}
    names = {file.name for file in read_manifest(backup).files}
    assert {"node/passfile", "node/certificates/node.key"} <= names
    assert {f"log/16400/{JOURNAL}", "node/catalog.sqlite"} <= names
    assert not [n for n in names if "run/" in n or n.endswith(("wal2lake.log", ".pid"))]
    assert not list(node.directory.rglob(".wal2lake-backup*"))

    write_deltalake(str(node.root), rows_of({"i": [3]}), mode="append")
    assert restore(backup, restored) == 0
    assert "Success." in capsys.readouterr().out
    assert numbers(restored / "warehouse/public/t") == [1, 2]
    copied = restored / "warehouse/public/t/_delta_log" / commit.name
    assert copied.stat().st_mtime == 1000, "Delta's time travel takes it"
    assert mode(restored) == mode(restored / "run") == mode(restored / "log") == 0o700
    assert mode(restored / "catalog.sqlite") == mode(restored / FILE_NAME) == 0o600
    catalog = Catalog(restored / "catalog.sqlite")
    assert [t.location for t in catalog.tables()] == [
        str(restored / "warehouse/public/t")
    ]
    catalog.close()


def test_the_places_of_the_original_are_left(node: Stopped, tmp_path: Path) -> None:
    """A restored node never writes the original's warehouse."""
    settings = node.directory / FILE_NAME
    lake, log = tmp_path / "lake", tmp_path / "log"
    (node.directory / "warehouse").rename(lake)
    (node.directory / "log").rename(log)
    text = settings.read_text()
    text = with_value(text, "spark", "warehouse", str(lake))
    settings.write_text(with_value(text, "log", "directory", str(log)))
    assert node.backup(tmp_path / "backup") == 0
    assert restore(tmp_path / "backup", tmp_path / "two") == 0
    read = load(tmp_path / "two", {})
    assert read.warehouse == str(tmp_path / "two/warehouse")
    assert read.log_directory == tmp_path / "two/log"
    more = ["--warehouse", str(tmp_path / "lake3"), "--log", str(tmp_path / "log3")]
    assert restore(tmp_path / "backup", tmp_path / "three", *more) == 0
    read = load(tmp_path / "three", {})
    assert read.warehouse == str(tmp_path / "lake3")
    assert (tmp_path / "log3/16400" / JOURNAL).read_text() == "16400"
    assert numbers(tmp_path / "lake3/public/t") == [1, 2]


def test_environment_variables_do_not_bring_them_back(
    node: Stopped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert node.backup(tmp_path / "backup") == 0
    monkeypatch.setenv("WAL2LAKE_SPARK_WAREHOUSE", str(node.directory / "warehouse"))
    assert restore(tmp_path / "backup", tmp_path / "two") == 1
    assert "Unset WAL2LAKE_SPARK_WAREHOUSE and" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
    monkeypatch.delenv("WAL2LAKE_SPARK_WAREHOUSE")
    assert restore(tmp_path / "backup", tmp_path / "two") == 0


def test_an_incomplete_or_damaged_backup_is_refused(
    node: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(backup: Path, words: str) -> None:
        assert restore(backup, tmp_path / "two") == 1
        error = capsys.readouterr().err
        assert words in error
        assert "A backup that was interrupted has no such file" in error
        assert not (tmp_path / "two").exists()

    backup = tmp_path / "backup"
    assert node.backup(backup) == 0
    (file,) = backup.glob("warehouse/public/t/_delta_log/*1.json")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"i", b"j", 1))
    refused(backup, "its checksum differs")
    file.unlink()
    refused(backup, "it is missing")
    file.write_bytes(content)
    settings = backup / "node" / FILE_NAME
    settings.write_text("# " + settings.read_text())
    refused(backup, "its checksum differs")
    sealed = (backup / "backup.json").read_bytes()
    (backup / "backup.json").write_bytes(sealed.replace(b"public", b"pubLic", 1))
    refused(backup, "is damaged")
    (backup / "backup.json").unlink()
    refused(backup, "has no complete backup")
    # Another one, as the hint says.
    assert node.backup(tmp_path / "another") == 0
    assert restore(tmp_path / "another", tmp_path / "two") == 0


def test_directories_that_exist_are_refused(
    node: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    hint = "Name a directory that does not exist, or remove this one."
    assert node.backup(tmp_path / "there") == 1
    assert hint in capsys.readouterr().err
    assert node.backup(node.directory / "log/backup") == 1
    error = capsys.readouterr().err
    assert "Choose a directory elsewhere, if possible on another disk." in error
    assert node.backup(tmp_path / "backup") == 0
    assert restore(tmp_path / "backup", tmp_path / "there") == 1
    assert hint in capsys.readouterr().err
    lake = ("--warehouse", str(tmp_path / "there"))
    assert restore(tmp_path / "backup", tmp_path / "two", *lake) == 1
    assert hint in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
    assert restore(tmp_path / "backup", tmp_path / "two") == 0


def test_what_is_not_on_this_machine_is_refused(
    node: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = node.made("u", tmp_path / "elsewhere")
    assert node.backup(tmp_path / "backup") == 1
    error = capsys.readouterr().err
    assert f'"public.u" is not in the warehouse: its files are at "{place}"' in error
    assert "Stop the node, and copy its directory and those of such tables." in error
    settings = node.directory / FILE_NAME
    text = with_value(settings.read_text(), "spark", "warehouse", "s3a://lake")
    settings.write_text(text)
    assert node.backup(tmp_path / "backup") == 1
    error = capsys.readouterr().err
    assert "Stop the node, and copy its directory and the warehouse with" in error
    assert not (tmp_path / "backup").exists()


def test_a_table_without_its_files_fails_the_backup(
    node: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(node.root.glob("*.parquet"))
    content = file.read_bytes()
    file.unlink()
    assert node.backup(tmp_path / "backup") == 1
    error = capsys.readouterr().err
    assert 'files of version 1 of the table "public/t" are missing' in error
    assert "Repeat the backup; if it fails again, the table has lost files" in error
    assert not (tmp_path / "backup").exists()
    file.write_bytes(content)
    warehouse = node.directory / "warehouse"
    warehouse.rename(tmp_path / "moved")
    assert node.backup(tmp_path / "backup") == 1
    error = capsys.readouterr().err
    assert f'there is no Delta table at "{node.root}"' in error
    assert 'If the warehouse was moved, set "warehouse" of [spark]' in error
    settings = node.directory / FILE_NAME
    moved = str(tmp_path / "moved")
    settings.write_text(with_value(settings.read_text(), "spark", "warehouse", moved))
    assert node.backup(tmp_path / "backup") == 0


def test_orphans_stay_as_old_as_they_are(
    node: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links would make them younger; what may still be committed is in the backup."""
    (node.root / "part-old.parquet").write_text("")
    assert node.backup(tmp_path / "backup1") == 0
    before = (node.root / "part-old.parquet").stat().st_ctime_ns
    tomorrow = SimpleNamespace(time=lambda: time.time() + 86400)
    monkeypatch.setattr(leftover, "time", tomorrow)
    assert node.backup(tmp_path / "backup2") == 0
    assert (node.root / "part-old.parquet").stat().st_ctime_ns == before
    name = "warehouse/public/t/part-old.parquet"
    assert (tmp_path / "backup1" / name).exists()
    assert not (tmp_path / "backup2" / name).exists()


def test_one_backup_at_a_time(
    node: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = Catalog(node.directory / "catalog.sqlite")
    number = catalog.system_identifier
    catalog.close()
    held = node.directory / f"log/.wal2lake-backup-{number}"
    held.mkdir()
    (held / "left").mkdir()
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert node.backup(tmp_path / "backup") == 1
    assert "another backup of this node is running" in capsys.readouterr().err
    assert held.exists()
    os.close(descriptor)
    assert node.backup(tmp_path / "backup") == 0
    assert not held.exists()


def test_tables_that_never_stand_still(
    node: Stopped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    versions = iter(range(2, 1000))
    with monkeypatch.context() as patch:
        patch.setattr(moments, "newest_version", lambda root: next(versions))
        patch.setattr(moments, "_PATIENCE_SECONDS", 0.05)
        assert node.backup(tmp_path / "backup") == 1
    error = capsys.readouterr().err
    assert "the set of the tables' versions did not stand still for a moment" in error
    assert "Repeat the backup when less is written, or stop the node for it." in error
    assert node.backup(tmp_path / "backup") == 0


def test_a_log_that_changes_is_held_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, names = tmp_path / "log", [f"journal-{n:020}" for n in (1, 2, 3)]
    root.mkdir()
    for name in (*names[:2], "confirmed", f"seg-{1:020}.json", "x.tmp"):
        (root / name).write_text(name)
    order: list[str] = []
    copy, link = Links._copy, Links._link

    def copied(self: Links, name: str) -> bool:
        order.append(name)
        done = copy(self, name)
        if name == names[1]:
            # The receiver begins another file.
            (root / names[2]).write_text("more")
        return done

    def linked(self: Links, name: str, inode: int) -> bool:
        order.append(name)
        return link(self, name, inode)

    monkeypatch.setattr(Links, "_copy", copied)
    monkeypatch.setattr(Links, "_link", linked)
    links = Links(root, tmp_path / "held")
    assert links.hold_log() is None
    assert order[0] == "confirmed"
    assert order[-1] == names[1]
    held = links.hold_log()
    assert held == {*names, "confirmed", f"seg-{1:020}.json"}
    assert order[-1] == names[2]
    # What is appended later is not in a copy, and what goes is in the link.
    with (root / names[2]).open("a") as file:
        file.write("later")
    (root / names[0]).unlink()
    assert (links.place / names[2]).read_text() == "more"
    assert (links.place / names[0]).read_text() == names[0]


def test_files_that_cannot_be_linked_are_copied(
    node: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    certificate = tmp_path / "node.crt"
    certificate.write_text("public")
    (node.directory / "node.crt").symlink_to(certificate)
    monkeypatch.setattr(os, "link", refused)
    assert node.backup(tmp_path / "backup") == 0
    monkeypatch.undo()
    assert restore(tmp_path / "backup", tmp_path / "two") == 0
    assert numbers(tmp_path / "two/warehouse/public/t") == [1, 2]
    assert (tmp_path / "two/node.crt").read_text() == "public"


def test_which_files_belong_to_a_version() -> None:
    for name, wanted in {
        "part-1.parquet": True,
        f"_delta_log/{7:020}.json": True,
        f"_delta_log/{8:020}.json": False,
        f"_delta_log/.{8:020}.json.crc": False,
        f"_delta_log/{8:020}.checkpoint.parquet": False,
        f"_delta_log/{7:020}.crc": True,
        "_delta_log/_last_checkpoint": True,
        "_delta_log/._last_checkpoint.crc": False,
        "_iceberg/metadata/v1.metadata.json": False,
    }.items():
        assert is_of_version(name, 7) is wanted, name
    assert is_of_version(f"_delta_log/{8:020}.json", None)
    assert not is_of_version("_iceberg/metadata/version-hint.text", None)


def test_the_pointer_names_a_checkpoint_that_is_there(
    node: Stopped, tmp_path: Path
) -> None:
    pointer = node.root / "_delta_log/_last_checkpoint"
    name = "warehouse/public/t/_delta_log/_last_checkpoint"
    for version, kept in ((1, True), (2, False)):
        pointer.write_text(f'{{"version":{version},"size":1}}')
        assert node.backup(tmp_path / f"backup{version}") == 0
        assert (tmp_path / f"backup{version}" / name).exists() is kept


def test_the_manifest_is_read_as_it_was_written() -> None:
    file = BackupFile("node/a\udcff ü", 3, "00", 0o600, 5)
    manifest = BackupManifest("2026-01-01", "0.1", 1 << 62, {"public/t": 3}, (file,))
    content = encode(manifest)
    assert decode(content, Path("backup.json")) == manifest
    for number in range(0, len(content) - 1, 7):
        broken = bytearray(content)
        broken[number] ^= 1
        with pytest.raises(ConfigurationError):
            decode(bytes(broken), Path("backup.json"))
    with pytest.raises(ConfigurationError):
        decode(content[:-9], Path("backup.json"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[node]\nport = 1\n",
        "[spark]\nwarehouse = '/old' # there\n[node]\nport = 1",
        "[spark] # of it\n# warehouse = '/x'\n  warehouse='/old'\n",
        "[log]\ndirectory = '/l'\n\n[ spark ]\nmaster = 'local[1]'\n",
    ],
)
def test_a_setting_is_changed_and_nothing_else(text: str) -> None:
    before = tomllib.loads(text)
    for value in ('/a "b" \\ c', None):
        changed = tomllib.loads(with_value(text, "spark", "warehouse", value))
        assert changed.get("spark", {}).pop("warehouse", None) == value
        wanted = {**before, "spark": {**before.get("spark", {})}}
        wanted["spark"].pop("warehouse", None)
        assert {"spark": {}, **changed} == wanted
