"""Registers tables in a Hive metastore, by the client that Spark brings.

Implements ``lake.catalogs.ExternalCatalog``. The JVM of the session has Hive's client on its class
path, with its authentication (Kerberos, as hive-site.xml on the class path says). So the node needs
no Thrift library of its own. The client's version is 2.3; ``get_table_req`` is used where later
servers have nothing else.

An entry looks like a table that Spark itself has made of Delta's: the provider among the
properties, the place among those of the storage (``path``), where Spark looks for it. All columns
are plain ones, since partitions of a Delta table are in its log.

Paths in S3 begin with ``s3a://``, which is how Hadoop names its connector; Trino takes both.

Sources: hive_metastore.thrift; Spark's HiveExternalCatalog.scala; Trino's Delta Lake connector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from wal2lake.lake.catalogs import (
    DELTA,
    CatalogEntry,
    CatalogOptions,
    EntryChanged,
    EntryForm,
    EntryName,
    EntryRefused,
    FoundEntry,
    hive_type,
)
from wal2lake.lake.catalogs.entries import NODE

_SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"

_API: Final = "org.apache.hadoop.hive.metastore.api"

_MISSING: Final = (f"{_API}.NoSuchObjectException", f"{_API}.UnknownDBException")

_EXISTS: Final = f"{_API}.AlreadyExistsException"

_ITS_OWN: Final = (
    f"{_API}.InvalidObjectException",
    f"{_API}.InvalidOperationException",
    f"{_API}.InvalidInputException",
    f"{_API}.MetaException",
    *_MISSING,
)
"""Answers of the server about one request. After others the connection is of no use."""


class HiveCatalog:
    """A Hive metastore."""

    def __init__(
        self,
        spark: SparkSession,
        options: CatalogOptions,
        form: EntryForm = DELTA,
    ) -> None:
        """Connect to nothing yet."""
        self._form = form
        self._jvm: Any = spark._jvm
        self._options = options
        self._connection: Any = None
        self._thrift: Any = None

    def find(self, name: EntryName) -> FoundEntry | None:
        """Return what the catalog has under a name."""
        table = self._call(lambda thrift: self._get(thrift, name), missing=True)
        if table is None:
            return None
        storage = table.getSd()
        serde = storage.getSerdeInfo()
        parameters = {} if serde is None else dict(serde.getParameters() or {})
        columns = tuple((c.getName(), c.getType()) for c in storage.getCols() or ())
        return self._form.existing(
            parameters.get("path", storage.getLocation() or ""),
            columns,
            dict(table.getParameters() or {}),
            table,
        )

    def shows(self, existing: FoundEntry, entry: CatalogEntry) -> bool:
        """Whether the existing entry matches ``entry``."""
        return self._form.shows(existing, self._hadoop(entry), _columns(entry))

    def create(self, entry: CatalogEntry) -> None:
        """Make an entry that does not exist, and its database if that does not exist either."""
        self._make_database(entry)
        table = self._class("Table")()
        table.setDbName(entry.name.database)
        table.setTableName(entry.name.table)
        table.setOwner("wal2lake")
        self._fill(table, entry)
        self._call(
            lambda thrift: thrift.create_table_with_environment_context(table, None)
        )

    def change(self, entry: CatalogEntry, existing: FoundEntry) -> None:
        """Replace the existing entry."""
        name = entry.name
        context = self._class("EnvironmentContext")(self._jvm.java.util.HashMap())
        # Statistics of the table's files are not the metastore's to count.
        context.putToProperties("DO_NOT_UPDATE_STATS", "true")
        expected = self._form.expected(existing)
        if expected is not None:
            # Servers of version 4 compare; others ignore it.
            context.putToProperties("expected_parameter_key", expected[0])
            context.putToProperties("expected_parameter_value", expected[1])
        table = self._fill(existing.original, entry)
        self._call(
            lambda thrift: thrift.alter_table_with_environment_context(
                name.database, name.table, table, context
            )
        )

    def remove(self, name: EntryName, existing: FoundEntry) -> None:
        """Remove the existing entry; no file is touched."""
        self._call(
            lambda thrift: thrift.drop_table_with_environment_context(
                name.database, name.table, False, None
            ),
            missing=True,
        )

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._thrift = self._connection, None, None
        if connection is not None:
            try:
                connection.close()
            except Py4JError:
                return

    def _make_database(self, entry: CatalogEntry) -> None:
        name = entry.name.database
        if self._call(lambda thrift: thrift.get_database(name), missing=True):
            return
        database = self._class("Database")()
        database.setName(name)
        database.setParameters(self._map({NODE: entry.properties[NODE]}))
        # Without a place the metastore chooses one; no table of the node is in it.
        try:
            self._call(lambda thrift: thrift.create_database(database))
        except EntryChanged:
            return

    def _get(self, thrift: Any, name: EntryName) -> Any:
        request = self._class("GetTableRequest")(name.database, name.table)
        return thrift.get_table_req(request).getTable()

    def _fill(self, table: Any, entry: CatalogEntry) -> Any:
        """Let a table show an entry; what others have added stays."""
        kept = dict(table.getParameters() or {})
        table.setTableType("EXTERNAL_TABLE")
        entry, form = self._hadoop(entry), self._form
        directory = form.directory(entry)
        table.setParameters(self._map(form.properties(entry, kept)))
        table.setPartitionKeys(self._jvm.java.util.ArrayList())
        before = table.getSd()
        comments = {
            column.getName(): column.getComment()
            for column in (before.getCols() if before is not None else None) or ()
        }
        columns = self._jvm.java.util.ArrayList()
        for name, kind in _columns(entry):
            comment = comments.get(name) or ""
            columns.add(self._class("FieldSchema")(name, kind, comment))
        serde = self._class("SerDeInfo")()
        serde.setSerializationLib(_SERDE)
        serde.setParameters(
            self._map(
                {
                    "serialization.format": "1",
                    **({"path": directory} if form.storage.names_path else {}),
                }
            )
        )
        storage = self._class("StorageDescriptor")()
        storage.setCols(columns)
        storage.setLocation(directory)
        storage.setInputFormat(form.storage.input_format)
        storage.setOutputFormat(form.storage.output_format)
        storage.setSerdeInfo(serde)
        storage.setNumBuckets(-1)
        storage.setBucketCols(self._jvm.java.util.ArrayList())
        storage.setSortCols(self._jvm.java.util.ArrayList())
        storage.setParameters(self._map({}))
        table.setSd(storage)
        return table

    def _hadoop(self, entry: CatalogEntry) -> CatalogEntry:
        """Return the entry with the place as Hadoop writes it, for readers that open it so."""
        if self._form.storage.names_path and entry.location.startswith("s3://"):
            place = f"s3a://{entry.location.removeprefix('s3://')}"
            return replace(entry, location=place)
        return entry

    def _class(self, name: str) -> Any:
        """Return a class of the metastore's interface."""
        return getattr(self._jvm.org.apache.hadoop.hive.metastore.api, name)

    def _map(self, values: dict[str, str]) -> Any:
        java_map = self._jvm.java.util.HashMap()
        for key, value in values.items():
            java_map.put(key, value)
        return java_map

    def _call(self, call: Callable[[Any], Any], *, missing: bool = False) -> Any:
        """Call the server. ``missing``: None if it says that the object does not exist."""
        try:
            return call(self._connected())
        except Py4JJavaError as error:
            raised = error.java_exception
            kind = str(raised.getClass().getName())
            if missing and kind in _MISSING:
                return None
            message = str(raised.getMessage() or kind).strip().partition("\n")[0]
            raise self._failed(kind, message) from None
        except Py4JError as error:
            self.close()
            raise self._options.unreachable(str(error)) from None

    def _failed(self, kind: str, message: str) -> Exception:
        if kind == _EXISTS:
            return EntryChanged(f"an entry has changed in the hive catalog: {message}")
        if kind in _ITS_OWN and self._thrift is not None:
            return EntryRefused(
                f"the hive catalog has refused an entry: {message}",
                hint="The entry is tried again later. Rename the table, or correct the"
                " catalog.",
            )
        self.close()
        return self._options.unreachable(message)

    def _connected(self) -> Any:
        """Return Hive's client of the Thrift interface."""
        if self._thrift is None:
            hive = self._jvm.org.apache.hadoop.hive
            conf = hive.conf.HiveConf()
            seconds = max(1, round(self._options.timeout_seconds))
            for name, value in {
                "hive.metastore.uris": self._options.uri,
                "hive.metastore.client.socket.timeout": f"{seconds}s",
                # The worker repeats what has failed, at longer and longer intervals.
                "hive.metastore.connect.retries": "1",
                "hive.metastore.failure.retries": "0",
                "hive.metastore.client.connect.retry.delay": "0s",
            }.items():
                conf.set(name, value)
            self._connection = hive.metastore.HiveMetaStoreClient(conf)
            # Its own methods call what servers of version 4 do not have any more.
            client = self._connection.getClass().getDeclaredField("client")
            client.setAccessible(True)
            self._thrift = client.get(self._connection)
        return self._thrift


def _columns(entry: CatalogEntry) -> tuple[tuple[str, str], ...]:
    return tuple((c.name.lower(), hive_type(c.spark_ddl)) for c in entry.columns)
