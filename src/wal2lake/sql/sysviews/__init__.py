"""System catalogs and views as tables that SQL can ask.

Takes: catalog queries in PostgreSQL's dialect, and a ``CatalogSource``. Gives: results with
PostgreSQL's column names, types and text. Owns: an in-memory SQL engine, nothing durable.
Never: runs Spark, connects to anything, changes the catalog.

Catalogs that describe PostgreSQL's own implementation (functions, operators, casts, text
search) are declared and empty: a node has none that SQL could change.

    system_catalog   ``SystemCatalog``: answers a query; start here
    source           what it needs to know of the node, as a port
    declarations/    which relations and columns there are
    rows/            what is in them; ``arrow_table`` makes tables of it
    functions/       PostgreSQL's catalog functions
    query/           a query for the embedded engine, its answer as PostgreSQL's
"""

from wal2lake.sql.sysviews.functions.call import FunctionRequest
from wal2lake.sql.sysviews.query.rewrite import (
    calls_functions,
    is_system_query,
    only_computes,
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
    "SystemCatalog",
    "calls_functions",
    "is_system_query",
    "only_computes",
]
