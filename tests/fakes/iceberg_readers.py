"""Readers of a node's Iceberg catalog, and rows of all of them in one form.

A ``ReadColumn`` says what a value is, since each reader has other words for it. ``at_node``,
``by_pyiceberg`` and ``by_spark`` give multisets that are equal if the rows are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError
from tests.fakes.iceberg_spark import IcebergSpark

from wal2lake.launch import read_web_status
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Columns = Mapping[str, str]
"""Kind of each column: text, number, real, bool, time, bytes or array."""

Rows = Counter[tuple[Any, ...]]

_SPARK: Final = {
    "time": "unix_micros({})",
    "bytes": "hex({})",
    "array": "array_join({}, ',', 'NULL')",
}
"""Spark's expression for a kind, where its text of the value is not enough."""


def catalog_url(node: Node) -> str:
    """Where the node's web process listens."""
    status = wait_until(lambda: read_web_status(node.directory / "run"))
    (first,) = status.urls
    return f"http://127.0.0.1:{urlsplit(first).port}"


def rest_catalog(node: Node, warehouse: str, credential: str) -> RestCatalog:
    """Return pyiceberg's catalog of a moment."""
    url = catalog_url(node)
    return RestCatalog(
        "node",
        uri=url,
        warehouse=warehouse,
        credential=credential,
        **{"oauth2-server-uri": f"{url}/v1/oauth/tokens"},
    )


def has_come(node: Node, name: str, credential: str) -> bool:
    """Whether a moment is there."""
    try:
        rest_catalog(node, name, credential)
    except RESTError as error:
        assert "lies ahead" in str(error)
        return False
    return True


def at_node(node: Node, table: str, lsn: str, columns: Columns) -> Rows:
    """Return the node's own rows at an LSN."""
    with node.connect() as client:
        client.rows(f"set wal2lake.as_of_lsn = '{lsn}'")
        read = client.rows(f"select {', '.join(columns)} from {table}")
    return Counter(
        tuple(
            None if text is None else _of_text(kind, text)
            for kind, text in zip(columns.values(), row, strict=True)
        )
        for row in read
    )


def by_pyiceberg(catalog: Catalog, table: str, columns: Columns) -> Rows:
    """Return the rows that pyiceberg reads."""
    read = catalog.load_table(table).scan(selected_fields=tuple(columns)).to_arrow()
    values = [read[name].to_pylist() for name in columns]
    return Counter(
        tuple(
            None if value is None else _of_value(kind, value)
            for kind, value in zip(columns.values(), row, strict=True)
        )
        for row in zip(*values, strict=True)
    )


def by_spark(spark: IcebergSpark, warehouse: str, table: str, columns: Columns) -> Rows:
    """Return the rows that Spark reads."""
    chosen: Sequence[str] = [
        f"cast({_SPARK.get(kind, '{}').format(name)} as string)"
        for name, kind in columns.items()
    ]
    read = spark.rows(warehouse, f"select {', '.join(chosen)} from {table}")
    rows: Rows = Counter()
    for row, count in read.items():
        rows[
            tuple(
                None if text is None else _of_spark(kind, text)
                for kind, text in zip(columns.values(), row, strict=True)
            )
        ] += count
    return rows


def _of_text(kind: str, text: str) -> Any:
    """Return a value from PostgreSQL's text."""
    if kind == "time":
        return _micros(datetime.fromisoformat(text))
    if kind == "bytes":
        return text.removeprefix("\\x").upper()
    if kind == "array":
        return text.strip("{}")
    if kind == "bool":
        return {"t": "true", "f": "false"}[text]
    return repr(float(text)) if kind == "real" else text


def _of_value(kind: str, value: Any) -> Any:
    if kind == "time":
        return _micros(value)
    if kind == "bytes":
        return bytes(value).hex().upper()
    if kind == "array":
        return ",".join("NULL" if item is None else str(item) for item in value)
    if kind == "real":
        return repr(float(value))
    return str(value).lower() if kind == "bool" else str(value)


def _of_spark(kind: str, text: str) -> Any:
    if kind == "real":
        return repr(float(text))
    return int(text) if kind == "time" else text


def _micros(moment: datetime) -> int:
    seconds = int(moment.replace(microsecond=0).timestamp())
    return seconds * 1_000_000 + moment.microsecond
