"""The node as an Iceberg REST catalog, read-only: the same tables for every engine, at one moment.

Takes: requests of Iceberg's clients; roles, privileges and names from the catalog; moments and
metadata that the engine has written (``run/iceberg``). Gives: configuration, namespaces, tables.
Owns: tokens. Never: writes a table, reads a store, or shows a role a table that it may not SELECT.

    answers   errors as the specification has them, JSON
    moments   the moment that a warehouse's name means
    tokens    OAuth client credentials, bearer tokens
    view      what one role sees of the tables at one moment
    routes    ``IcebergCatalog``: paths and methods

Source: Apache Iceberg, open-api/rest-catalog-open-api.yaml; RFC 6749, RFC 6750, RFC 8693.
"""

from wal2lake.web.iceberg.routes import CATALOG_PATHS, IcebergCatalog

__all__ = ["CATALOG_PATHS", "IcebergCatalog"]
