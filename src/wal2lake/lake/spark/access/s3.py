"""Gives Spark access to tables in S3, through Hadoop's connector.

In: the options of the store's client, as the node's own writers have them. Out: jars, settings of
Spark without secrets, options of the JVM, and variables for its environment.

Queries that are not plain read the tables. Statements and large batches write their branches, whose
commits have no other writer. Everything else is written through ``lake.store``.

Credentials. Keys are in the environment of the JVM. A command is named in a file of AWS's SDK,
which runs it again before the credentials expire. Options of the JVM name that file: the command
inherits variables, and the AWS CLI in it must read the operator's profiles. Otherwise the SDK looks
for credentials as AWS's own programs do.

A cluster's executors have neither this environment nor these files. Keys go to them in Hadoop's
configuration, which is sent with each job and is not in Spark's settings. The command's profile is
sent as a file, which Spark puts into the executor's working directory.

Sources: Hadoop 3.4 "Hadoop-AWS module"; AWS SDK for Java 2.x, "Credentials",
ProfileFileSystemSetting.java.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError, reason_of
from wal2lake.lake.jars import S3_JARS
from wal2lake.lake.spark.access.needs import (
    SparkAccess,
    doubling,
    first_of,
    for_hadoop,
    repeats_within,
)
from wal2lake.lake.store import StoreOptions

_PROVIDERS: Final = "software.amazon.awssdk.auth.credentials"

_SIMPLE: Final = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"

_PROFILE: Final = "wal2lake"

_SCRIPT: Final = "credentials.sh"
_CONFIG: Final = "aws.config"
"""Names of the files with the command and with its profile."""

_COMMENT: Final = re.compile(r"([ \t])([;#])")
"""Beginning of a comment behind a value of a profile, to AWS's SDK."""

_MOST_REPEATS: Final = 30
"""Most repetitions that are asked for: the connector's pauses double, without a limit."""

_REGION: Final = "us-east-1"
"""obstore's default, too."""


def access_to_s3(
    options: StoreOptions,
    environment: Mapping[str, str],
    private: Path,
    *,
    is_cluster: bool = False,
) -> SparkAccess:
    """Return what a session needs for a warehouse in S3."""
    config = dict(options.config)
    region = config.get("region") or first_of(
        environment, "AWS_REGION", "AWS_DEFAULT_REGION"
    )
    endpoint = config.get("endpoint") or first_of(
        environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"
    )
    milliseconds = round(options.request_seconds * 1000)
    settings = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint.region": region or _REGION,
        "fs.s3a.connection.establish.timeout": f"{round(options.connect_seconds * 1000)}ms",
        "fs.s3a.connection.timeout": f"{milliseconds}ms",
        **_attempts(options),
    }
    if not is_cluster:
        # A worker has its own directory for this.
        settings["fs.s3a.buffer.dir"] = str(private)
    if endpoint:
        # A server of one's own seldom has a host name for each bucket.
        settings["fs.s3a.endpoint"] = endpoint
        settings["fs.s3a.path.style.access"] = "true"
        plain = endpoint.startswith("http://")
        settings["fs.s3a.connection.ssl.enabled"] = str(not plain).lower()
    provider, variables = _credentials(options, config)
    settings["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}.{provider}"
    command = options.credentials_command
    secrets = {}
    if is_cluster and variables:
        settings["fs.s3a.aws.credentials.provider"] = _SIMPLE
        secrets = {
            "fs.s3a.access.key": config["access_key_id"],
            "fs.s3a.secret.key": config["secret_access_key"],
        }
    files: dict[str, str] = {}
    remote: tuple[str, ...] = ()
    if is_cluster and command:
        sent = private / "executors"
        _profile(command, sent, Path(_SCRIPT))
        files = {"spark.files": f"{sent / _SCRIPT},{sent / _CONFIG}"}
        remote = _profile_options(Path(_CONFIG))
    return SparkAccess(
        S3_JARS,
        for_hadoop(settings) | files,
        _profile_options(_profile(command, private)) if command else (),
        {} if secrets else variables,
        remote,
        secrets,
    )


def _attempts(options: StoreOptions) -> dict[str, str]:
    """Return the settings by which requests are repeated for the time of [store]. The connector
    repeats them, in place of the SDK below it; its pauses are of random length, up to one and a
    half of what is set."""
    pauses = doubling(1.5 * options.pause_seconds)
    repeats = min(repeats_within(options.attempts_seconds, pauses), _MOST_REPEATS)
    interval = f"{round(options.pause_seconds * 1000)}ms"
    return {
        "fs.s3a.attempts.maximum": "0",
        "fs.s3a.retry.limit": str(repeats),
        "fs.s3a.retry.interval": interval,
        "fs.s3a.retry.throttle.limit": str(repeats),
        "fs.s3a.retry.throttle.interval": interval,
    }


def _credentials(
    options: StoreOptions, config: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Return the class that gets credentials, and the variables that it reads."""
    if options.credentials_command:
        return "ProfileCredentialsProvider", {}
    if options.anonymous:
        return "AnonymousCredentialsProvider", {}
    if "access_key_id" not in config:
        return "DefaultCredentialsProvider", {}
    return "EnvironmentVariableCredentialsProvider", {
        "AWS_ACCESS_KEY_ID": config["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": config["secret_access_key"],
        # One from outside is of other keys.
        "AWS_SESSION_TOKEN": "",
    }


def _profile_options(profile: Path) -> tuple[str, ...]:
    """Return the JVM's options that name the command's profile, as Spark splits them."""
    properties = {
        "aws.profile": _PROFILE,
        "aws.configFile": str(profile),
        # Keys of a profile with this name would go before the command.
        "aws.sharedCredentialsFile": os.devnull,
    }
    return tuple(shlex.quote(f"-D{name}={v}") for name, v in properties.items())


def _profile(command: str, private: Path, named: Path | None = None) -> Path:
    """Write the file in which AWS's SDK finds the command; return its path. ``named``: path of the
    command's script where the file is read, if it is not read here.

    The command is in a script: a profile's value ends before a blank and ``;`` or ``#``."""
    script, profile = private / _SCRIPT, private / _CONFIG
    # Two quotes keep these characters of the path apart.
    quoted = _COMMENT.sub(r"\1''\2", shlex.quote(str(named or script)))
    _write(script, f"{command}\n")
    _write(profile, f"[profile {_PROFILE}]\ncredential_process = /bin/sh {quoted}\n")
    return profile


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(
            f'could not write file "{path}": {reason_of(error)}'
        ) from error
