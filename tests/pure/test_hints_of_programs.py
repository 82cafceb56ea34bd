"""Hints of the program, of settings, of a node's files and of the door, done word by word: what was
refused is then taken."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from tests.fakes.node import FakeNode
from tests.fakes.tls_front import Authority

from wal2lake.catalog import Catalog
from wal2lake.cli import __main__ as cli
from wal2lake.cli.start import parse_listen
from wal2lake.door.encryption import make_encryption
from wal2lake.door.entrance import Entrance
from wal2lake.door.greeting import _replication, command_line_settings
from wal2lake.door.hba import parse_rules
from wal2lake.door.session.prepared import PreparedStatement, StatementTable
from wal2lake.errors import (
    ConfigurationError,
    FeatureNotSupportedError,
    SqlSyntaxError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.launch import is_locked
from wal2lake.launch.directory.lockfile import LockFacts, LockFile
from wal2lake.launch.directory.passfile import connection_parameters
from wal2lake.launch.directory.warehouse import check_warehouse
from wal2lake.launch.listeners import _hint, open_listeners
from wal2lake.settings import (
    FILE_NAME,
    Settings,
    SparkSettings,
    StoreSettings,
    load,
)
from wal2lake.settings.sections import SECTIONS
from wal2lake.testing.waits import wait_until


def refused(call: Callable[..., object], *arguments: object) -> Wal2LakeError:
    with pytest.raises(
        (ConfigurationError, FeatureNotSupportedError, SqlSyntaxError, UsageError)
    ) as caught:
        call(*arguments)
    assert caught.value.hint is not None, caught.value
    return caught.value


# ---- settings ----------------------------------------------------------------------------

BESIDE = {
    "log.confirm": {"log.store": "s3://bucket/log"},
    "catalog.type": {"catalog.uri": "", "catalog.name": "lake"},
    "iceberg.catalog.type": {"iceberg.catalog.uri": "", "iceberg.catalog.name": "lake"},
}
"""What other settings a setting needs."""

URIS = {
    "hive": "thrift://h:9083",
    "unity": "http://h:8080",
    "rest": "http://h:8181",
    "sql": "sqlite:///lake.db",
}

PARAMETERS = [(section, f) for section, kind in SECTIONS.items() for f in fields(kind)]

WRONG = {
    "bool": ("maybe",),
    "int": ("x", "-99999999999999999999", "99999999999999999999"),
    "str": ("\x00wrong",),
    "Mapping[str, str]": ("3",),
}


@pytest.mark.parametrize(
    ("section", "f"), PARAMETERS, ids=[f"{s}.{f.name}" for s, f in PARAMETERS]
)
def test_each_setting_takes_what_its_hint_allows(
    tmp_path: Path, section: str, f: Any
) -> None:
    (tmp_path / FILE_NAME).write_text("")
    name = f"{section}.{f.name}"

    def give(value: str, parameter: str = name) -> None:
        # A cluster has no log and warehouse of its own.
        places = {"log.directory": "/l", "spark.warehouse": "/w"}
        beside = dict(BESIDE.get(name, {}))
        uri = f"{section}.uri"
        if uri in beside:
            beside[uri] = URIS.get(value, "")
        load(tmp_path, {}, {**places, **beside, parameter: value})

    misspelt = refused(give, "1", name[:-1] + "q")
    assert f'Perhaps you meant "{name}".' in str(misspelt.hint)
    for value in WRONG[str(f.type)]:
        if str(f.type) == "str" and not f.metadata["choices"]:
            # Most texts may be anything.
            pattern = f.metadata["pattern"]
            if not pattern or re.fullmatch(pattern, value):
                continue
        hint = str(refused(give, value).hint)
        if re.search(r"from -?\d+ to \d+", hint):
            for number in re.findall(r"-?\d+", hint):
                give(number)
        elif "true or false" in hint:
            give("true")
            give("false")
        elif "a table of texts" in hint:
            give(hint[hint.index("{") : hint.rindex("}") + 1])
        elif f.metadata["choices"]:
            allowed = hint.removeprefix("Allowed is ").rstrip(".")
            for one in allowed.split(" or "):
                give(one)
        elif "environment variable" in hint:
            # Other users of the machine see a command line.
            variable = f"WAL2LAKE_{section}_{f.name}".replace(".", "_").upper()
            assert variable in hint
            load(tmp_path, {variable: "name:word"}, {})
        else:
            assert hint == f"Allowed is {f.metadata['allowed']}."
            give(str(f.default))


def test_files_and_places_of_settings(tmp_path: Path) -> None:
    directory = tmp_path / "node"

    def start(**given: str) -> object:
        return load(directory, {}, {k.replace("__", "."): v for k, v in given.items()})

    hint = str(refused(start).hint)
    assert hint.startswith(f'Run "wal2lake init -D {directory}" first')
    assert cli.main(["init", "-D", str(directory)]) == 0
    start()
    hint = str(refused(lambda: start(log__directory="s3://bucket/log")).hint)
    assert hint.startswith("Mount the shared storage on this machine")
    start(log__directory=f"file://{tmp_path}/mounted")
    cluster = {"spark__master": "spark://m:7077"}
    assert refused(lambda: start(**cluster)).hint == (
        'Set "warehouse" of [spark], and "store" of [log] to a URL or "directory" of [log]'
        " to such a directory; or set a master on this machine (local[*])."
    )
    start(**cluster, log__store="s3://b/log", spark__warehouse="/mnt/warehouse")
    start(**cluster, log__directory="/mnt/log", spark__warehouse="/mnt/warehouse")
    start(spark__master="local[*]")
    path = directory / FILE_NAME
    whole = path.read_text()
    path.write_text("[node]\nhba_file = no quotes\n")
    assert 'Write text in quotes and one "name = value"' in str(refused(start).hint)
    path.write_text('[node]\nhba_file = "quotes"\n')
    start()
    path.write_text("[nod]\n")
    meant = re.search(r'you meant "(\w+)"', str(refused(start).hint))
    assert meant is not None
    path.write_text(f"[{meant[1]}]\n")
    start()
    path.write_text(whole)


# ---- the program -------------------------------------------------------------------------


def test_arguments_are_written_as_the_hints_say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for text in ("[::1]:5480", "127.0.0.1:5480"):
        assert text in str(refused(parse_listen, "nonsense").hint)
        assert parse_listen(text)["node.port"] == "5480"
    at = ["start", "-D", str(tmp_path / "none"), "-c"]
    assert cli.main([*at, "node.port"]) == 1
    assert "hint: Write -c section.name=value." in capsys.readouterr().err
    # The next one is that there is no node.
    assert cli.main([*at, "node.port=1"]) == 1
    assert "configuration file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(["start", "--nothing"])
    assert ended.value.code == 2
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint == ('wal2lake: hint: Try "wal2lake start --help" for more information.')
    with pytest.raises(SystemExit) as ended:
        cli.main(["start", "--help"])
    assert ended.value.code == 0


def test_a_place_for_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outer, other = tmp_path / "outer", tmp_path / "other"
    outer.mkdir()
    (outer / "something").touch()
    init = ["init", "-D", str(outer)]
    assert cli.main(init) == 1
    assert f'either remove or empty the directory "{outer}"' in capsys.readouterr().err
    (outer / "something").unlink()
    assert cli.main(init) == 0
    assert cli.main(["init", "-D", str(outer / "log" / "x")]) == 1
    assert "choose another place" in capsys.readouterr().err
    assert cli.main(["init", "-D", str(other)]) == 0
    for command in ("status", "stop"):
        assert cli.main([command, "-D", str(tmp_path / "none")]) != 0
    error = capsys.readouterr().err
    made = re.findall(r"Make one with: wal2lake (init -D .*)", error)
    said = re.findall(r'"wal2lake (status -D .*)" says more', error)
    assert cli.main(made[0].split()) == 0
    assert cli.main(said[0].split()) == 3
    assert "no node is running" in capsys.readouterr().out


def test_a_superuser_who_has_no_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    init = ["init", "-D", str(tmp_path / "n")]
    assert cli.main(init) == 1
    assert "hint: Name the superuser with -U." in capsys.readouterr().err
    assert cli.main([*init, "-U", "me"]) == 0


def as_another_user(call: Callable[[], int], told: TextIO) -> str:
    """What the program prints when it runs as nobody."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            with redirect_stdout(told), redirect_stderr(told):
                code = call()
        except BaseException:
            told.write(traceback.format_exc())
        finally:
            told.flush()
            os._exit(code)
    os.waitpid(child, 0)
    told.seek(0)
    return told.read()


@pytest.mark.parametrize("command", ["status", "stop", "sql"])
def test_the_node_of_another_user_is_not_said_to_be_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    directory = tmp_path / "n"
    assert cli.main(["init", "-D", str(directory)]) == 0
    # Whoever runs this test: others cannot look inside.
    directory.chmod(0o700 if os.geteuid() == 0 else 0)
    tmp_path.chmod(0o755)
    arguments = [command, "-D", str(directory)]
    with TemporaryFile("w+") as file:
        told = as_another_user(lambda: cli.main(arguments), file)
    assert told == (
        f'wal2lake: error: could not access directory "{directory}": Permission denied\n'
        "wal2lake: hint: Use the OS user that started the node, or root.\n"
    )
    directory.chmod(0o700)
    cli.main(arguments)
    assert "Permission denied" not in capsys.readouterr().err


# ---- a node's files and addresses --------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNode]:
    node = FakeNode(tmp_path, subscription__max_logical_replication_workers=1)
    yield node
    node.close()


def test_more_receivers_run_once_there_may_be_more(fake: FakeNode) -> None:
    first, second = fake.subscribe(1), fake.subscribe(2)
    fake.start()
    fake.wait_events(f"receiver{first}", 1)
    wait_until(
        lambda: (
            'You might need to increase "subscription.max_logical_replication_workers"'
            in fake.log_text()
        )
    )
    assert 'Subscriptions that do not run: "s2".' in fake.log_text()
    path = fake.directory / FILE_NAME
    path.write_text(
        path.read_text().replace("replication_workers = 1", "replication_workers = 2")
    )
    fake.signal(signal.SIGHUP)
    fake.wait_events(f"receiver{second}", 1)


def test_a_directory_is_free_when_the_other_node_has_ended(tmp_path: Path) -> None:
    fake = FakeNode(tmp_path)
    try:
        error = refused(connection_parameters, tmp_path)
        assert error.hint == f"Start it with: wal2lake start -D {tmp_path}"
        fake.start()
        assert connection_parameters(tmp_path)["host"] == "127.0.0.1"
        assert fake.process is not None
        error = refused(LockFile.acquire, tmp_path)
        assert error.hint == (
            f"Is another wal2lake (PID {fake.process.pid}) running in directory"
            f' "{tmp_path}"?'
        )
        fake.signal(signal.SIGTERM)
        assert fake.wait_end() == 0
    finally:
        fake.close()
    held = LockFile.acquire(tmp_path)
    assert is_locked(tmp_path)
    error = refused(connection_parameters, tmp_path)
    assert error.hint == (
        f'Try again when "wal2lake status -D {tmp_path}" says that it is ready.'
    )
    held.write(LockFacts(os.getpid(), str(tmp_path), 0, 5480, "127.0.0.1", "ready"))
    assert connection_parameters(tmp_path)["port"] == "5480"
    os.close(held.fileno)


def test_a_warehouse_that_may_be_written(tmp_path: Path) -> None:
    def check(warehouse: str) -> None:
        spark = SparkSettings(warehouse=warehouse)
        check_warehouse(Settings(tmp_path, spark=spark), {})

    (tmp_path / "file").touch()
    error = refused(check, f"{tmp_path}/file/warehouse")
    assert 'Set "warehouse" of [spark] to a directory that' in str(error.hint)
    check(f"{tmp_path}/warehouse")
    check(f"file://{tmp_path}/warehouse")
    azure = "://lake@acc.dfs.core.windows.net/w"
    assert refused(check, f"abfs{azure}").hint == f'Write it as "abfss{azure}".'
    assert refused(check, "az://lake/w").hint == 'Set "account" of [store].'
    store = StoreSettings(account="acc")
    spark = SparkSettings(warehouse="az://lake/w")
    assert Settings(tmp_path, spark=spark, store=store).warehouse == f"abfss{azure}"


def test_credentials_that_sparks_connectors_do_not_know(tmp_path: Path) -> None:
    azure = "abfss://lake@acc.dfs.core.windows.net/w"

    def refused_in(
        warehouse: str, store: StoreSettings, master: str = "local[*]"
    ) -> Wal2LakeError:
        spark = SparkSettings(warehouse=warehouse, master=master)
        settings = Settings(tmp_path, spark=spark, store=store)
        error = refused(check_warehouse, settings, {})
        assert error.sqlstate == "0A000" and "cannot be used" in error.message
        return error

    error = refused_in(azure, StoreSettings(anonymous=True))
    assert error.hint == (
        'Remove it, and set "account_key", "sas_token" or "credentials_command" of [store] or'
        " nothing: then the identity in the environment or of the machine is used."
    )
    command = StoreSettings(credentials_command="c")
    error = refused_in(azure, command, "spark://head:7077")
    assert error.hint == (
        'Remove it, and set "account_key" of [store] or nothing: then the identity of each'
        " worker's machine is used."
    )
    error = refused_in("gs://lake/w", command, "spark://head:7077")
    assert '"credentials_file"' in str(error.hint)


def test_addresses_and_ports() -> None:
    def listen(addresses: str, port: int = 0) -> int:
        opened = open_listeners(addresses, port)
        found: int = opened[0].getsockname()[1]
        for one in opened:
            one.close()
        return found

    ours = "Set listen_addresses to an address of this machine."
    assert refused(listen, " , ").hint == ours
    assert refused(listen, "no.such.host.invalid").hint == (
        "Set listen_addresses to a name or address of this machine."
    )
    elsewhere = "Choose an address of this machine with --listen HOST:PORT."
    assert refused(listen, "192.0.2.1").hint == elsewhere
    for address in ("127.0.0.1", "localhost", "192.0.2.1, 127.0.0.1"):
        listen(address)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        hint = str(refused(listen, "127.0.0.1", taken).hint)
        assert hint.startswith(f"Is another server already running on port {taken}?")
        port = listen("127.0.0.1")
        given = parse_listen(f"127.0.0.1:{port}")
        assert listen(given["node.listen_addresses"], int(given["node.port"])) == port
    assert listen("127.0.0.1", taken) == taken
    # Root may have any port: nobody is refused one here.
    assert _hint(PermissionError(13, ""), 80) == (
        "Port 80 needs privileges; choose one above 1023."
    )


# ---- the door ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "hint", "instead"),
    [
        ("include x", "Write their records here.", "host all all all trust"),
        ("@x all all all trust", "Write their records here.", "host all all all trust"),
        ("host @x all all trust", "Write the names here.", "host a,b all all trust"),
        ("host all @x all trust", "Write the names here.", "host all a,b all trust"),
        *(
            (
                "host all all all ldap",
                "A node has trust, reject, scram-sha-256 and cert.",
                f"hostssl all all all {method}",
            )
            for method in ("trust", "reject", "scram-sha-256", "cert")
        ),
        *(
            (
                "host all all example.org trust",
                "A node takes addresses with a mask, all and samehost; no host names.",
                f"host all all {address} trust",
            )
            for address in ("10.0.0.0/8", "::1/128", "10.0.0.1 255.0.0.0", "all", "samehost")
        ),
        *(
            (given, f"Specify one {what} per line.", "host all all all trust")
            for given, what in (
                ("host,hostssl all all all trust", "connection type"),
                ("host all all all,samehost trust", "IP address"),
                ("host all all all trust,reject", "authentication type"),
                ("host all all 10.0.0.1 255.0.0.0,255.0.0.0 trust", "IP mask"),
                ("hostssl all all all cert a=1,b=2", "authentication option"),
            )
        ),
    ],
)  # fmt: skip
def test_rules_are_written_as_the_hint_says(line: str, hint: str, instead: str) -> None:
    assert refused(parse_rules, line, "hba").hint == hint
    parse_rules(instead, "hba")


def test_files_of_the_door(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('[node]\nhba_file = "rules"\n')
    settings = load(tmp_path, {})
    assert (
        refused(Entrance.of, settings).hint
        == 'The setting "hba_file" of [node] names it.'
    )
    (tmp_path / "rules").write_text("host all all all trust\n")
    Entrance.of(settings)

    authority = Authority(tmp_path / "keys")
    certificate, key = authority.issue("server", "server")
    key.chmod(0o600)

    def encrypt(**given: str) -> object:
        return make_encryption(
            load(tmp_path, {}, {f"node.{k}": v for k, v in given.items()})
        )

    error = refused(lambda: encrypt(ssl="true"))
    assert error.hint == (
        'Set "ssl_key_file" and "ssl_cert_file" of [node], or "ssl" to false.'
    )
    files = {"ssl_key_file": str(key), "ssl_cert_file": str(certificate)}
    assert encrypt(ssl="true", **files) is not None
    assert encrypt(ssl="false") is None
    whole = certificate.read_text()
    certificate.write_text("DER")
    error = refused(lambda: encrypt(ssl="true", **files))
    assert str(error.hint).startswith("Both must be in PEM format;")
    certificate.write_text(whole)
    assert encrypt(ssl="true", **files) is not None


def test_what_a_startup_packet_may_say() -> None:
    hint = str(refused(_replication, "maybe").hint)
    for value in re.findall(r'"?(\w+)"?(?:,|\.)', hint.partition(":")[2]):
        if value in ("true", "1"):
            physical = refused(_replication, value)
            assert physical.hint == "Connect with replication=database."
        else:
            assert _replication(value) is (value == "database")
    hint = str(refused(command_line_settings, "-d 1").hint)
    for text in re.findall('"(.*?)"', hint):
        assert command_line_settings(text) == [("name", "value")]


def test_a_session_that_keeps_too_many_statements() -> None:
    table = StatementTable(5000)
    many = PreparedStatement("select 1" * 200, None, None)
    table.store("a", many)
    error = refused(table.store, "b", many)
    assert error.hint == "Close or DEALLOCATE what is no longer needed."
    assert table.deallocate("a")
    table.store("b", many)


# ---- the catalog -------------------------------------------------------------------------


def test_a_catalog_is_opened_by_who_can(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    error = refused(Catalog, path)
    assert "Run wal2lake init" in str(error.hint)
    made = Catalog.create(path, "me", None)
    made.close()
    current = SimpleNamespace(version="")

    def set_version(version: str) -> None:
        with sqlite3.connect(path) as file:
            (current.version,) = file.execute(
                "select value from meta where key = 'version'"
            ).fetchone()
            file.execute("update meta set value = ? where key = 'version'", (version,))
        file.close()

    set_version("999")
    error = refused(Catalog, path)
    assert str(error.hint).startswith("Install the wal2lake version that wrote it")
    version = current.version
    set_version(str(int(version) - 1))
    error = refused(Catalog, path)
    assert error.hint == ("Stop the node, and start it with this version of wal2lake.")
    set_version(version)
    Catalog(path).close()
