"""The settings of [store]: how they reach the store's client and Spark, and what is refused."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from tests.fakes.objectstores import BUCKET, Server, environment_of
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.archive import ClaimFile, NodeClaim
from wal2lake.engine import storetrial
from wal2lake.errors import ConfigurationError, StorageError
from wal2lake.lake.jars import S3_JARS
from wal2lake.lake.spark import SessionOptions, access_to
from wal2lake.lake.spark.session import configuration
from wal2lake.lake.store import StoreOptions, store_at
from wal2lake.lake.store.access import command as commands
from wal2lake.lake.store.access.command import (
    CommandCredentials,
    CredentialsCommandFailed,
    read_credentials,
    run_command,
)
from wal2lake.lake.store.objects import ObjectStore
from wal2lake.launch.directory.storetrial import check_log_store
from wal2lake.launch.directory.warehouse import check_warehouse
from wal2lake.launch.processes import is_alive
from wal2lake.settings import FILE_NAME, Settings, fixed_at_start, load
from wal2lake.testing.waits import wait_until

SECRET = "not to be seen"


def refused(directory: Path, text: str, **overrides: str) -> ConfigurationError:
    (directory / FILE_NAME).write_text(text)
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    with pytest.raises(ConfigurationError) as caught:
        load(directory, {}, dotted)
    return caught.value


# ---- settings ------------------------------------------------------------------------------


def test_processes_have_the_settings_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(
        f'[store]\nendpoint = "http://s3.local:9000"\nregion = "eu-central-1"\n'
        f'access_key_id = "key"\nsecret_access_key = "{SECRET}"\n'
        "request_timeout_ms = 1500\nretry_timeout_ms = 0\n"
    )
    settings = load(tmp_path, {})
    assert StoreOptions.from_environment(fixed_at_start(settings)) == StoreOptions(
        (
            ("endpoint", "http://s3.local:9000"),
            ("region", "eu-central-1"),
            ("access_key_id", "key"),
            ("secret_access_key", SECRET),
        ),
        connect_seconds=5.0,
        request_seconds=1.5,
        attempts_seconds=0.0,
    )
    assert StoreOptions.from_environment({}) == StoreOptions()
    defaults = fixed_at_start(Settings(directory=tmp_path))
    assert StoreOptions.from_environment(defaults) == StoreOptions()


def test_credentials_are_whole_and_of_one_kind(tmp_path: Path) -> None:
    error = refused(tmp_path, '[store]\naccess_key_id = "key"\n')
    assert error.hint == (
        'Set "secret_access_key" of [store], too, or neither of them.'
    )
    error = refused(
        tmp_path,
        '[store]\naccess_key_id = "key"\nsecret_access_key = "s"\n'
        'credentials_command = "c"\n',
    )
    assert "exclude each other" in error.message
    assert error.hint == "Remove one of them."


def test_a_secret_is_in_no_command_line_and_in_no_message(tmp_path: Path) -> None:
    error = refused(tmp_path, "", store__secret_access_key=SECRET)
    assert "cannot be set on the command line" in error.message
    assert error.hint == (
        f"Set it in {FILE_NAME}, or as environment variable"
        " WAL2LAKE_STORE_SECRET_ACCESS_KEY."
    )
    error = refused(tmp_path, "[store]\nsecret_access_key = 271828\n")
    assert "271828" not in error.describe() and "(not shown)" in error.message


# ---- Spark ---------------------------------------------------------------------------------


def test_spark_has_no_secret_among_its_settings(tmp_path: Path) -> None:
    options = StoreOptions(
        (
            ("endpoint", "http://127.0.0.1:9000"),
            ("access_key_id", "key"),
            ("secret_access_key", SECRET),
        )
    )
    access = access_to("s3://b/w", options, {"AWS_REGION": "eu-west-1"}, tmp_path)
    assert access.jars == S3_JARS
    assert access.environment["AWS_SECRET_ACCESS_KEY"] == SECRET
    session = SessionOptions(
        jars=(),
        added_jars=(Path("/x.jar"),),
        local_dir=tmp_path,
        warehouse="/w",
        environment=access.environment,
        extra={**access.settings, "spark.jars": "/mine.jar"},
    )
    conf = configuration(session)
    assert SECRET not in str(conf)
    assert conf["spark.jars"] == "/x.jar,/mine.jar"
    prefix = "spark.hadoop.fs.s3a."
    assert conf["spark.hadoop.fs.s3.impl"].endswith("S3AFileSystem")
    assert conf[f"{prefix}endpoint"] == "http://127.0.0.1:9000"
    assert conf[f"{prefix}path.style.access"] == "true"
    assert conf[f"{prefix}connection.ssl.enabled"] == "false"
    assert conf[f"{prefix}endpoint.region"] == "eu-west-1"
    assert access_to("/w", options, {}, tmp_path).jars == ()


def test_a_clusters_executors_get_keys_and_command_beside_the_settings(
    tmp_path: Path,
) -> None:
    keys = (("access_key_id", "key"), ("secret_access_key", SECRET))
    access = access_to("s3://b/w", StoreOptions(keys), {}, tmp_path, is_cluster=True)
    assert SECRET not in str(access.settings)
    assert SECRET not in str(access.executor_java_options)
    assert access.secrets == {
        "fs.s3a.access.key": "key",
        "fs.s3a.secret.key": SECRET,
    }
    options = StoreOptions(credentials_command=f"echo {SECRET}")
    access = access_to("s3://b/w", options, {}, tmp_path, is_cluster=True)
    assert access.secrets == {}
    assert SECRET not in str(access)
    script, profile = map(Path, access.settings["spark.files"].split(","))
    assert run_command(f"cd {script.parent} && /bin/sh {script.name}") == f"{SECRET}\n"
    assert profile.read_text().endswith(f"/bin/sh {script.name}\n")
    assert f"-Daws.configFile={profile.name}" in access.executor_java_options


def test_spark_runs_the_command_itself(tmp_path: Path) -> None:
    command = "echo 'a #b' ; echo c\t# no more"
    options = StoreOptions(credentials_command=command)
    access = access_to("s3://b/w", options, {}, tmp_path / "of ;me")
    path = tmp_path / "of ;me" / "aws.config"
    profile, _, value = path.read_text().partition("\ncredential_process = ")
    assert profile == "[profile wal2lake]"
    # What AWS's SDK takes from the line.
    named = re.split("[ \t][;#]", value)[0].strip()
    assert run_command(named) == run_command(command) == "a #b\nc\n"
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "endpoint" not in {name.rpartition(".")[2] for name in access.settings}
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"credentials\.sh"):
        access_to("s3://b/w", options, {}, tmp_path / "file")


def test_the_command_reads_the_profiles_of_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM finds its own profile by options, which the command does not inherit."""
    seen = "echo ${AWS_PROFILE-none} ${AWS_CONFIG_FILE-none}"
    options = StoreOptions(credentials_command=seen)
    private = tmp_path / "the store"
    access = access_to("s3://b/w", options, {}, private)
    for name in ("AWS_PROFILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in access.environment.items():
        monkeypatch.setenv(name, value)
    assert run_command(seen) == "none none\n"
    session = SessionOptions(
        jars=(),
        local_dir=tmp_path,
        warehouse="/w",
        java_options=access.java_options,
        extra={**access.settings, "spark.driver.extraJavaOptions": "-Dx=y"},
    )
    java = shlex.split(configuration(session)["spark.driver.extraJavaOptions"])
    assert java[-4:] == [
        "-Daws.profile=wal2lake",
        f"-Daws.configFile={private}/aws.config",
        "-Daws.sharedCredentialsFile=/dev/null",
        "-Dx=y",
    ]


def test_each_jar_is_pinned() -> None:
    assert len({jar.file_name for jar in S3_JARS}) == len(S3_JARS)
    assert {len(jar.sha256) for jar in S3_JARS} == {64}


# ---- a command for credentials -----------------------------------------------------------------


def printing(tmp_path: Path, seconds: float | None = None) -> str:
    """Return a command that notes its run in ``runs``, and prints what is in ``printed``."""
    found = {"Version": 1, "AccessKeyId": "key", "SecretAccessKey": SECRET}
    if seconds is not None:
        end = datetime.now(UTC) + timedelta(seconds=seconds)
        found["Expiration"] = end.isoformat().replace("+00:00", "Z")
    (tmp_path / "printed").write_text(json.dumps(found))
    return f"echo x >> '{tmp_path}/runs'; cat '{tmp_path}/printed'"


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().split())


def test_a_command_is_run_again_before_its_credentials_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = CommandCredentials(printing(tmp_path, 3600))
    assert credentials()["secret_access_key"] == SECRET
    assert credentials()["token"] is None and runs(tmp_path) == 1

    later = SimpleNamespace(now=lambda tz: datetime.now(tz) + timedelta(minutes=56))
    monkeypatch.setattr(commands, "datetime", later)
    # The command fails: the credentials of before are in force for four minutes more.
    (tmp_path / "printed").write_text("{}")
    assert credentials()["secret_access_key"] == SECRET
    assert credentials()["secret_access_key"] == SECRET and runs(tmp_path) == 2
    monkeypatch.setattr(commands, "datetime", datetime)
    without_end = CommandCredentials(printing(tmp_path))
    for _ in range(2):
        without_end()
    assert runs(tmp_path) == 3


class Machine:
    """Both clocks of a machine, and a command that takes its time and may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        self.runs = 0
        self.seconds = 0.0
        self.fails = False
        self.begun = datetime.now(UTC)
        self.credentials = CommandCredentials("", lambda _: self.found())
        monkeypatch.setattr(commands, "run_command", lambda _: self.run())
        monkeypatch.setattr(commands, "datetime", SimpleNamespace(now=self.now))
        own = SimpleNamespace(monotonic=lambda: self.passed)
        monkeypatch.setattr(commands, "time", own)

    def now(self, _: object = None) -> datetime:
        return self.begun + timedelta(seconds=self.passed)

    def run(self) -> str:
        self.runs += 1
        self.passed += self.seconds
        if self.fails:
            raise CredentialsCommandFailed("it did not end within 30 seconds")
        return ""

    def found(self) -> dict[str, Any]:
        end = self.now() + timedelta(minutes=10)
        return {"access_key_id": str(self.runs), "expires_at": end}


def test_a_command_that_fails_is_not_run_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    machine.fails, machine.seconds = True, 30.0
    for _ in range(3):
        with pytest.raises(CredentialsCommandFailed, match="within 30 seconds"):
            machine.credentials()
    assert machine.runs == 1
    machine.fails = False
    machine.passed += 10
    assert machine.credentials()["access_key_id"] == "2"

    # The pause begins after the run, and the old credentials serve until they end.
    machine.fails = True
    machine.passed += 560
    for _ in range(3):
        assert machine.credentials()["access_key_id"] == "2"
    assert machine.runs == 3
    # They end while the command runs.
    machine.passed += 10
    for _ in range(3):
        with pytest.raises(CredentialsCommandFailed, match="within 30 seconds"):
            machine.credentials()
    assert machine.runs == 4


def test_refused_credentials_stay_while_the_command_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    machine.credentials()
    machine.credentials.refused()
    machine.credentials()
    assert machine.runs == 1
    machine.passed += 10
    machine.fails, machine.seconds = True, 30.0
    for _ in range(3):
        machine.credentials.refused()
        assert machine.credentials()["access_key_id"] == "1"
    assert machine.runs == 2
    machine.passed += 10
    machine.fails = False
    assert machine.credentials()["access_key_id"] == "3"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", "its output is not JSON"),
        ("[]", "its output is not a JSON object"),
        ('{"AccessKeyId": 5}', '"AccessKeyId" of its output is not a text'),
        ('{"AccessKeyId": "k"}', 'its output has no "SecretAccessKey"'),
        (
            '{"AccessKeyId": "k", "SecretAccessKey": "s", "Expiration": "soon"}',
            '"Expiration" of its output is not a time in ISO 8601',
        ),
        (
            '{"AccessKeyId": "k", "SecretAccessKey": "s",'
            ' "Expiration": "2020-01-01T00:00:00"}',
            "its credentials have expired",
        ),
    ],
)
def test_output_that_is_no_credentials(printed: str, reason: str) -> None:
    with pytest.raises(CredentialsCommandFailed) as caught:
        read_credentials(printed)
    assert str(caught.value) == reason


def test_a_command_has_a_limited_time_and_an_exit_code(tmp_path: Path) -> None:
    with pytest.raises(CredentialsCommandFailed, match="exit code is 3"):
        run_command(f"echo {SECRET} >&2; exit 3")
    with pytest.raises(CredentialsCommandFailed, match="within 2 seconds"):
        run_command(f"sleep 99 & echo $! > '{tmp_path}/pid'; wait", seconds=2)
    sleeping = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(sleeping), describe="all that it started is gone")


def test_the_store_is_asked_with_the_credentials_of_a_command(
    tmp_path: Path, s3: Server
) -> None:
    endpoint = ("endpoint", f"http://127.0.0.1:{s3.port}")
    options = StoreOptions((endpoint,), credentials_command=printing(tmp_path, 3600))
    store = store_at(f"{s3.url}/c", options)
    assert store is not None
    store.put("a", b"1")
    assert store.read("a") == b"1" and runs(tmp_path) == 1

    store = store_at(
        f"{s3.url}/c", StoreOptions((endpoint,), credentials_command="exit 7")
    )
    assert store is not None
    with pytest.raises(StorageError) as caught:
        store.read("a")
    error = caught.value
    assert error.sqlstate == "28000"
    assert "the command for credentials" in error.message
    assert error.detail == (
        "The credentials_command of [store] gave none: its exit code is 7."
    )
    assert error.hint == (
        "Run it as the node's operating system user: it must print JSON with AccessKeyId and"
        " SecretAccessKey within 30 seconds."
    )


def written(store: ObjectStore) -> None:
    """Write an object in parts."""
    writer = store.open_writer("c")
    writer.sink.write(bytes(17 << 20))
    writer.finish()


def is_written(store: ObjectStore) -> bool:
    """Try to write an object in parts."""
    try:
        written(store)
    except StorageError:
        return False
    return True


def test_credentials_that_the_store_refuses_are_asked_for_anew(
    tmp_path: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Credentials do not come to this age by themselves while the test runs.
    monkeypatch.setattr(commands, "_AFTER_REFUSAL", 1000.0)
    # Pauses are as short as they can be.
    monkeypatch.setattr(random, "uniform", lambda least, most: least)
    number = tmp_path / "number"
    number.write_text("1")
    end = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    command = (
        f"echo x >> '{tmp_path}/runs'; n=$(cat '{number}'); echo"
        f' \'{{"AccessKeyId": "key\'$n\'", "SecretAccessKey": "s", "Expiration": "{end}"}}\''
    )
    with StoreProxy(s3.port) as proxy:
        endpoint = ("endpoint", f"http://127.0.0.1:{proxy.port}")
        options = StoreOptions(
            (endpoint, ("region", "us-east-1")), credentials_command=command
        )
        store = store_at(f"{s3.url}/{uuid4().hex}", options)
        assert store is not None
        assert store.put_if_absent("a", b"1") is not None and runs(tmp_path) == 1

        # They came moments ago, so the command is not run for each request of a wrong key.
        proxy.expire("key1", "PUT", "/b")
        number.write_text("2")
        with pytest.raises(StorageError) as caught:
            store.put_if_absent("b", b"2")
        assert caught.value.sqlstate == "28000" and runs(tmp_path) == 1

        assert isinstance(store, ObjectStore) and store._bucket.command is not None
        store._bucket.command._read_at -= commands._AFTER_REFUSAL
        assert store.put_if_absent("b", b"2") is not None and runs(tmp_path) == 2
        proxy.expire("key2", "GET", "/b")
        number.write_text("3")
        store._bucket.command._read_at -= commands._AFTER_REFUSAL
        assert store.read("b") == b"2" and runs(tmp_path) == 3
        # An answer to HEAD has no code that says why.
        proxy.expire("key3", "HEAD", "/b")
        number.write_text("4")
        store._bucket.command._read_at -= commands._AFTER_REFUSAL
        assert store.stamp("b") is not None and runs(tmp_path) == 4
        # The parts of a large object are lost; the next attempt has other keys.
        proxy.expire("key4", "PUT", "/c")
        number.write_text("5")
        store._bucket.command._read_at -= commands._AFTER_REFUSAL
        with pytest.raises(StorageError) as caught:
            written(store)
        assert caught.value.sqlstate == "28000"
        # obstore asks for credentials at most once in 100 ms.
        wait_until(lambda: is_written(store), describe="an upload with other keys")
        assert runs(tmp_path) == 5
        assert proxy.expired > 0


def test_wrong_keys_say_where_right_ones_are_set(s3: Server) -> None:
    with StoreProxy(s3.port) as proxy:
        store = store_at(f"{s3.url}/k", s3.options(proxy.port))
        assert store is not None
        code = "InvalidAccessKeyId"
        proxy.plan("GET", "/k/", Planned(Fault.REFUSE, 403, code))
        with pytest.raises(StorageError) as caught:
            store.read("a")
        assert caught.value.hint == (
            "Set access_key_id and secret_access_key, or credentials_command, of [store], or"
            " give the machine an identity that the store knows."
        )
        store.put("a", b"with the right ones")


# ---- a warehouse at a start -----------------------------------------------------------------


def tried(directory: Path, warehouse: str, port: int, **more: str) -> None:
    """Check a warehouse as a start does."""
    (directory / FILE_NAME).write_text("")
    overrides = {
        "spark.warehouse": warehouse,
        "store.endpoint": f"http://127.0.0.1:{port}",
        "store.retry_timeout_ms": "300",
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    keys = {
        "WAL2LAKE_STORE_ACCESS_KEY_ID": "key",
        "WAL2LAKE_STORE_SECRET_ACCESS_KEY": SECRET,
    }
    settings = load(directory, keys, overrides)
    check_warehouse(settings, {**os.environ, **fixed_at_start(settings)})


def test_a_warehouse_in_s3_is_tried(tmp_path: Path, s3: Server) -> None:
    tried(tmp_path, f"s3://{BUCKET}/a lake", s3.port)
    store = store_at(f"s3://{BUCKET}/a lake", s3.options())
    assert store is not None and store.list_after("_wal2lake_trial") == []


def test_a_trial_removes_what_killed_ones_have_left(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{s3.url}/{uuid4().hex}"
    left = ("_wal2lake_trial/1", "_wal2lake/lease-probe-1")
    kept = ("_wal2lake/lease", "_wal2lake_trial_of_a_user/1", "t/1")
    with environment_of(s3, monkeypatch):
        store = store_at(place)
        assert store is not None
        for key in (*left, *kept):
            store.put(key, b"")
        storetrial.try_store(place)
        assert len(store.list_below("", lambda _: True)) == 5
        monkeypatch.setattr(storetrial, "_LEFT_SECONDS", 0.0)
        storetrial.try_store(place)
        assert sorted(store.list_below("", lambda _: True)) == sorted(kept)


def test_a_warehouse_that_cannot_be_used_is_refused(tmp_path: Path, s3: Server) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tried(tmp_path, "s3://no-such-bucket/lake", s3.port)
    error = caught.value
    assert error.message.startswith("could not use the warehouse: could not write")
    assert error.message.endswith("the bucket does not exist")
    assert error.sqlstate == "58P01"
    assert error.hint == ("Create the bucket, or correct its name in the URL.")
    with pytest.raises(ConfigurationError) as caught:
        tried(tmp_path, f"s3://{BUCKET}/lake", 1)
    assert caught.value.sqlstate == "58030"
    with pytest.raises(ConfigurationError) as caught:
        tried(tmp_path, "s3:///lake", s3.port)
    assert caught.value.hint == "Write it as s3://bucket/lake."
    with pytest.raises(ConfigurationError) as caught:
        tried(tmp_path, "s3a://bucket/lake", s3.port)
    assert caught.value.hint == 'Write it as "s3://bucket/lake".'
    for other in ("S3://Bucket/lake", "S3A://Bucket/lake"):
        with pytest.raises(ConfigurationError) as caught:
            tried(tmp_path, other, s3.port)
        assert caught.value.hint == 'Write it as "s3://Bucket/lake".'
    tried(tmp_path, f"s3://{BUCKET}/lake", s3.port, spark__master="spark://m:7077")


# ---- the log's store at a start -------------------------------------------------------------


def tried_log(directory: Path, store: str, port: int = 1) -> None:
    """Check the log's store as a start does."""
    (directory / FILE_NAME).write_text("")
    overrides = {
        "log.store": store,
        "store.endpoint": f"http://127.0.0.1:{port}",
        "store.retry_timeout_ms": "300",
    }
    keys = {
        "WAL2LAKE_STORE_ACCESS_KEY_ID": "key",
        "WAL2LAKE_STORE_SECRET_ACCESS_KEY": SECRET,
    }
    settings = load(directory, keys, overrides)
    check_log_store(settings, {**os.environ, **fixed_at_start(settings)})


def test_the_log_s_store_is_tried(tmp_path: Path, s3: Server) -> None:
    place = f"s3://{BUCKET}/{uuid4().hex}"
    tried_log(tmp_path, place, s3.port)
    store = store_at(place, s3.options())
    assert store is not None and store.list_below("", lambda _: True) == {}
    mounted = tmp_path / "mounted"
    tried_log(tmp_path, str(mounted / "log"))
    assert list((mounted / "log").iterdir()) == []
    assert (mounted / "log").stat().st_mode & 0o77 == 0


def test_a_store_of_the_log_that_cannot_be_used_is_refused(
    tmp_path: Path, s3: Server
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tried_log(tmp_path, "s3://no-such-bucket/log", s3.port)
    error = caught.value
    assert error.message.startswith("could not use the log's store: could not write")
    assert error.message.endswith("the bucket does not exist")
    assert error.hint == "Create the bucket, or correct its name in the URL."
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as caught:
        tried_log(tmp_path, f"{tmp_path}/file/log")
    assert "could not create directory" in caught.value.message
    with pytest.raises(ConfigurationError) as caught:
        tried_log(tmp_path, f"s3://{BUCKET}/log")
    assert caught.value.sqlstate == "58030"
    # A node whose log is there already starts while the store does not answer.
    claim = NodeClaim.new(1, 7)
    ClaimFile(tmp_path).write(f"s3://{BUCKET}/log", claim)
    tried_log(tmp_path, f"s3://{BUCKET}/log")
    with pytest.raises(ConfigurationError):
        tried_log(tmp_path, f"s3://{BUCKET}/other")
