"""Registers mirrors in the tables of a JDBC catalog: Iceberg's own, and pyiceberg's SQL catalog.

Implements ``port.ExternalCatalog`` and ``GroupedChanges`` by SQLAlchemy, which knows the databases
that such catalogs are kept in. It is an optional dependency.

A table is one row with the path of its metadata file. The row is replaced only if it still has the
path that was found, all tables of a round in one transaction. A view or another program's table is
a row with another path.

Source: iceberg, JdbcUtil.java (the tables; iceberg_type is NULL or TABLE for a table).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError, words_of
from wal2lake.lake.catalogs.iceberg.mirrored import found_metadata
from wal2lake.lake.catalogs.options import CatalogOptions
from wal2lake.lake.catalogs.port import (
    CatalogEntry,
    EntryChange,
    EntryChanged,
    EntryName,
    EntryRefused,
    FoundEntry,
)
from wal2lake.lake.store.access.command import CredentialsCommandFailed, run_command

_TABLES: Final = (
    "create table iceberg_tables (catalog_name varchar(255) not null,"
    " table_namespace varchar(255) not null, table_name varchar(255) not null,"
    " metadata_location varchar(1000), previous_metadata_location varchar(1000),"
    " iceberg_type varchar(5), primary key (catalog_name, table_namespace, table_name))",
    "create table iceberg_namespace_properties (catalog_name varchar(255) not null,"
    " namespace varchar(255) not null, property_key varchar(255),"
    " property_value varchar(1000), primary key (catalog_name, namespace, property_key))",
)

_ROW: Final = (
    "catalog_name = :catalog and table_namespace = :namespace and table_name = :name"
)

_FIND: Final = f"select metadata_location from iceberg_tables where {_ROW}"

_CREATE: Final = (
    "insert into iceberg_tables (catalog_name, table_namespace, table_name,"
    " metadata_location) values (:catalog, :namespace, :name, :location)"
)

_CHANGE: Final = (
    "update iceberg_tables set metadata_location = :location,"
    f" previous_metadata_location = :found where {_ROW} and metadata_location = :found"
)

_REMOVE: Final = (
    f"delete from iceberg_tables where {_ROW} and metadata_location = :found"
)

_HAS_NAMESPACE: Final = (
    "select 1 from iceberg_namespace_properties"
    " where catalog_name = :catalog and namespace = :namespace"
)

_MAKE_NAMESPACE: Final = (
    "insert into iceberg_namespace_properties"
    " (catalog_name, namespace, property_key, property_value)"
    " values (:catalog, :namespace, 'exists', 'true')"
)


class SqlIcebergCatalog:
    """The tables of a JDBC catalog in a database."""

    def __init__(self, options: CatalogOptions) -> None:
        """Connect to nothing yet. FeatureNotSupportedError (0A000) if SQLAlchemy is missing."""
        try:
            import sqlalchemy
        except ImportError:
            raise FeatureNotSupportedError(
                "SQLAlchemy is not installed, which the catalog sql needs",
                hint='pip install "wal2lake[sqlcatalog]" brings it.',
            ) from None
        self._alchemy: Any = sqlalchemy
        self._options = options
        self._engine: Any = None

    def find(self, name: EntryName) -> FoundEntry | None:
        """Return what the catalog has under a name."""

        def find(connection: Any) -> FoundEntry | None:
            row = self._run(connection, _FIND, name).one_or_none()
            return None if row is None else found_metadata(row[0] or "", {})

        existing: FoundEntry | None = self._do(find)
        return existing

    def shows(self, existing: FoundEntry, entry: CatalogEntry) -> bool:
        """Whether the existing entry matches ``entry``."""
        return existing.location == entry.location

    def create(self, entry: CatalogEntry) -> None:
        """Make a row, and its namespace if that does not exist."""

        def create(connection: Any) -> None:
            if self._run(connection, _HAS_NAMESPACE, entry.name).first() is None:
                self._run(connection, _MAKE_NAMESPACE, entry.name)
            self._run(connection, _CREATE, entry.name, location=entry.location)

        self._do(create)

    def change(self, entry: CatalogEntry, existing: FoundEntry) -> None:
        """Replace the path, unless it has changed since."""
        self.change_all([(entry, existing)])

    def change_all(self, changes: Sequence[EntryChange]) -> None:
        """Replace the paths, all in one transaction, unless one has changed since."""

        def change(connection: Any) -> None:
            # Two nodes lock the rows in the same order.
            for entry, existing in sorted(changes, key=lambda change: change[0].name):
                done = self._run(
                    connection,
                    _CHANGE,
                    entry.name,
                    location=entry.location,
                    found=existing.location,
                )
                if done.rowcount != 1:
                    raise _changed(entry.name)

        self._do(change)

    def remove(self, name: EntryName, existing: FoundEntry) -> None:
        """Remove the row, unless it has changed since; no file is touched."""

        def remove(connection: Any) -> None:
            self._run(connection, _REMOVE, name, found=existing.location)

        self._do(remove)

    def close(self) -> None:
        """Close connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _run(
        self, connection: Any, statement: str, name: EntryName, **values: str
    ) -> Any:
        row = {"catalog": self._options.name, "namespace": name.database}
        if ":name" in statement.replace(":namespace", ""):
            row["name"] = name.table
        return connection.execute(self._alchemy.text(statement), {**row, **values})

    def _do(self, work: Callable[[Any], Any]) -> Any:
        """Do something in one transaction."""
        errors = self._alchemy.exc
        try:
            with self._connected().begin() as connection:
                return work(connection)
        except errors.IntegrityError as error:
            raise EntryChanged(
                "an entry has changed in the sql catalog", original=words_of(error)
            ) from None
        except (errors.OperationalError, errors.InterfaceError) as error:
            raise self._options.unreachable(_words(error)) from None
        except errors.SQLAlchemyError as error:
            raise EntryRefused(
                f"the sql catalog has refused an entry: {_words(error)}",
                hint="The entry is tried again later. Rename the table, or correct the"
                " catalog.",
                original=words_of(error),
            ) from None

    def _connected(self) -> Any:
        """Return the engine of a database that has the tables."""
        if self._engine is None:
            engine = self._alchemy.create_engine(
                self._options.uri,
                connect_args=self._login(),
                pool_size=1,
                max_overflow=0,
                pool_pre_ping=True,
            )
            try:
                self._make_tables(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
        return self._engine

    def _make_tables(self, engine: Any) -> None:
        present = self._alchemy.inspect(engine)
        missing = [
            text for text in _TABLES if not present.has_table(text.split(maxsplit=3)[2])
        ]
        if missing:
            with engine.begin() as connection:
                for text in missing:
                    connection.execute(self._alchemy.text(text))

    def _login(self) -> dict[str, str]:
        password = self._options.token
        if self._options.command:
            try:
                password = run_command(self._options.command).strip()
            except CredentialsCommandFailed as error:
                raise self._options.failed_command(error) from None
        return {"password": password} if password else {}


def _changed(name: EntryName) -> EntryChanged:
    return EntryChanged(f'the entry "{name}" has changed in the sql catalog')


def _words(error: Exception) -> str:
    """Return the database's words about an error, without the statement."""
    original = getattr(error, "orig", None)
    return str(original or error).strip().partition("\n")[0] or type(error).__name__
