"""Says how a catalog is reached.

Comes in: the settings of [catalog] or [iceberg.catalog]. Goes out: ``CatalogOptions``, with the
words for a catalog that cannot be reached. Called by the clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wal2lake.lake.catalogs.port import CatalogUnavailable, EntryRefused
from wal2lake.lake.store.access.command import CredentialsCommandFailed
from wal2lake.settings import CatalogSettings, IcebergCatalogSettings


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Where a catalog is, and how it lets the node in."""

    kind: str
    """glue, hive, unity, rest or sql."""
    uri: str = ""
    name: str = ""
    region: str = ""
    token: str = field(default="", repr=False)
    command: str = field(default="", repr=False)
    timeout_seconds: float = 30.0
    section: str = "catalog"
    """Section of the settings."""
    credential: str = field(default="", repr=False)
    """OAuth client's id and secret."""
    oauth_uri: str = ""
    scope: str = ""

    @classmethod
    def of(cls, settings: CatalogSettings) -> CatalogOptions:
        """Return the options of the settings."""
        return cls(
            settings.type,
            settings.uri,
            settings.name,
            settings.region,
            settings.token,
            settings.credentials_command,
            settings.timeout_ms / 1000,
        )

    @classmethod
    def of_iceberg(cls, settings: IcebergCatalogSettings) -> CatalogOptions:
        """Return the options of the settings of an Iceberg catalog."""
        return cls(
            settings.type,
            settings.uri,
            settings.name,
            settings.region,
            settings.token,
            settings.credentials_command,
            settings.timeout_ms / 1000,
            "iceberg.catalog",
            settings.credential,
            settings.oauth_uri,
            settings.scope,
        )

    def unreachable(self, reason: str) -> CatalogUnavailable:
        """Return the error for a catalog that does not answer."""
        return CatalogUnavailable(
            f"could not reach the {self.kind} catalog: {reason}",
            hint=f"Check {self.section}.uri, and that its server runs.",
        )

    def not_let_in(self, reason: str) -> CatalogUnavailable:
        """Return the error for a catalog that does not know the node."""
        return CatalogUnavailable(
            f"the {self.kind} catalog has refused the node: {reason}",
            sqlstate="28000",
            hint=f"Check the credentials of [{self.section}].",
        )

    def denied(self, reason: str) -> EntryRefused:
        """Return the error for rights that are missing, perhaps for one table only."""
        return EntryRefused(
            f"the {self.kind} catalog does not allow the node to register a table: {reason}",
            sqlstate="42501",
            hint="Grant the rights in the catalog; SELECT pg_reload_conf() tries at once.",
        )

    def failed_command(self, error: CredentialsCommandFailed) -> CatalogUnavailable:
        """Return the error for a command that gave no credentials."""
        return CatalogUnavailable(
            f"the command for the catalog's credentials has failed: {error}",
            sqlstate="28000",
            hint=f"Run {self.section}.credentials_command by hand, as the node's user.",
        )
