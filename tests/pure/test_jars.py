"""Finding Java, and getting jars from a folder, a cache or a repository."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from wal2lake.errors import ConfigurationError
from wal2lake.lake import jars as of_jars
from wal2lake.lake.jars import (
    DELTA_JARS,
    Jar,
    JarSource,
    find_java,
    locate_jars,
    main,
)

CONTENT = {"one": b"the first jar", "two": b"the second jar"}
JARS = tuple(
    Jar("org.example", name, "1.0", hashlib.sha256(content).hexdigest())
    for name, content in CONTENT.items()
)


def fake_java(folder: Path, version_line: str) -> Path:
    """A program that answers ``-version`` as Java does; returns its home."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    for jar in JARS:
        (folder / jar.file_name).write_bytes(CONTENT[jar.artifact])
    return folder


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A Maven repository on this machine: its URL and its directory."""
    root = tmp_path / "maven2"
    for jar in JARS:
        place = root / "org/example" / jar.artifact / jar.version
        place.mkdir(parents=True)
        (place / jar.file_name).write_bytes(CONTENT[jar.artifact])
        (place / f"{jar.artifact}-{jar.version}.pom").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>"
            f"<artifactId>{jar.artifact}</artifactId><version>1.0</version>"
            "<dependencies><dependency><groupId>org.example</groupId>"
            "<artifactId>unwanted</artifactId><version>9</version></dependency>"
            "</dependencies></project>"
        )
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Handler, directory=str(root))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", root
    server.shutdown()
    server.server_close()
    thread.join()


def test_jars_come_from_a_sites_folder_without_java_or_network(
    folder: Path, tmp_path: Path
) -> None:
    source = JarSource(cache=tmp_path / "cache", folder=folder)
    found = locate_jars(source, {"PATH": ""}, JARS)
    assert found == tuple(folder / jar.file_name for jar in JARS)
    assert not (tmp_path / "cache").exists()


def test_a_jar_missing_from_the_folder_is_named_with_its_remedy(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "two-1.0.jar").unlink()
    with pytest.raises(ConfigurationError) as caught:
        locate_jars(JarSource(tmp_path / "c", folder), {}, JARS)
    assert "org.example:two:1.0" in caught.value.message
    assert str(folder) in caught.value.message
    assert "Copy two-1.0.jar" in (caught.value.hint or "")
    (folder / "two-1.0.jar").write_bytes(CONTENT["two"])
    assert len(locate_jars(JarSource(tmp_path / "c", folder), {}, JARS)) == 2


def test_a_wrong_jar_in_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "one-1.0.jar").write_bytes(b"something else")
    with pytest.raises(ConfigurationError, match="SHA-256 differs") as caught:
        locate_jars(JarSource(tmp_path / "c", folder), {}, JARS)
    assert caught.value.hint == (
        "Replace it by the original one-1.0.jar, or unset spark.jars_dir"
        " (WAL2LAKE_JARS_DIR) to download it."
    )
    (folder / "one-1.0.jar").write_bytes(CONTENT["one"])
    assert len(locate_jars(JarSource(tmp_path / "c", folder), {}, JARS)) == 2


def test_missing_jars_are_downloaded_alone_and_once(
    repository: tuple[str, Path], tmp_path: Path
) -> None:
    url, root = repository
    source = JarSource(cache=tmp_path / "a cache", repository=url)
    announced: list[Sequence[Jar]] = []
    found = locate_jars(source, os.environ, JARS, on_download=announced.append)
    assert [path.read_bytes() for path in found] == list(CONTENT.values())
    assert announced == [list(JARS)]
    # Neither the declared dependency nor a temporary folder is there.
    assert sorted(p.name for p in source.cache.iterdir()) == [
        "one-1.0.jar",
        "two-1.0.jar",
    ]
    for path in root.rglob("*.jar"):
        path.unlink()
    again = locate_jars(source, {"PATH": ""}, JARS, on_download=announced.append)
    assert (again, len(announced)) == (found, 1)


def test_a_damaged_cached_jar_is_replaced(
    repository: tuple[str, Path], tmp_path: Path
) -> None:
    source = JarSource(cache=tmp_path / "cache", repository=repository[0])
    source.cache.mkdir()
    (source.cache / "one-1.0.jar").write_bytes(b"the fir")
    found = locate_jars(source, os.environ, JARS)
    assert found[0].read_bytes() == CONTENT["one"]


def test_a_jar_with_another_checksum_never_enters_the_cache(
    repository: tuple[str, Path], tmp_path: Path
) -> None:
    url, root = repository
    (root / "org/example/two/1.0/two-1.0.jar").write_bytes(b"not the original")
    source = JarSource(cache=tmp_path / "cache", repository=url)
    with pytest.raises(ConfigurationError, match=r"org\.example:two:1\.0.*checksum"):
        locate_jars(source, os.environ, JARS)
    assert not (source.cache / "two-1.0.jar").exists()


def test_a_failed_download_says_which_jar_from_where_and_what_to_do(
    repository: tuple[str, Path], tmp_path: Path, folder: Path
) -> None:
    url, root = repository
    (root / "org/example/two/1.0/two-1.0.jar").unlink()
    source = JarSource(cache=tmp_path / "cache", repository=url)
    with pytest.raises(ConfigurationError) as caught:
        locate_jars(source, os.environ, JARS)
    assert "org.example:two:1.0" in caught.value.message
    assert url in caught.value.message
    assert caught.value.hint == (
        "Try again with a network, set WAL2LAKE_MAVEN_REPOSITORY to a mirror, or put"
        " two-1.0.jar into a folder and set WAL2LAKE_JARS_DIR to it."
    )
    assert "\n" not in caught.value.message
    by_hand = {"WAL2LAKE_JARS_DIR": str(folder)}
    assert len(locate_jars(JarSource.from_environment(by_hand), {}, JARS)) == 2


def test_an_unreachable_repository_says_why(tmp_path: Path) -> None:
    source = JarSource(cache=tmp_path, repository="http://127.0.0.1:1/maven2")
    with pytest.raises(ConfigurationError, match="Connection refused"):
        locate_jars(source, os.environ, JARS)


def test_two_fetches_at_once_do_not_disturb_each_other(
    repository: tuple[str, Path], tmp_path: Path
) -> None:
    source = JarSource(cache=tmp_path / "cache", repository=repository[0])
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            locate_jars(source, os.environ, JARS)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list(source.cache.iterdir())) == 2


def test_an_unwritable_cache_is_an_error_with_a_remedy(
    repository: tuple[str, Path], tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()

    def fetch(cache: Path) -> tuple[Path, ...]:
        environment = {
            **os.environ,
            "WAL2LAKE_JAR_CACHE": str(cache),
            "WAL2LAKE_MAVEN_REPOSITORY": repository[0],
        }
        return locate_jars(JarSource.from_environment(environment), environment, JARS)

    with pytest.raises(ConfigurationError) as caught:
        fetch(blocked / "cache")
    assert caught.value.hint == "Set WAL2LAKE_JAR_CACHE to a writable directory."
    assert len(fetch(tmp_path / "cache")) == 2


def test_a_pyspark_without_ivy_needs_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    empty = SimpleNamespace(origin=str(tmp_path / "pyspark" / "__init__.py"))
    monkeypatch.setattr(of_jars, "find_spec", lambda name: empty)
    with pytest.raises(ConfigurationError) as caught:
        locate_jars(JarSource(tmp_path / "cache"), os.environ, JARS)
    assert caught.value.hint == (
        "Reinstall pyspark, or fill a folder by hand and set WAL2LAKE_JARS_DIR."
    )
    by_hand = JarSource.from_environment({"WAL2LAKE_JARS_DIR": str(folder)})
    assert len(locate_jars(by_hand, {}, JARS)) == 2


@pytest.mark.parametrize("line", ['openjdk version "17.0.15"', 'java version "21"'])
def test_supported_java_is_found_at_java_home(tmp_path: Path, line: str) -> None:
    home = fake_java(tmp_path / "jdk", line)
    assert find_java({"JAVA_HOME": str(home)}) == home / "bin" / "java"


def test_java_is_found_on_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "17.0.1"')
    path = f"{home / 'bin'}:/usr/bin:/bin"
    assert find_java({"PATH": path}) == home / "bin" / "java"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('openjdk version "11.0.22"', "version 11"),
        ('java version "1.8.0_402"', "version 8"),
        ('openjdk version "25-ea"', "version 25"),
        ("nonsense", "an unknown version"),
    ],
)
def test_other_java_is_one_line_with_the_fix(
    tmp_path: Path, line: str, shown: str
) -> None:
    home = fake_java(tmp_path / "jdk", line)
    with pytest.raises(ConfigurationError) as caught:
        find_java({"JAVA_HOME": str(home)})
    assert shown in caught.value.message
    assert "\n" not in caught.value.message
    assert "openjdk-17-jre-headless" in (caught.value.hint or "")


@pytest.mark.parametrize("environment", [{"PATH": ""}, {"JAVA_HOME": "/nowhere"}])
def test_no_java_is_one_line_with_the_fix(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="Java 17 or 21") as caught:
        find_java(environment)
    assert str(caught.value.hint).endswith("or set JAVA_HOME.")
    home = fake_java(tmp_path / "jdk", 'openjdk version "17.0.1"')
    assert find_java({**environment, "JAVA_HOME": str(home)}) == home / "bin" / "java"


def test_the_environment_chooses_the_source() -> None:
    assert JarSource.from_environment({"XDG_CACHE_HOME": "/x"}) == JarSource(
        Path("/x/wal2lake/jars")
    )
    assert JarSource.from_environment(
        {
            "WAL2LAKE_JAR_CACHE": "/c",
            "WAL2LAKE_JARS_DIR": "/d",
            "WAL2LAKE_MAVEN_REPOSITORY": "http://mirror",
        }
    ) == JarSource(Path("/c"), Path("/d"), "http://mirror")


def test_the_command_prints_paths_or_one_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAL2LAKE_JARS_DIR", str(tmp_path))
    assert main() == 1
    assert str(DELTA_JARS[0]) in capsys.readouterr().err
