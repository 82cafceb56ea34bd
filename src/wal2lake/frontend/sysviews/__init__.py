"""System catalogs and views as tables that SQL can ask.

Takes: catalog queries in PostgreSQL's dialect, and a ``CatalogSource``. Gives: results with
PostgreSQL's column names, types and text. Owns: an in-memory SQL engine, nothing durable.
Never: runs Spark, connects to anything, changes the catalog.

Catalogs that describe PostgreSQL's own implementation (functions, operators, casts, text
search) are declared and empty: a node has none that SQL could change.
"""

from wal2lake.frontend.sysviews.engine import SystemCatalog
from wal2lake.frontend.sysviews.rewrite import is_system_query
from wal2lake.frontend.sysviews.rows_replication import mask_password
from wal2lake.frontend.sysviews.source import ActiveSession, CatalogSource

__all__ = [
    "ActiveSession",
    "CatalogSource",
    "SystemCatalog",
    "is_system_query",
    "mask_password",
]
