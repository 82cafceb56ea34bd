"""The sections [catalog] and [iceberg.catalog]: catalogs of others that have the tables' names.

In: nothing. Out: ``CatalogSettings`` and ``IcebergCatalogSettings``, as ``sections`` describes its
sections, and the checks of their settings together. Called by ``loading``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.settings.declaration import setting

_INT_MAX: Final = 2**31 - 1

_SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    "glue": ("http://", "https://"),
    "hive": ("thrift://",),
    "unity": ("http://", "https://"),
}
"""How the URI of each type of catalog begins."""

_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "hive": ("uri",),
    "unity": ("uri", "name"),
}
"""Settings that must not be empty, by type."""

_ICEBERG_SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    "rest": ("http://", "https://"),
    "sql": ("postgresql", "mysql", "sqlite"),
    "glue": ("http://", "https://"),
    "hive": ("thrift://",),
}

_ICEBERG_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "rest": ("uri",),
    "sql": ("uri", "name"),
    "hive": ("uri",),
}


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """A catalog in which readers outside of the node find the tables by name."""

    type: str = setting(
        "none",
        "Catalog in which all tables are registered: glue (AWS Glue), hive (a Hive"
        " metastore), unity (Unity Catalog), or none.",
        choices=("none", *_SCHEMES),
        receivers=False,
    )
    uri: str = setting(
        "",
        "Where the catalog is. glue: URL of a server that speaks Glue's protocol; empty: AWS. hive:"
        " thrift://host:9083, or several of them, comma-separated. unity: URL of the server,"
        " without a path.",
        pattern=r"[^\s@]*",
        allowed="a URL without user and password",
        receivers=False,
    )
    name: str = setting(
        "",
        "Name of the catalog. unity: the catalog that has the schemas, which must exist. glue: the"
        " id of the account that has it; empty: the account of the credentials.",
        pattern=r"[^\s/`\"']*",
        allowed="a name without spaces, quotes and slashes",
        receivers=False,
    )
    prefix: str = setting(
        "",
        "Beginning of the names of databases: with lake_ the table public.towns becomes"
        " lake_public.towns.",
        pattern=r"[a-z0-9_]*",
        allowed="lower-case letters, digits and underscores",
        receivers=False,
    )
    region: str = setting(
        "",
        "glue: region of the catalog; empty: as AWS's own programs find it.",
        pattern=r"[A-Za-z0-9-]*",
        allowed="a name like eu-central-1",
        receivers=False,
    )
    token: str = setting(
        "",
        "unity: token that lets the node in; empty: none, or that of credentials_command.",
        pattern=r"[!-~]*",
        allowed="a token without spaces",
        receivers=False,
        secret=True,
        command_line=False,
    )
    credentials_command: str = setting(
        "",
        "Shell command that prints the credentials. unity: the token. glue: JSON, as a"
        " credential_process of AWS's programs prints it; empty: credentials are found as AWS's own"
        " programs find them. The command has 30 seconds.",
        pattern=r"[^\r\n]*",
        allowed="a command in one line",
        receivers=False,
        secret=True,
    )
    timeout_ms: int = setting(
        30_000,
        "A request that is not answered after this time has failed.",
        minimum=100,
        maximum=_INT_MAX,
        receivers=False,
    )
    interval_ms: int = setting(
        5_000,
        "Longest time between a change of a table's columns, name or existence and its entry in"
        " the catalog.",
        minimum=100,
        maximum=_INT_MAX,
        receivers=False,
    )
    sweep_interval_ms: int = setting(
        600_000,
        "Time between two comparisons of all entries with what the catalog has: entries that"
        " others have changed or dropped are made again.",
        minimum=1_000,
        maximum=_INT_MAX,
        receivers=False,
    )

    @property
    def target(self) -> str:
        """Identity of the catalog and of the names in it; empty: there is none."""
        return _target(self)

    @property
    def shown(self) -> str:
        """The catalog, for messages."""
        return _shown(self)


@dataclass(frozen=True, slots=True)
class IcebergCatalogSettings:
    """A catalog of others in which mirrored tables are registered for readers of Iceberg."""

    type: str = setting(
        "none",
        "Catalog that has all mirrored tables: rest (an Iceberg REST catalog), sql (the tables of"
        " Iceberg's JDBC catalog and of pyiceberg's SQL catalog), glue (AWS Glue), hive (a Hive"
        " metastore), or none.",
        choices=("none", *_ICEBERG_SCHEMES),
        receivers=False,
    )
    uri: str = setting(
        "",
        "Where the catalog is. rest: URL below which /v1/config is. sql: URL of the database as"
        " SQLAlchemy writes it, without a password: postgresql+psycopg://host/lake?user=node. glue:"
        " URL of a server that speaks Glue's protocol; empty: AWS. hive: thrift://host:9083, or"
        " several of them, comma-separated.",
        pattern=r"[^\s@]*",
        allowed="a URL without user and password",
        receivers=False,
    )
    name: str = setting(
        "",
        "Name of the catalog. rest: the warehouse that the node asks for; empty: the server's"
        " default. sql: the catalog's name in its tables. glue: the id of the account that has it;"
        " empty: the account of the credentials.",
        pattern=r"[^\s\"']*",
        allowed="a name without spaces and quotes",
        receivers=False,
    )
    prefix: str = setting(
        "",
        "Beginning of the names of namespaces: with lake_ the table public.towns becomes"
        " lake_public.towns.",
        pattern=r"[a-z0-9_]*",
        allowed="lower-case letters, digits and underscores",
        receivers=False,
    )
    region: str = setting(
        "",
        "glue: region of the catalog; empty: as AWS's own programs find it.",
        pattern=r"[A-Za-z0-9-]*",
        allowed="a name like eu-central-1",
        receivers=False,
    )
    token: str = setting(
        "",
        "rest: bearer token. sql: password of the database. Empty: none, or what"
        " credentials_command prints.",
        pattern=r"[!-~]*",
        allowed="a token without spaces",
        receivers=False,
        secret=True,
        command_line=False,
    )
    credential: str = setting(
        "",
        "rest: id and secret of an OAuth client, as id:secret, which get a token.",
        pattern=r"[!-~]*",
        allowed="id:secret without spaces",
        receivers=False,
        secret=True,
        command_line=False,
    )
    oauth_uri: str = setting(
        "",
        "rest: URL that gives tokens for the credential; empty: /v1/oauth/tokens below the URI.",
        pattern=r"(https?://[^\s@]*)?",
        allowed="a URL without user and password",
        receivers=False,
    )
    scope: str = setting(
        "catalog",
        "rest: scope of these tokens. Polaris wants PRINCIPAL_ROLE:ALL.",
        pattern=r"[!-~]*",
        allowed="a scope without spaces",
        receivers=False,
    )
    credentials_command: str = setting(
        "",
        "Shell command that prints the credentials. rest: the token. sql: the password. glue: JSON,"
        " as a credential_process of AWS's programs prints it; empty: credentials are found as"
        " AWS's own programs find them. The command has 30 seconds.",
        pattern=r"[^\r\n]*",
        allowed="a command in one line",
        receivers=False,
        secret=True,
    )
    timeout_ms: int = setting(
        30_000,
        "A request that is not answered after this time has failed.",
        minimum=100,
        maximum=_INT_MAX,
        receivers=False,
    )
    sweep_interval_ms: int = setting(
        600_000,
        "Time between two comparisons of all entries with what the catalog has: entries that"
        " others have dropped are made again, commits of others are found.",
        minimum=1_000,
        maximum=_INT_MAX,
        receivers=False,
    )

    @property
    def target(self) -> str:
        """Identity of the catalog and of the names in it; empty: there is none."""
        return _target(self)

    @property
    def shown(self) -> str:
        """The catalog, for messages."""
        return _shown(self)


def _target(catalog: CatalogSettings | IcebergCatalogSettings) -> str:
    if catalog.type == "none":
        return ""
    return "|".join(
        (catalog.type, catalog.uri, catalog.region, catalog.name, catalog.prefix)
    )


def _shown(catalog: CatalogSettings | IcebergCatalogSettings) -> str:
    place = catalog.uri or catalog.region
    return f"{catalog.type} at {place}" if place else catalog.type


def check_catalog(catalog: CatalogSettings) -> None:
    """Raise ConfigurationError if settings of [catalog] do not go together."""
    _check("catalog", catalog, _NEEDS, _SCHEMES)


def check_iceberg_catalog(catalog: IcebergCatalogSettings) -> None:
    """Raise ConfigurationError if settings of [iceberg.catalog] do not go together."""
    _check("iceberg.catalog", catalog, _ICEBERG_NEEDS, _ICEBERG_SCHEMES)
    if catalog.credential and (catalog.token or catalog.credentials_command):
        raise ConfigurationError(
            'parameter "iceberg.catalog.credential" excludes "iceberg.catalog.token" and'
            ' "iceberg.catalog.credentials_command"',
            hint="Remove all but one of the three from [iceberg.catalog].",
        )
    if catalog.credential and ":" not in catalog.credential:
        raise ConfigurationError(
            'invalid value for parameter "iceberg.catalog.credential": (not shown)',
            hint="It is the id, a colon and the secret of an OAuth client.",
        )


def _check(
    section: str,
    catalog: CatalogSettings | IcebergCatalogSettings,
    needs: Mapping[str, tuple[str, ...]],
    schemes: Mapping[str, tuple[str, ...]],
) -> None:
    if catalog.type == "none":
        return
    for name in needs.get(catalog.type, ()):
        if not getattr(catalog, name):
            raise ConfigurationError(
                f'parameter "{section}.{name}" must be set for the catalog {catalog.type}',
                hint=f'Set "{name}" of [{section}], or "type" to none.',
            )
    if catalog.token and catalog.credentials_command:
        raise ConfigurationError(
            f'parameters "{section}.token" and "{section}.credentials_command" exclude each'
            " other",
            hint=f"Remove one of the two from [{section}].",
        )
    begins = schemes[catalog.type]
    if catalog.uri and not catalog.uri.startswith(begins):
        raise ConfigurationError(
            f'invalid value for parameter "{section}.uri": "{catalog.uri}"',
            hint=f"For the catalog {catalog.type} it begins with {' or '.join(begins)}.",
        )
