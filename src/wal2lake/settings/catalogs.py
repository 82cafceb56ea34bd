"""The section [catalog]: a catalog of others in which the tables are registered.

In: nothing. Out: ``CatalogSettings``, as ``sections`` describes its sections, and the check of its
settings together. Called by ``loading``.
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
        if self.type == "none":
            return ""
        return "|".join((self.type, self.uri, self.region, self.name, self.prefix))

    @property
    def shown(self) -> str:
        """The catalog, for messages."""
        place = self.uri or self.region
        return f"{self.type} at {place}" if place else self.type


def check_catalog(catalog: CatalogSettings) -> None:
    """Raise ConfigurationError if settings of the catalog do not go together."""
    if catalog.type == "none":
        return
    for name in _NEEDS.get(catalog.type, ()):
        if not getattr(catalog, name):
            raise ConfigurationError(
                f'parameter "catalog.{name}" must be set for the catalog {catalog.type}',
                hint=f'Set "{name}" of [catalog], or "type" to none.',
            )
    if catalog.token and catalog.credentials_command:
        raise ConfigurationError(
            'parameters "catalog.token" and "catalog.credentials_command" exclude each other',
            hint="Remove one of the two from [catalog].",
        )
    begins = _SCHEMES[catalog.type]
    if catalog.uri and not catalog.uri.startswith(begins):
        raise ConfigurationError(
            f'invalid value for parameter "catalog.uri": "{catalog.uri}"',
            hint=f"For the catalog {catalog.type} it begins with {' or '.join(begins)}.",
        )
