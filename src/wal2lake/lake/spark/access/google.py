"""Gives Spark access to tables in Google Cloud Storage, through Google's connector for Hadoop.

In: the options of the store's client. Out: a jar, settings of Spark without secrets, and variables
for the JVM's environment.

The connector reads and writes by the JSON protocol what the node's own client writes by XML; both
have the same objects. Its kinds of credentials are the client's: the key of a service account, what
Google's own programs find, none at all. Tokens of a command come from a server of the engine's
(``tokenserver``). Sources: gcs-connector 4.0 "Configuration properties"; object_store 0.14,
``GoogleCloudStorageBuilder``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from wal2lake.lake.jars import GOOGLE_JARS
from wal2lake.lake.spark.access.needs import (
    SparkAccess,
    first_of,
    for_hadoop,
    repeats_within,
)
from wal2lake.lake.spark.access.tokenserver import TokenServer
from wal2lake.lake.store import StoreOptions

_PACKAGE: Final = "com.google.cloud.hadoop.fs.gcs"

_SECRET: Final = "WAL2LAKE_GOOGLE_SECRET"
"""Variable of the JVM with the secret of the engine's server of tokens."""


def access_to_google(
    options: StoreOptions, environment: Mapping[str, str]
) -> SparkAccess:
    """Return what a session needs for a warehouse ``gs://bucket/...``."""
    endpoint = dict(options.config).get("endpoint") or first_of(
        environment, "GOOGLE_BASE_URL"
    )
    settings = {
        "fs.gs.impl": f"{_PACKAGE}.GoogleHadoopFileSystem",
        "fs.AbstractFileSystem.gs.impl": f"{_PACKAGE}.GoogleHadoopFS",
        "fs.gs.client.type": "HTTP_API_CLIENT",
        # Otherwise an empty object is made for a folder that has lost its last file.
        "fs.gs.implicit.dir.repair.enable": "false",
        "fs.gs.http.connect-timeout": str(round(options.connect_seconds * 1000)),
        "fs.gs.http.read-timeout": str(round(options.request_seconds * 1000)),
        "fs.gs.http.max.retry": str(
            repeats_within(options.attempts_seconds, _pauses())
        ),
    }
    if endpoint:
        settings["fs.gs.storage.root.url"] = endpoint.rstrip("/") + "/"
    credentials, secret = _credentials(options, environment)
    return SparkAccess(
        GOOGLE_JARS,
        for_hadoop({**settings, **credentials}),
        environment={} if secret is None else {_SECRET: secret},
    )


def _pauses() -> Iterator[float]:
    """Yield the connector's longest pauses, which no setting changes."""
    pause = 1.25
    while True:
        yield 1.2 * pause
        pause = min(1.6 * pause, 20.0)


def _credentials(
    options: StoreOptions, environment: Mapping[str, str]
) -> tuple[dict[str, str], str | None]:
    """Return settings, and the secret that they name."""
    if options.credentials_command:
        tokens = TokenServer(options.credentials_command)
        return {
            "fs.gs.auth.type": "USER_CREDENTIALS",
            "fs.gs.auth.client.id": "wal2lake",
            "fs.gs.auth.client.secret": f"${{env.{_SECRET}}}",
            # The server wants the secret alone.
            "fs.gs.auth.refresh.token": "none",
            "fs.gs.token.server.url": tokens.url,
        }, tokens.secret
    if options.anonymous:
        return {"fs.gs.auth.type": "UNAUTHENTICATED"}, None
    file = dict(options.config).get("credentials_file") or first_of(
        environment, "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"
    )
    if file is None:
        return {"fs.gs.auth.type": "APPLICATION_DEFAULT"}, None
    return {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": file,
    }, None
