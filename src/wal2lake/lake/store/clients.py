"""Makes the client of a bucket from its URL.

In: scheme and name of a bucket (a container in Azure), options. Out: a ``Bucket``, one for each
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
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from wal2lake.errors import ConfigurationError
from wal2lake.lake.store.access.command import CommandCredentials
from wal2lake.lake.store.answers import original_of
from wal2lake.lake.store.options import StoreOptions

Client = S3Store | GCSStore | AzureStore

_KINDS: Final[Mapping[str, Any]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}

_MOST_REPEATS: Final = 20
"""Most repetitions of one part of a large object, if there is time for so many."""

_MOST_BUCKETS: Final = 64
"""Most clients that are kept. A node has one warehouse; branches and logs may be elsewhere."""

_ENDPOINTS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "s3": (
        ("endpoint", "aws_endpoint_url_s3"),
        ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    ),
    "gs": (("base_url",), ("GOOGLE_BASE_URL",)),
    "az": (("endpoint",), ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT")),
}
"""By scheme: options and environment variables with the URL of a server that is not the cloud's
own. A URL that begins with ``http:`` allows requests without TLS."""


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
    config: Any = dict(options.config)
    named, variables = _ENDPOINTS[scheme]
    endpoints = [config.get(key, "") for key in named]
    endpoints += [os.environ.get(key, "") for key in variables]
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
    if scheme == "s3":
        if options.credentials_command:
            command = CommandCredentials(options.credentials_command)
        common.update(_credentials(command, config))
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
        kind(name, **common, retry_config=once),
        lambda: kind(name, **common, retry_config=repeating),
        options,
        command,
    )


def _credentials(
    command: CommandCredentials | None, config: Mapping[str, str]
) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Return the argument with S3's credentials; empty if the client has to look for them."""
    if command is not None:
        return {"credential_provider": command}
    if "access_key_id" not in config or "token" in config:
        return {}
    # Otherwise the client would add the environment's session token, which is of other keys.
    fixed = {
        "access_key_id": config["access_key_id"],
        "secret_access_key": config.get("secret_access_key", ""),
        "token": None,
        "expires_at": None,
    }
    return {"credential_provider": lambda: fixed}
