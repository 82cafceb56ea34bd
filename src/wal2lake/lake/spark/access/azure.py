"""Gives Spark access to tables in Azure, through Hadoop's connector (ABFS).

In: the options of the store's client. Out: a jar, settings of Spark without
secrets, and variables for the JVM's environment.

The node's own client speaks Azure's Blob protocol, whatever the account is. So does the connector
in an account without a hierarchical namespace; in one with it, it speaks the Data Lake protocol,
which has the same objects. It asks the account which kind it is, which an emulator cannot tell: a
server of one's own is taken for one without.

Credentials. Hadoop replaces ``${env.NAME}`` in a setting by a variable, so secrets are in the
environment of the JVM alone. A cluster's executors do not have this environment: for them secrets
are in Hadoop's configuration, which is sent with each job and is not in Spark's settings. Tokens of
a command come from a server of the engine's (``tokenserver``), which the connector takes for the
one of an application. Without credentials in [store] they are looked for in the order of the node's
own client. Sources: Hadoop 3.4 "Hadoop Azure Support: ABFS"; object_store 0.14,
``MicrosoftAzureBuilder``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from wal2lake.lake.jars import AZURE_JARS
from wal2lake.lake.spark.access.needs import (
    SparkAccess,
    doubling,
    first_of,
    for_hadoop,
    repeats_within,
)
from wal2lake.lake.spark.access.tokenserver import TokenServer
from wal2lake.lake.store import StoreOptions

_PACKAGE: Final = "org.apache.hadoop.fs.azurebfs"

_SECRET: Final = "WAL2LAKE_AZURE_SECRET"
"""Variable of the JVM with the key, the signature or the secret of an application."""

_AUTHORITY: Final = "https://login.microsoftonline.com"
"""Server of tokens of the public cloud."""

_CLIENT: Final = ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID")
_TENANT: Final = ("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID")
"""Variables that the node's own client reads, the first that is set; others are below."""


def access_to_azure(
    options: StoreOptions,
    environment: Mapping[str, str],
    private: Path,
    *,
    is_cluster: bool = False,
) -> SparkAccess:
    """Return what a session needs for a warehouse in Azure."""
    config = dict(options.config)
    endpoint = config.get("endpoint") or first_of(
        environment, "AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT"
    )
    settings = {
        "fs.azure.fns.account.service.type": "BLOB",
        "fs.azure.http.connection.timeout": str(round(options.connect_seconds * 1000)),
        "fs.azure.http.read.timeout": str(round(options.request_seconds * 1000)),
        **_attempts(options),
        **_server(endpoint),
    }
    if not is_cluster:
        # A worker has its own directory for this.
        settings["fs.azure.buffer.dir"] = str(private)
    credentials, secret = _credentials(options, environment)
    if secret is None:
        return SparkAccess(AZURE_JARS, for_hadoop({**settings, **credentials}))
    name, value = secret
    if is_cluster:
        return SparkAccess(
            AZURE_JARS, for_hadoop({**settings, **credentials}), secrets={name: value}
        )
    return SparkAccess(
        AZURE_JARS,
        for_hadoop({**settings, **credentials, name: f"${{env.{_SECRET}}}"}),
        environment={_SECRET: value},
    )


def _attempts(options: StoreOptions) -> dict[str, str]:
    """Return the settings by which requests, of tokens too, are repeated for the time of [store].
    The connector's pauses are of random length, up to one and a fifth of what is set; behind a
    connection that was not made they all have the same."""
    first, most = options.pause_seconds, options.longest_pause_seconds
    pauses = doubling(1.2 * first, 1.2 * most)
    repeats = str(repeats_within(options.attempts_seconds, pauses))
    milliseconds = str(round(first * 1000))
    longest = str(round(most * 1000))
    tokens = "fs.azure.oauth.token.fetch.retry"
    return {
        "fs.azure.io.retry.max.retries": repeats,
        "fs.azure.io.retry.min.backoff.interval": milliseconds,
        "fs.azure.io.retry.backoff.interval": milliseconds,
        "fs.azure.io.retry.max.backoff.interval": longest,
        "fs.azure.static.retry.interval": milliseconds,
        f"{tokens}.max.retries": repeats,
        f"{tokens}.min.backoff.interval": milliseconds,
        f"{tokens}.delta.backoff": milliseconds,
        f"{tokens}.max.backoff.interval": longest,
    }


def _server(endpoint: str | None) -> dict[str, str]:
    """Return the settings for a server that is not the cloud's own. The connector puts the account
    behind host and port, as the path of the endpoint is."""
    if not endpoint:
        return {}
    url = urlsplit(endpoint)
    plain = url.scheme == "http"
    settings = {
        "fs.azure.abfs.endpoint": f"{url.hostname}:{url.port or (80 if plain else 443)}",
        "fs.azure.account.hns.enabled": "false",
    }
    if plain:
        # The class of abfss insists on TLS; that of abfs does not.
        settings["fs.abfss.impl"] = f"{_PACKAGE}.AzureBlobFileSystem"
        settings["fs.AbstractFileSystem.abfss.impl"] = f"{_PACKAGE}.Abfs"
        settings["fs.azure.always.use.https"] = "false"
    return settings


_Credentials = tuple[dict[str, str], tuple[str, str] | None]
"""Settings, and the name and value of one that is a secret."""


def _credentials(options: StoreOptions, environment: Mapping[str, str]) -> _Credentials:
    config = dict(options.config)
    if options.credentials_command:
        tokens = TokenServer(options.credentials_command)
        return _application("wal2lake", tokens.url, tokens.secret)
    key, signature = config.get("account_key"), config.get("sas_token")
    if key is None and signature is None:
        key = first_of(
            environment,
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_ACCESS_KEY",
            "AZURE_STORAGE_MASTER_KEY",
        )
    if key is not None:
        named = {"fs.azure.account.auth.type": "SharedKey"}
        return named, ("fs.azure.account.key", key)
    if signature is None:
        identity = _identity(environment)
        if identity is not None:
            return identity
        signature = first_of(
            environment, "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"
        )
    if signature is not None:
        named = {"fs.azure.account.auth.type": "SAS"}
        return named, ("fs.azure.sas.fixed.token", signature)
    client = first_of(environment, *_CLIENT)
    return _oauth("MsiTokenProvider", {"client.id": client} if client else {}), None


def _identity(environment: Mapping[str, str]) -> _Credentials | None:
    """Return the settings of an application or a pod that has an identity in the environment, and
    the application's secret."""
    client = first_of(environment, *_CLIENT)
    tenant = first_of(environment, *_TENANT)
    if client is None or tenant is None:
        return None
    authority = first_of(environment, "AZURE_AUTHORITY_HOST") or _AUTHORITY
    authority = authority.rstrip("/")
    file = first_of(environment, "AZURE_FEDERATED_TOKEN_FILE")
    if file is not None:
        named = {
            "client.id": client,
            "msi.tenant": tenant,
            "token.file": file,
            "msi.authority": f"{authority}/",
        }
        return _oauth("WorkloadIdentityTokenProvider", named), None
    secret = first_of(environment, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET")
    if secret is None:
        return None
    return _application(client, f"{authority}/{tenant}/oauth2/token", secret)


def _application(client: str, server: str, secret: str) -> _Credentials:
    """Return the settings of an application, which a server of tokens knows by its secret."""
    named = {"client.id": client, "client.endpoint": server}
    return _oauth("ClientCredsTokenProvider", named), (
        "fs.azure.account.oauth2.client.secret",
        secret,
    )


def _oauth(provider: str, named: Mapping[str, str]) -> dict[str, str]:
    return {
        "fs.azure.account.auth.type": "OAuth",
        "fs.azure.account.oauth.provider.type": f"{_PACKAGE}.oauth2.{provider}",
        **{f"fs.azure.account.oauth2.{name}": value for name, value in named.items()},
    }
