"""Makes the client of a bucket from its URL.

In: scheme and name of a bucket, options. In Azure the name is of a container and the host of a
storage account, ``container@account.dfs.core.windows.net``. Out: a ``Bucket``, one for each
bucket and process, so that connections and credentials are shared by all of its tables.

The client never repeats a request itself (``max_retries`` 0): ``objects`` does, because only it can
tell whether a conditional request whose answer was lost has been carried out. Only the parts of
large objects are sent by a second client, which repeats them.

Credentials that the options do not have are found as each cloud's own programs find them: in the
environment, in the cloud's files, from the identity of the machine or the pod. obstore renews them
before they expire; those of a command ``access.command`` renews.

A client has threads, so one that was made before a fork is of no use after it; the processes of a
node are spawned, and a Python worker of Spark makes its own.

Sources: obstore 0.12, ``obstore.store``; object_store 0.14, ``RetryConfig``, ``ClientOptions``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from wal2lake.errors import ConfigurationError
from wal2lake.lake.store.access.command import (
    CommandCredentials,
    CredentialsCommandFailed,
    read_credentials,
)
from wal2lake.lake.store.access.tokens import read_token
from wal2lake.lake.store.answers import original_of
from wal2lake.lake.store.options import StoreOptions

Client = S3Store | GCSStore | AzureStore

_KINDS: Final[Mapping[str, Any]] = {"s3": S3Store, "gs": GCSStore, "abfss": AzureStore}

_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {"endpoint": "endpoint", "region": "region"},
    "gs": {"endpoint": "base_url", "credentials_file": "application_credentials"},
    "abfss": {"endpoint": "endpoint"},
}
"""obstore's names of settings, by scheme. Keys are handed over as credentials."""

_AZURE_SUFFIX: Final = "core.windows.net"
"""End of Azure's host names; national clouds have others."""

_MOST_REPEATS: Final = 20
"""Most repetitions of one part of a large object, if there is time for so many."""

_MOST_BUCKETS: Final = 64
"""Most clients that are kept. A node has one warehouse; branches and logs may be elsewhere."""

_ENDPOINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "gs": ("GOOGLE_BASE_URL",),
    "abfss": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT"),
}
"""By scheme: environment variables with the URL of a server that is not the cloud's own. A URL that
begins with ``http:`` allows requests without TLS."""


class Bucket:
    """A bucket with its client. Thread-safe."""

    def __init__(
        self,
        client: Client,
        uploading: Callable[[], Client],
        options: StoreOptions,
        command: CommandCredentials | None = None,
    ) -> None:
        """``uploading`` makes a client that repeats requests itself; ``command`` gives the
        credentials, if a command does."""
        self.client = client
        self.command = command
        self.options = options
        self._make_uploading = uploading
        self._uploading: Client | None = None
        self.copies_whole = not isinstance(client, AzureStore)
        """Whether a copy is there once its request is answered. Azure may still be copying."""
        self.proving = threading.Lock()
        """Held while the first conditional request of this process is proven to work, and while
        the second client is made."""
        self.proven = False
        self.fence: Callable[[], None] = _allow
        """Called before each request that changes something; what it raises prevents the request.
        A node that holds a lease on its warehouse sets it (``lease.keeper``)."""

    def prepare(self) -> None:
        """Run the command for credentials if it has to be run. A client would run it after the
        request's time was judged, and before its time-out begins."""
        if self.command is not None:
            # The request meets the same error, and says so.
            with suppress(CredentialsCommandFailed):
                self.command()

    def admit(self) -> None:
        """Return if a request that changes something may be sent now. What the fence raises
        prevents it."""
        self.prepare()
        self.fence()

    def uploading(self) -> Client:
        """Return the client that sends the parts of large objects. It repeats them itself: a part
        may be sent twice."""
        with self.proving:
            if self._uploading is None:
                self._uploading = self._make_uploading()
            return self._uploading


def _allow() -> None:
    """Prevent no request."""


def bucket_at(scheme: str, name: str, options: StoreOptions) -> Bucket:
    """Return the bucket of a URL ``scheme://name/...``. ConfigurationError if its options do not
    fit together."""
    try:
        return _bucket(scheme, name, options)
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f'could not use the object store "{scheme}://{name}"',
            detail="Its options are not complete, or do not fit together.",
            original=original_of(error),
        ) from error


@lru_cache(maxsize=_MOST_BUCKETS)
def _bucket(scheme: str, name: str, options: StoreOptions) -> Bucket:
    settings = dict(options.config)
    config = {
        option: settings[setting]
        for setting, option in _OPTIONS[scheme].items()
        if setting in settings
    }
    if options.anonymous and scheme != "gs":
        config["skip_signature"] = "true"
    bucket = name
    if scheme == "abfss":
        bucket, account, endpoint = _azure_names(name)
        config["account_name"] = account
        if endpoint is not None:
            config.setdefault("endpoint", endpoint)
    endpoints = [settings.get("endpoint", "")]
    endpoints += [os.environ.get(variable, "") for variable in _ENDPOINTS[scheme]]
    plain = any(url.startswith("http://") for url in endpoints)
    common: dict[str, Any] = {
        "config": config,
        "client_options": {
            "connect_timeout": timedelta(seconds=options.connect_seconds),
            "timeout": timedelta(seconds=options.request_seconds),
            **({"allow_http": True} if plain else {}),
        },
    }
    command = None
    if options.credentials_command:
        read = read_credentials if scheme == "s3" else read_token
        command = CommandCredentials(options.credentials_command, read)
    provider = command or _credentials(scheme, options, settings)
    if provider is not None:
        common["credential_provider"] = provider
    kind = _KINDS[scheme]
    once = {"max_retries": 0}
    repeating = {
        "max_retries": _MOST_REPEATS,
        "retry_timeout": timedelta(seconds=options.attempts_seconds),
        "backoff": {
            "init_backoff": timedelta(seconds=options.pause_seconds),
            "max_backoff": timedelta(seconds=options.longest_pause_seconds),
            "base": 2,
        },
    }
    return Bucket(
        kind(bucket, **common, retry_config=once),
        lambda: kind(bucket, **common, retry_config=repeating),
        options,
        command,
    )


def _azure_names(name: str) -> tuple[str, str, str | None]:
    """Return container, storage account, and the account's URL if its host is of another cloud than
    the public one."""
    container, _, host = name.partition("@")
    account, _, suffix = host.partition(".dfs.")
    if not (container and account and suffix):
        raise ValueError("the URL has no container and host of a storage account")
    if suffix == _AZURE_SUFFIX:
        return container, account, None
    return container, account, f"https://{account}.blob.{suffix}"


def _credentials(
    scheme: str, options: StoreOptions, settings: Mapping[str, str]
) -> Callable[[], Mapping[str, Any]] | None:
    """Return what gives the client fixed credentials; None if it has to look for them."""
    # The client would add what the environment has: a session token of other keys.
    fixed: dict[str, Any] = {"expires_at": None}
    if scheme == "s3" and "access_key_id" in settings:
        fixed["access_key_id"] = settings["access_key_id"]
        fixed["secret_access_key"] = settings.get("secret_access_key", "")
        fixed["token"] = None
    elif scheme == "abfss" and "account_key" in settings:
        fixed["access_key"] = settings["account_key"]
    elif scheme == "abfss" and "sas_token" in settings:
        fixed["sas_token"] = settings["sas_token"]
    elif scheme == "gs" and options.anonymous:
        # obstore's skip_signature looks for a token all the same before it writes to Google.
        fixed["token"] = "anonymous"
    else:
        return None
    return lambda: fixed
