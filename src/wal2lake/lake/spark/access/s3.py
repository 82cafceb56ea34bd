"""Gives Spark access to tables in S3, through Hadoop's connector.

In: the options of the store's client, as the node's own writers have them. Out: jars, settings of
Spark without secrets, options of the JVM, and variables for its environment.

Queries that are not plain read the tables. Statements and large batches write their branches, whose
commits have no other writer. Everything else is written through ``lake.store``.

Credentials. Keys are in the environment of the JVM. A command is named in a file of AWS's SDK,
which runs it again before the credentials expire. Options of the JVM name that file: the command
inherits variables, and the AWS CLI in it must read the operator's profiles. Otherwise the SDK looks
for credentials as AWS's own programs do. Sources: Hadoop 3.4 "Hadoop-AWS module"; AWS SDK for Java
2.x, "Credentials", ProfileFileSystemSetting.java.
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
from wal2lake.lake.spark.access.needs import SparkAccess, first_of, for_hadoop
from wal2lake.lake.store import StoreOptions

_PROVIDERS: Final = "software.amazon.awssdk.auth.credentials"

_PROFILE: Final = "wal2lake"

_COMMENT: Final = re.compile(r"([ \t])([;#])")
"""Beginning of a comment behind a value of a profile, to AWS's SDK."""

_REGION: Final = "us-east-1"
"""obstore's default, too."""


def access_to_s3(
    options: StoreOptions, environment: Mapping[str, str], private: Path
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
        "fs.s3a.buffer.dir": str(private),
    }
    if endpoint:
        # A server of one's own seldom has a host name for each bucket.
        settings["fs.s3a.endpoint"] = endpoint
        settings["fs.s3a.path.style.access"] = "true"
        plain = endpoint.startswith("http://")
        settings["fs.s3a.connection.ssl.enabled"] = str(not plain).lower()
    provider, variables = _credentials(options, config)
    settings["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}.{provider}"
    return SparkAccess(
        S3_JARS,
        for_hadoop(settings),
        _profile_options(options.credentials_command, private),
        variables,
    )


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


def _profile_options(command: str, private: Path) -> tuple[str, ...]:
    """Return the JVM's options that name the command's profile, as Spark splits them."""
    if not command:
        return ()
    properties = {
        "aws.profile": _PROFILE,
        "aws.configFile": str(_profile(command, private)),
        # Keys of a profile with this name would go before the command.
        "aws.sharedCredentialsFile": os.devnull,
    }
    return tuple(shlex.quote(f"-D{name}={v}") for name, v in properties.items())


def _profile(command: str, private: Path) -> Path:
    """Write the file in which AWS's SDK finds the command; return its path.

    The command is in a script: a profile's value ends before a blank and ``;`` or ``#``."""
    script, profile = private / "credentials.sh", private / "aws.config"
    # Two quotes keep these characters of the path apart.
    quoted = _COMMENT.sub(r"\1''\2", shlex.quote(str(script)))
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
