"""The object store of warehouse and log: its settings, its URL, and what does not go together.

In: the values of ``[store]``, the warehouse. Out: ``StoreSettings``, the URL by which the node
names a place in Azure; ConfigurationError for settings that do not fit. Called by ``sections`` and
``loading``.

Azure has two URLs for one folder. ``az://container/lake`` leaves the storage account to a setting;
``abfss://container@account.dfs.core.windows.net/lake`` has everything, and readers other than this
node need no more. So the node uses the second everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from wal2lake.errors import ConfigurationError
from wal2lake.settings.declaration import setting

_INT_MAX: Final = 2**31 - 1

_CLOUDS: Final[Mapping[str, str]] = {
    "s3": "Amazon S3",
    "gs": "Google Cloud Storage",
    "abfss": "Azure",
}
"""Names of clouds by the scheme of a warehouse."""

_ONLY_OF: Final[Mapping[str, str]] = {
    "region": "s3",
    "access_key_id": "s3",
    "secret_access_key": "s3",
    "credentials_file": "gs",
    "account": "abfss",
    "account_key": "abfss",
    "sas_token": "abfss",
}
"""Settings that one cloud alone has, and its scheme."""

_CREDENTIALS: Final = (
    "access_key_id",
    "credentials_file",
    "account_key",
    "sas_token",
    "credentials_command",
    "anonymous",
)
"""Settings of which one at most may say who asks."""

_AZURE: Final = re.compile(
    r"abfss://[^/@]+@(?P<account>[a-z0-9]+)\.dfs\.(?P<suffix>[a-z0-9.-]+)(/.*)?"
)
"""A URL of a folder in Azure, as Hadoop writes it."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The object store of warehouse and log: S3, Azure or Google."""

    endpoint: str = setting(
        "",
        "URL of a server that speaks the protocol of the cloud; empty: the cloud"
        " itself. One that begins with http: is asked without TLS. For Azure its path is the"
        " storage account, as an emulator's is.",
        pattern=r"(https?://\S+)?",
        allowed="an http:// or https:// URL",
        restart=True,
    )
    region: str = setting(
        "",
        "S3: region of the bucket; empty: AWS_REGION of the environment, or us-east-1.",
        pattern=r"[A-Za-z0-9-]*",
        allowed="a name like eu-central-1",
        restart=True,
    )
    access_key_id: str = setting(
        "",
        "S3: access key, with secret_access_key. Without credentials in this section they are"
        " found as the cloud's own programs find them: in the environment, from the identity of"
        " the machine or the pod.",
        restart=True,
        secret=True,
    )
    secret_access_key: str = setting(
        "",
        "S3: secret of access_key_id.",
        restart=True,
        secret=True,
        command_line=False,
    )
    credentials_file: str = setting(
        "",
        "Google: file with the key of a service account, as JSON; empty:"
        " GOOGLE_APPLICATION_CREDENTIALS of the environment, gcloud's file, or the machine's"
        " identity.",
        pattern=r"(/.*)?",
        allowed="an absolute path",
        restart=True,
    )
    account: str = setting(
        "",
        "Azure: storage account of a place like az://container/lake.",
        pattern=r"([a-z0-9]{3,24})?",
        allowed="3 to 24 small letters and digits",
        restart=True,
    )
    account_key: str = setting(
        "",
        "Azure: key of the storage account.",
        restart=True,
        secret=True,
        command_line=False,
    )
    sas_token: str = setting(
        "",
        "Azure: shared access signature, percent-encoded as the portal shows it.",
        restart=True,
        secret=True,
        command_line=False,
    )
    credentials_command: str = setting(
        "",
        "Shell command that prints credentials as JSON: for S3 as a credential_process of AWS's"
        " programs does, for Azure as az account get-access-token, for Google as gcloud config"
        " config-helper. It is run again before they expire, and has 30 seconds. Not on a"
        " cluster with a warehouse in Azure or Google.",
        pattern=r"[^\r\n]*",
        allowed="a command in one line",
        restart=True,
        secret=True,
    )
    anonymous: bool = setting(
        False, "Send requests without credentials, as to an emulator.", restart=True
    )
    connect_timeout_ms: int = setting(
        5_000,
        "A connection that is not made after this time is given up.",
        minimum=100,
        maximum=_INT_MAX,
        restart=True,
    )
    request_timeout_ms: int = setting(
        30_000,
        "A request without a whole answer after this time is given up.",
        minimum=100,
        maximum=_INT_MAX,
        restart=True,
    )
    retry_timeout_ms: int = setting(
        60_000,
        "Requests without an answer, and those that the store wants to be repeated, are repeated"
        " for this time.",
        minimum=0,
        maximum=_INT_MAX,
        restart=True,
    )


def azure_url(location: str, account: str) -> str:
    """Return the URL that has the storage account for one like ``az://container/lake``; any other
    location, and one without an account, as it is."""
    if not account or not location.startswith("az://"):
        return location
    container, slash, prefix = location.removeprefix("az://").partition("/")
    return f"abfss://{container}@{account}.dfs.core.windows.net{slash}{prefix}"


def check_store(store: StoreSettings, warehouse: str) -> None:
    """Raise ConfigurationError if settings of the object store are not complete, exclude each
    other, or are not for the warehouse's cloud."""
    scheme = warehouse.partition("://")[0]
    defaults = StoreSettings()
    for name, cloud in _ONLY_OF.items():
        is_set = getattr(store, name) != getattr(defaults, name)
        if is_set and scheme in _CLOUDS and scheme != cloud:
            raise ConfigurationError(
                f'parameter "store.{name}" does not fit the warehouse "{warehouse}"',
                detail=f"It is for a warehouse in {_CLOUDS[cloud]}.",
                hint="Remove it.",
            )
    for name, partner in (
        ("access_key_id", "secret_access_key"),
        ("secret_access_key", "access_key_id"),
    ):
        if getattr(store, name) and not getattr(store, partner):
            raise ConfigurationError(
                f'parameter "store.{name}" needs "store.{partner}"',
                hint=f'Set "{partner}" of [store], too, or neither of them.',
            )
    credentials = [name for name in _CREDENTIALS if getattr(store, name)]
    if len(credentials) > 1:
        raise ConfigurationError(
            f'parameters "store.{credentials[0]}" and "store.{credentials[1]}" exclude each other',
            hint="Remove one of them.",
        )
    _check_azure(store, warehouse)


def _check_azure(store: StoreSettings, warehouse: str) -> None:
    if not warehouse.startswith("abfss://"):
        return
    url = _AZURE.fullmatch(warehouse)
    if url is None:
        raise ConfigurationError(
            f'invalid value for parameter "spark.warehouse": "{warehouse}"',
            detail="It does not name a container and the host of a storage account.",
            hint="Write it as abfss://container@account.dfs.core.windows.net/lake.",
        )
    account = url["account"]
    if store.account and store.account != account:
        raise ConfigurationError(
            f'parameter "store.account" is "{store.account}", but the warehouse'
            f' "{warehouse}" is in "{account}"',
            hint="Remove it.",
        )
    if store.endpoint and urlsplit(store.endpoint).path.strip("/") != account:
        raise ConfigurationError(
            f'invalid value for parameter "store.endpoint": "{store.endpoint}"',
            detail="The path of a server of one's own for Azure is the storage account.",
            hint=f"Write it as http://host:port/{account}.",
        )
