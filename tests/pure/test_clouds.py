"""Places in Google Cloud Storage and Azure: settings, credentials of all kinds.

The servers are those of ``fakes.objectstores``.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.fakes.objectstores import (
    Server,
    azure_server,
    azure_signature,
    gcs_server,
)
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.errors import ConfigurationError, StorageError
from wal2lake.lake.jars import AZURE_JARS, GOOGLE_JARS
from wal2lake.lake.spark import access_to
from wal2lake.lake.spark.access.tokenserver import TokenServer
from wal2lake.lake.store import (
    CredentialsCommandFailed,
    StoreOptions,
    read_token,
    store_at,
)
from wal2lake.settings import FILE_NAME, Settings, fixed_at_start, load

SECRET = "not-to-be-seen"

AZURE = "abfss://lake@acc.dfs.core.windows.net/w"

HOST = "acc.dfs.core.windows.net"

SERVERS = (
    pytest.param(gcs_server, id="gs"),
    pytest.param(azure_server, id="azure", marks=pytest.mark.slow),
)

MakeServer = Callable[[], AbstractContextManager[Server]]


# ---- settings ------------------------------------------------------------------------------


def loaded(directory: Path, warehouse: str, **store: str) -> Settings:
    lines = [f"{name} = {value}" for name, value in store.items()]
    text = "\n".join(["[spark]", f'warehouse = "{warehouse}"', "[store]", *lines])
    (directory / FILE_NAME).write_text(text + "\n")
    return load(directory, {})


def refused(directory: Path, warehouse: str, **store: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        loaded(directory, warehouse, **store)
    return caught.value


def test_a_place_in_azure_has_one_url(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(
        '[log]\nstore = "az://lake/w/"\n[store]\naccount = "acc"\n'
    )
    assert load(tmp_path, {}).log_store == AZURE
    assert loaded(tmp_path, "az://lake/w/", account='"acc"').warehouse == AZURE
    assert loaded(tmp_path, AZURE).warehouse == AZURE
    assert loaded(tmp_path, "az://lake", account='"acc"').warehouse == AZURE[:-2]
    error = refused(tmp_path, "abfss://lake/w")
    assert error.hint == (
        "Write it as abfss://container@account.dfs.core.windows.net/lake."
    )
    assert refused(tmp_path, AZURE, account='"other"').hint == "Remove it."
    error = refused(tmp_path, AZURE, endpoint='"http://127.0.0.1:10000"')
    assert error.hint == "Write it as http://host:port/acc."


def test_settings_of_another_cloud_are_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, "gs://b/w", account_key='"k"')
    assert '"store.account_key" does not fit the warehouse' in error.message
    assert error.detail == "It is for a warehouse in Azure."
    assert error.hint == "Remove it."
    error = refused(tmp_path, AZURE, region='"r"')
    assert error.detail == "It is for a warehouse in Amazon S3."
    error = refused(tmp_path, "s3://b/w", credentials_file='"/f"')
    assert error.detail == "It is for a warehouse in Google Cloud Storage."
    error = refused(tmp_path, AZURE, account_key='"k"', sas_token='"s"')
    assert "exclude each other" in error.message


def test_processes_have_the_settings_from_the_environment(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "gs://b/w", anonymous="true", endpoint='"http://x:1"')
    options = StoreOptions.from_environment(fixed_at_start(settings))
    assert options.anonymous and options.config == (("endpoint", "http://x:1"),)
    settings = loaded(tmp_path, AZURE, sas_token=f'"{SECRET}"')
    options = StoreOptions.from_environment(fixed_at_start(settings))
    assert options.config == (("sas_token", SECRET),) and not options.anonymous


# ---- Spark ---------------------------------------------------------------------------------


HADOOP = "spark.hadoop.fs.azure."

APPLICATION = {"AZURE_CLIENT_ID": "me", "AZURE_TENANT_ID": "us"}

SIGNATURE = (("sas_token", SECRET),)


def test_spark_reads_azure_without_a_secret_among_its_settings(tmp_path: Path) -> None:
    options = StoreOptions(
        (("endpoint", "http://127.0.0.1:7/acc"), ("account_key", SECRET)),
        connect_seconds=1.5,
    )
    # Of other keys: what [store] has is used.
    others = {"AZURE_STORAGE_SAS_TOKEN": "x", **APPLICATION, "AZURE_CLIENT_SECRET": "y"}
    access = access_to(AZURE, options, others, tmp_path)
    assert access.jars == AZURE_JARS and len(AZURE_JARS[0].sha256) == 64
    assert SECRET not in str(access.settings)
    (name,) = access.environment
    assert access.environment[name] == SECRET
    found = access.settings
    assert found[f"{HADOOP}account.auth.type"] == "SharedKey"
    assert found[f"{HADOOP}account.key"] == f"${{env.{name}}}"
    assert found[f"{HADOOP}abfs.endpoint"] == "127.0.0.1:7"
    assert found[f"{HADOOP}account.hns.enabled"] == "false"
    assert found[f"{HADOOP}http.connection.timeout"] == "1500"
    assert found["spark.hadoop.fs.abfss.impl"].endswith(".AzureBlobFileSystem")
    # In the cloud itself the class that insists on TLS is used.
    cloud = access_to(AZURE, StoreOptions(SIGNATURE), {}, tmp_path)
    assert not any("impl" in name or "endpoint" in name for name in cloud.settings)
    tls = StoreOptions((("endpoint", "https://azure.local/acc"), *SIGNATURE))
    found = access_to(AZURE, tls, {}, tmp_path).settings
    assert found[f"{HADOOP}abfs.endpoint"] == "azure.local:443"
    assert "spark.hadoop.fs.abfss.impl" not in found


@pytest.mark.parametrize(
    ("environment", "kind", "provider", "secret"),
    [
        ({}, "OAuth", "MsiTokenProvider", None),
        ({"AZURE_STORAGE_ACCESS_KEY": "k", **APPLICATION}, "SharedKey", None, "k"),
        ({"AZURE_STORAGE_SAS_TOKEN": "s"}, "SAS", None, "s"),
        (
            {**APPLICATION, "AZURE_CLIENT_SECRET": "p", "AZURE_STORAGE_SAS_TOKEN": "s"},
            "OAuth",
            "ClientCredsTokenProvider",
            "p",
        ),
        (
            {**APPLICATION, "AZURE_FEDERATED_TOKEN_FILE": "/f"},
            "OAuth",
            "WorkloadIdentityTokenProvider",
            None,
        ),
    ],
)
def test_credentials_of_the_environment_for_spark(
    tmp_path: Path,
    environment: dict[str, str],
    kind: str,
    provider: str | None,
    secret: str | None,
) -> None:
    access = access_to(AZURE, StoreOptions(), environment, tmp_path)
    assert access.settings[f"{HADOOP}account.auth.type"] == kind
    named = access.settings.get(f"{HADOOP}account.oauth.provider.type")
    assert (named and named.rpartition(".")[2]) == provider
    assert list(access.environment.values()) == ([] if secret is None else [secret])
    values = [v for n, v in access.settings.items() if ".oauth2." in n]
    if provider == "ClientCredsTokenProvider":
        assert "https://login.microsoftonline.com/us/oauth2/token" in values


def test_secrets_for_azure_on_a_cluster(tmp_path: Path) -> None:
    options = StoreOptions((("account_key", SECRET),))
    access = access_to(AZURE, options, {}, tmp_path, is_cluster=True)
    assert access.secrets == {"fs.azure.account.key": SECRET}
    assert not access.environment and SECRET not in str(access.settings)
    assert not any(name.endswith("buffer.dir") for name in access.settings)


GOOGLE = "gs://lake/w"


@pytest.mark.parametrize(
    ("options", "environment", "kind", "file"),
    [
        (StoreOptions(), {}, "APPLICATION_DEFAULT", None),
        (
            StoreOptions((("credentials_file", "/k"),)),
            {"GOOGLE_SERVICE_ACCOUNT": "/other"},
            "SERVICE_ACCOUNT_JSON_KEYFILE",
            "/k",
        ),
        (
            StoreOptions(),
            {"GOOGLE_SERVICE_ACCOUNT": "/e"},
            "SERVICE_ACCOUNT_JSON_KEYFILE",
            "/e",
        ),
        (StoreOptions(anonymous=True), {}, "UNAUTHENTICATED", None),
    ],
)
def test_credentials_of_google_for_spark(
    tmp_path: Path,
    options: StoreOptions,
    environment: dict[str, str],
    kind: str,
    file: str | None,
) -> None:
    access = access_to(GOOGLE, options, environment, tmp_path)
    assert access.jars == GOOGLE_JARS and not access.environment
    found = access.settings
    assert found["spark.hadoop.fs.gs.auth.type"] == kind
    named = found.get("spark.hadoop.fs.gs.auth.service.account.json.keyfile")
    assert named == file
    assert not any("root.url" in name for name in found)


def test_spark_reads_google_from_a_server_of_ones_own(tmp_path: Path) -> None:
    options = StoreOptions((("endpoint", "http://127.0.0.1:7"),), connect_seconds=1.5)
    found = access_to(GOOGLE, options, {}, tmp_path).settings
    assert found["spark.hadoop.fs.gs.storage.root.url"] == "http://127.0.0.1:7/"
    assert found["spark.hadoop.fs.gs.http.connect-timeout"] == "1500"


# ---- tokens of a command -----------------------------------------------------------------------


def asked(url: str, secret: str) -> tuple[int, dict[str, object]]:
    """Ask a server of tokens as the connectors do."""
    body = urllib.parse.urlencode({"client_id": "x", "client_secret": secret})
    try:
        with urllib.request.urlopen(url, body.encode(), timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize(
    ("warehouse", "url", "named"),
    [
        (AZURE, "account.oauth2.client.endpoint", "account.oauth2.client.secret"),
        (GOOGLE, "token.server.url", "auth.client.secret"),
    ],
)
def test_spark_gets_tokens_of_a_command_from_the_engine(
    tmp_path: Path, warehouse: str, url: str, named: str
) -> None:
    printed, runs = tmp_path / "printed", tmp_path / "runs"
    printed.write_text(json.dumps({"access_token": SECRET, "expires_in": 3600}))
    command = f"echo >> '{runs}'; cat '{printed}'"
    options = StoreOptions(credentials_command=command)
    access = access_to(warehouse, options, {}, tmp_path)
    assert SECRET not in str(access)
    ((name, secret),) = access.environment.items()
    assert secret not in str(access.settings)
    settings = {n.split(".", 4)[-1]: v for n, v in access.settings.items()}
    assert settings[named] == f"${{env.{name}}}"
    status, answer = asked(settings[url], secret)
    assert status == 200 and answer["access_token"] == SECRET
    seconds = answer["expires_in"]
    assert isinstance(seconds, int) and 3500 < seconds <= 3600
    assert asked(settings[url], secret)[0] == 200
    assert len(runs.read_text()) == 1
    # Others of the machine get nothing.
    for wrong in ("", "x", f"{secret}x"):
        assert asked(settings[url], wrong) == (401, {"error": "invalid_client"})
    assert asked(settings[url].replace("token", "other"), secret)[0] == 404


def test_a_server_of_tokens_whose_command_fails() -> None:
    server = TokenServer("echo not-to-be-seen; exit 7")
    status, answer = asked(server.url, server.secret)
    server.close()
    assert status == 503
    assert answer["error_description"] == "its exit code is 7"


def test_tokens_that_programs_of_the_clouds_print() -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    local = end.astimezone().replace(tzinfo=None)
    iso = end.isoformat().replace("+00:00", "Z")
    for found in (
        {"accessToken": "t", "expires_on": int(end.timestamp()), "expiresOn": "x"},
        {"accessToken": "t", "expiresOn": f"{local.isoformat(' ')}.000000"},
        {"credential": {"access_token": "t", "token_expiry": iso}},
    ):
        assert read_token(json.dumps(found)) == {"token": "t", "expires_at": end}
    answer = read_token('{"access_token": "t", "expires_in": 3600}')
    seconds = answer["expires_at"].timestamp() - end.timestamp()
    assert abs(seconds) < 60
    assert read_token('{"access_token": "t"}')["expires_at"] is None


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("t", "its output is not JSON"),
        ("[]", "its output is not a JSON object"),
        ("{}", 'its output has no "accessToken" or "access_token"'),
        (
            '{"access_token": "t", "expires_on": "soon"}',
            "the end of its token is not a time that is known here",
        ),
        ('{"access_token": "t", "expires_in": -1}', "its credentials have expired"),
    ],
)
def test_output_that_is_no_token(printed: str, reason: str) -> None:
    with pytest.raises(CredentialsCommandFailed) as caught:
        read_token(printed)
    assert str(caught.value) == reason


def test_what_a_store_is_asked_with(tmp_path: Path) -> None:
    """A command's token goes to Google; wrong credentials are told with Google's settings."""
    with gcs_server() as server:
        printed = tmp_path / "printed"
        printed.write_text('{"access_token": "t", "expires_in": 3600}')
        options = StoreOptions(
            (("endpoint", server.endpoint),), credentials_command=f"cat '{printed}'"
        )
        store = store_at(f"{server.url}/c", options)
        assert store is not None
        store.put("a", b"1")
        assert store.read("a") == b"1"
        failing = StoreOptions(options.config, credentials_command="exit 7")
        store = store_at(f"{server.url}/c", failing)
        assert store is not None
        with pytest.raises(StorageError) as caught:
            store.read("a")
        assert caught.value.hint == (
            "Run it as the node's operating system user: it must print JSON with access_token"
            " within 30 seconds."
        )
        with StoreProxy(server.port) as proxy:
            store = store_at(f"{server.url}/k", server.options(proxy.port))
            assert store is not None
            proxy.plan("GET", "k/a", Planned(Fault.REFUSE, 401, "InvalidToken"))
            with pytest.raises(StorageError) as caught:
                store.read("a")
            assert caught.value.hint == (
                "Set credentials_file, or credentials_command, of [store], or give the machine"
                " an identity that the store knows."
            )


@pytest.mark.slow
def test_a_signature_opens_a_container_in_azure() -> None:
    with azure_server() as server:
        options = StoreOptions(
            (
                ("endpoint", server.endpoint),
                ("sas_token", azure_signature("rwdlac")),
            ),
            # Azurite answers the removal of the probe with 500.
            attempts_seconds=1.0,
        )
        store = store_at(f"{server.url}/s", options)
        assert store is not None
        assert store.put_if_absent("a", b"1") is not None
        assert store.put_if_absent("a", b"2") is None
        assert "a" in store.list_after("") and store.read("a") == b"1"
        wrong = StoreOptions(
            (("endpoint", server.endpoint), ("account_key", "d3Jvbmc="))
        )
        store = store_at(f"{server.url}/s", wrong)
        assert store is not None
        with pytest.raises(StorageError) as caught:
            store.read("a")
        assert caught.value.sqlstate in ("28000", "42501")
