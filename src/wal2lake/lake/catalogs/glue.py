"""Registers tables in AWS Glue's Data Catalog.

Implements ``port.ExternalCatalog`` by boto3, which finds credentials as AWS's own programs do
unless a command prints them. boto3 is an optional dependency: a node without this catalog needs
none of its 15 MB.

Entries lead to Delta tables, or to metadata files of Iceberg tables (``forms``).

An entry has all columns as plain ones and no partition keys, since partitions of a Delta table are
in its log. UpdateTable names the version that was read, so what another program writes in between
is not overwritten.

Sources: AWS Glue Web API Reference, "Table API"; Amazon Athena User Guide, "Query Linux Foundation
Delta Lake tables"; Trino's Delta Lake connector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError, words_of
from wal2lake.lake.catalogs.entries import NODE
from wal2lake.lake.catalogs.forms import DELTA, EntryForm
from wal2lake.lake.catalogs.options import CatalogOptions
from wal2lake.lake.catalogs.port import (
    CatalogEntry,
    EntryChanged,
    EntryName,
    EntryRefused,
    FoundEntry,
)
from wal2lake.lake.catalogs.types import hive_type
from wal2lake.lake.store.access.command import (
    CommandCredentials,
    CredentialsCommandFailed,
)

_SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"

_NOT_FOUND: Final = "EntityNotFoundException"

_EXISTS: Final = "AlreadyExistsException"

_CHANGED: Final = ("ConcurrentModificationException", "VersionMismatchException")

_CREDENTIALS: Final = (
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "UnrecognizedClientException",
)
"""Errors of credentials."""

_DENIED: Final = ("AccessDenied", "AccessDeniedException")
"""Errors of rights, which credentials may have for one table and not for another."""

_ITS_OWN: Final = (
    "InvalidInputException",
    "ResourceNumberLimitExceededException",
    "ValidationException",
    *_CHANGED,
    _EXISTS,
    _NOT_FOUND,
)
"""Errors of one request. After others the next request would fail, too."""


class GlueCatalog:
    """AWS Glue, or a server that speaks its protocol."""

    def __init__(self, options: CatalogOptions, form: EntryForm = DELTA) -> None:
        """Connect to nothing yet. FeatureNotSupportedError (0A000) if boto3 is missing."""
        try:
            import boto3
            import botocore.config
            import botocore.exceptions
        except ImportError:
            raise FeatureNotSupportedError(
                "boto3 is not installed, which the catalog glue needs",
                hint='pip install "wal2lake[glue]" brings it.',
            ) from None
        self._boto3: Any = boto3
        self._failures: Any = botocore.exceptions
        self._options = options
        self._form = form
        self._config = botocore.config.Config(
            connect_timeout=options.timeout_seconds,
            read_timeout=options.timeout_seconds,
            # The worker repeats what has failed, at longer and longer intervals.
            retries={"total_max_attempts": 2},
        )
        self._command = CommandCredentials(options.command) if options.command else None
        self._used: tuple[str | None, ...] = ()
        self._client: Any = None
        self._scope = {"CatalogId": options.name} if options.name else {}

    def find(self, name: EntryName) -> FoundEntry | None:
        """Return what the catalog has under a name."""
        answer = self._call(
            "get_table", _NOT_FOUND, DatabaseName=name.database, Name=name.table
        )
        if answer is None:
            return None
        table = answer["Table"]
        storage = table.get("StorageDescriptor") or {}
        return self._form.existing(
            storage.get("Location", ""),
            tuple(
                (column["Name"], column.get("Type", ""))
                for column in storage.get("Columns") or ()
            ),
            table.get("Parameters") or {},
            table,
        )

    def shows(self, existing: FoundEntry, entry: CatalogEntry) -> bool:
        """Whether the existing entry matches ``entry``."""
        return self._form.shows(existing, entry, _columns(entry))

    def create(self, entry: CatalogEntry) -> None:
        """Make an entry that does not exist, and its database if that does not exist either."""
        database = {"Name": entry.name.database, "Parameters": _mark(entry)}
        wanted = {
            "DatabaseName": entry.name.database,
            "TableInput": _table_input(entry, {}, self._form),
        }
        if self._call("create_table", _NOT_FOUND, **wanted) is not None:
            return
        self._call("create_database", _EXISTS, DatabaseInput=database)
        self._call("create_table", **wanted)

    def change(self, entry: CatalogEntry, existing: FoundEntry) -> None:
        """Replace the existing entry, unless it has changed since."""
        before = existing.original
        version = before.get("VersionId")
        self._call(
            "update_table",
            DatabaseName=entry.name.database,
            TableInput=_table_input(entry, before, self._form),
            SkipArchive=True,
            **({} if version is None else {"VersionId": version}),
        )

    def remove(self, name: EntryName, existing: FoundEntry) -> None:
        """Remove the existing entry; no file is touched."""
        self._call(
            "delete_table", _NOT_FOUND, DatabaseName=name.database, Name=name.table
        )

    def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self, operation: str, *expected: str, **parameters: Any) -> Any:
        """Call an operation; None if it fails with an error that is expected."""
        errors = self._failures
        try:
            call: Callable[..., Any] = getattr(self._connected(), operation)
            return call(**self._scope, **parameters)
        except errors.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in expected:
                return None
            raise self._failed(code, error) from None
        except (errors.NoCredentialsError, errors.PartialCredentialsError) as error:
            raise self._options.not_let_in(str(error)) from None
        except errors.ParamValidationError as error:
            raise self._refused(error, str(error)) from None
        except errors.BotoCoreError as error:
            raise self._options.unreachable(str(error)) from None
        except CredentialsCommandFailed as error:
            raise self._options.failed_command(error) from None

    def _connected(self) -> Any:
        credentials = {} if self._command is None else self._command()
        # Each call of the command's credentials makes another dict, with another end.
        keys = tuple(
            credentials.get(name)
            for name in ("access_key_id", "secret_access_key", "token")
        )
        if self._client is None or keys != self._used:
            self.close()
            session = self._boto3.session.Session(
                aws_access_key_id=keys[0],
                aws_secret_access_key=keys[1],
                aws_session_token=keys[2],
            )
            self._client = session.client(
                "glue",
                region_name=self._options.region or None,
                endpoint_url=self._options.uri or None,
                config=self._config,
            )
            self._used = keys
        return self._client

    def _failed(self, code: str, error: Any) -> Exception:
        message = error.response.get("Error", {}).get("Message") or code
        if code in _CREDENTIALS:
            return self._options.not_let_in(message)
        if code in _DENIED:
            return self._options.denied(message)
        if code not in _ITS_OWN:
            return self._options.unreachable(message)
        if code in (*_CHANGED, _EXISTS):
            return EntryChanged(f"an entry has changed in the glue catalog: {message}")
        return self._refused(error, message)

    def _refused(self, error: Exception, message: str) -> EntryRefused:
        return EntryRefused(
            f"the glue catalog has refused an entry: {message}",
            hint="The entry is tried again later. Rename the table, or correct the catalog.",
            original=words_of(error),
        )


def _mark(entry: CatalogEntry) -> dict[str, str]:
    return {NODE: entry.properties[NODE]}


def _columns(entry: CatalogEntry) -> tuple[tuple[str, str], ...]:
    return tuple((c.name.lower(), hive_type(c.spark_ddl)) for c in entry.columns)


def _table_input(
    entry: CatalogEntry, before: dict[str, Any], form: EntryForm
) -> dict[str, Any]:
    """Return the table's definition, with what others have added to the one before."""
    directory = form.directory(entry)
    kept = {k: before[k] for k in ("Description", "Owner") if before.get(k)}
    comments = {
        column["Name"]: {"Comment": column["Comment"]}
        for column in (before.get("StorageDescriptor") or {}).get("Columns") or ()
        if column.get("Comment")
    }
    return {
        **kept,
        "Name": entry.name.table,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": form.properties(entry, before.get("Parameters") or {}),
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Columns": [
                {"Name": name, "Type": kind, **comments.get(name, {})}
                for name, kind in _columns(entry)
            ],
            "Location": directory,
            "InputFormat": form.storage.input_format,
            "OutputFormat": form.storage.output_format,
            "SerdeInfo": {
                "SerializationLibrary": _SERDE,
                "Parameters": {
                    "serialization.format": "1",
                    **({"path": directory} if form.storage.names_path else {}),
                },
            },
        },
    }
