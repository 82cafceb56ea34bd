"""The system catalogs and views, as PostgreSQL 18 declares them.

Takes: nothing. Gives: each relation of pg_catalog, information_schema and wal2lake with its OID,
kind and columns. Owns: wal2lake's own views. Never: has a row.

    relations                             ``SYSTEM``, ``system_relation``; start here
    catalogs, views, information_schema   their columns as text, generated from a server
"""
