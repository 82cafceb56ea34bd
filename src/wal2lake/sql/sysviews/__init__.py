"""System catalogs and views as tables for SQL queries.

Takes: catalog queries in PostgreSQL's dialect, and a ``CatalogSource``. Gives: results with
PostgreSQL's column names, types and text. Owns: an in-memory SQL engine, nothing durable.
Never: runs Spark, connects to anything, changes the catalog.

Catalogs that describe PostgreSQL's own implementation (operators, casts, text search) are declared
and empty: SQL cannot change them in a node.

    routing          which queries are answered here
    system_catalog   ``SystemCatalog``: answers a query; start here
    plans            relations registered with the engine, and the engine's plans of queries
    source           the port through which the views read the node
    declarations/    which relations and columns there are
    rows/            their rows, of which ``arrow_table`` makes tables
    functions/       PostgreSQL's catalog functions
    query/           translates queries for the embedded engine, and its results
"""

from wal2lake.sql.sysviews.functions.call import FunctionRequest
from wal2lake.sql.sysviews.routing import (
    QueryRoute,
    calls_functions,
    is_system_query,
    route_of,
)
from wal2lake.sql.sysviews.source import (
    ActiveSession,
    CatalogSource,
    LoggedMessage,
    LogReading,
)
from wal2lake.sql.sysviews.system_catalog import SystemCatalog

__all__ = [
    "ActiveSession",
    "CatalogSource",
    "FunctionRequest",
    "LogReading",
    "LoggedMessage",
    "QueryRoute",
    "SystemCatalog",
    "calls_functions",
    "is_system_query",
    "route_of",
]
