"""The archive of Spark's classes: it is made, used, and nobody's undoing."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from wal2lake.lake.spark.classarchive import _MAKING, _alone, is_fresh
from wal2lake.lake.spark.session import SessionOptions, configuration

PRELUDE = """
import os, sys
from pathlib import Path
from wal2lake.lake.spark.classarchive import make_archive
from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.lake.spark.session import SessionOptions, start_session, stop_session
archive, work = map(Path, sys.argv[1:])
jars = locate_jars(JarSource.from_environment(os.environ), os.environ)
options = SessionOptions(
    jars=jars, local_dir=work, warehouse=str(work), class_archive=archive)
"""
MAKE = "make_archive(archive, options)"
USE = """
spark = start_session(options)
print("maps" if str(archive) in Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps")
    .read_text() else "does not map", spark.range(7).count())
stop_session(spark)
"""


def python(script: str, archive: Path, work: Path) -> str:
    """What a process of its own prints, which has no session yet."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, archive, work],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=work,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def options_for(options: SessionOptions, archive: Path | None) -> str:
    found = configuration(replace(options, class_archive=archive))
    return found["spark.driver.extraJavaOptions"]


def test_what_a_killed_maker_has_left_goes_with_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / f"{_MAKING}killed"
    left.mkdir()
    (left / "classes.jsa").write_bytes(b"half")
    (tmp_path / "classes.jsa").write_bytes(b"whole")
    with _alone(tmp_path):
        assert [p.name for p in tmp_path.iterdir()] == ["classes.jsa"]
        other = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_session_is_told_of_an_archive_that_is_there(
    session_options: SessionOptions, tmp_path: Path
) -> None:
    archive = tmp_path / "classes.jsa"
    assert "SharedArchiveFile" not in options_for(session_options, None)
    assert "SharedArchiveFile" not in options_for(session_options, archive)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive} " in options_for(session_options, archive)
    # Java would read two paths, the shell two words.
    for name in ("a:b", "a b"):
        (tmp_path / name).touch()
        assert "Archive" not in options_for(session_options, tmp_path / name)


def test_one_is_made_again_after_what_it_is_made_of(tmp_path: Path) -> None:
    archive, jar = tmp_path / "classes.jsa", tmp_path / "a.jar"
    jar.touch()
    java = Path(sys.executable)
    assert not is_fresh(archive, (jar,), java)
    archive.touch()
    assert is_fresh(archive, (jar,), java)
    after = archive.stat().st_mtime + 10
    os.utime(jar, (after, after))
    assert not is_fresh(archive, (jar,), java)


@pytest.mark.slow
def test_an_archive_is_mapped_and_a_session_starts_with_another_or_a_rotten_one(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "made" / "classes.jsa"
    python(MAKE, archive, tmp_path)
    assert list(archive.parent.iterdir()) == [archive]
    assert python(USE, archive, tmp_path) == "maps 7\n"
    whole = archive.read_bytes()
    archive.chmod(0o644)
    for rotten in (b"", b"no archive", whole[:1_000_000]):
        archive.write_bytes(rotten)
        # A JVM that a short one has ended with SIGBUS says so first.
        said = python(USE, archive, tmp_path).splitlines()
        assert said[-1] == "does not map 7"
